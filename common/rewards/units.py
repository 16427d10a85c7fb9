r"""What stands after a number: a scale (`million`), a unit, or something that makes it no number.

    read(r"\text{ million}")        10^6         scales multiply, however they are wrapped
    read(r"\,\mathrm{kg\,m/s^2}")   1            units are ignored, and so are ordinary words: `apples`, `boys and girls`
    read(r"\text{ or so}")          None         words that hedge, deny, count or compare
    read(r"\text{ ft }6")           None         a second number

A word is refused where it is in a list below; any other of three letters or more may be a unit, shorter ones must be known.
"""

import re

_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_DENIALS = """
    not no non nope never none neither nor without excluding excludes excluded except excepting wrong wrongly incorrect
    false falsely untrue invalid fake mistake mistaken rejected isn wasn aren weren doesn don didn won wouldn shouldn
    couldn cannot cant ain hasn haven isnt wasnt arent dont doesnt negative opposite contrary impossible undefined
    unknown error nan null instead against denied
"""
_ALTERNATIVES = """
    or and to but between either both plus minus versus vs maybe perhaps possibly probably unsure uncertain guess
    guessing doubtful alternatively alternative alternately otherwise rather also another other others too besides if
    unless is are was were be isn where when with then else respectively remainder residue modulo mod something
    because since therefore thus hence wait hmm hm oops etc unfinished incomplete pending tbd tbc tba todo idk dunno
    counterexample attempt partial trial draft candidate scratch check
    unclear unsolved unproven tentative provisional placeholder likely apparently seemingly hopefully disputed dubious
"""
_HEDGED = re.compile(
    r"(?:unlike|undecid|questionabl|unverif|unconfirm|presum|suppos|alleg|assum|tentativ|provisional"
    r"|incorrect|contradict|extraneous|recheck|verif|absurd|hypothe|conjectur)[a-z]*|fail(?:s|ed|ing)?"
)
_TURNED = re.compile(
    r"halv(?:e[sd]?|ing)|(?:doubl|(?:tripl|quadrupl)(?!es$)|negat|invert|subtract|deduct|revers|multipl|divided)[a-z]*|half"
)
_DROPPED = re.compile(r"(?:eliminat|discard|exclud|reject|dismiss|cross)[a-z]*|ruled")
_EARLIER = "previous former earlier ignored upper lower"
_OPERATIONS = """
    double triple quadruple twice thrice squared cubed factorial reciprocal inverse root sqrt sin cos tan cot csc
    log ln lg logarithm exp sinh cosh tanh
"""
_UNCERTAIN = """
    maybe perhaps possibly probably unsure uncertain guess guessing doubtful pending tbd tbc tba todo unclear likely wait hmm
    because since unfinished incomplete apparently seemingly etc
"""
_COMPARISONS = "less least most than under over below above within beyond exceeding exceeds greater smaller larger lower higher"
_TURNS = "loss losses lost debt debts owed owing deficit deficits shortfall short fewer arrears"  # 5 may be -5
_FUNCTIONS = """
    sec infinity infinite alpha beta gamma delta epsilon theta lambda sigma omega phi psi rho tau
    kilo mega giga tera peta exa hecto deca deci centi milli micro nano pico femto atto
    fold binary hex hexadecimal octal base
"""
_STEMS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fourty fifty sixty seventy eighty ninety hundred thousand [a-z]*illion
    [a-z]*illiard googol lakh lac crore dozen score gross myriad half halve third quarter fif eigh nin twelf twentie
    thirtie fortie fiftie sixtie seventie eightie ninetie
"""
DENIALS = frozenset(_DENIALS.split())
HEDGES = DENIALS | frozenset(_ALTERNATIVES.split())
_TURNING = frozenset(_TURNS.split())
_REFUSED = HEDGES | frozenset((_COMPARISONS + _FUNCTIONS + _OPERATIONS).split())
_ANOTHER = frozenset((_EARLIER + _OPERATIONS).split())
_COUNT = re.compile(rf"(?:{'|'.join(_STEMS.split())})+(?:s|es|th|ths|fold|some)?")
_CARDINAL = rf"(?<![a-z])(?!score|gross)(?:{'|'.join(_STEMS.split())})+(?:th)?"  # not of `Final score`
_TAKEN = re.compile(  # `square of x`, `times two`, `one third`, `three quarters`
    rf"^(?:square|cube)$|(?<![a-z])(?:square|cube|third|quarter|fourth|fifth|tenth)s? of(?![a-z])"
    rf"|(?<![a-z])(?!quarter){_CARDINAL}$|{_CARDINAL} {_CARDINAL}s?$"
)
_GLUED = re.compile(r"(?<![a-zA-Z\\])(?:ln|lg|log|exp|sqrt|sin|cos|tan)[A-Z]")
_BASES = "m s g J N W V A C K T F H L l Hz Pa eV mol cal bar rad Wb lx Torr"
_OTHERS = "h d D B S u yr hr mi ft in lb oz yd gal pt qt AU pc ly dB of per atm rpm mph kph sq cu cc deg KJ kPA JK AM PM am pm"
_RAISED = frozenset(prefix + base for prefix in ("", *"fpnuμmcdkMGT") for base in _BASES.split())  # `m2`
_SHORT = _RAISED | frozenset((*_OTHERS.split(), "a.m", "p.m", "A.M", "P.M"))
_COMMANDS = frozenset(("cdot", "mu", "Omega", "AA", "frac"))
_FOLLOWED = {"frac": re.compile(r"\s*\{"), "mu": re.compile(r"\s*(?:[a-zA-Z]|\\text\s*\{|\\Omega)")}
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<open>\\text\s*\{|[({\[])|(?P<close>[)}\]])|\\(?P<command>[a-zA-Z]+)|(?P<word>[aApP]\.[mM](?![A-Za-z])|[A-Za-zμ]+)"
    r"|(?P<circle>\^\s*\{\s*\\circ\s*\})|(?P<power>\^\s*(?:\{\s*[-+]?\s*[0-9]\s*\}|[-+]?[0-9]))|(?P<digit>[2-6](?![\w.,]))"
    r"|(?P<join>-(?=[a-zA-Z])|;)|(?P<sign>(?P<once>[/*.%])(?!\s*(?P=once))|')"
)
_HEAD = re.compile(r"(?:\s|\\text\s*\{|[{(])*([a-zA-Z]+)(?![a-zA-Z])")
_MEASURES = """
    year month week day hour minute second inch inches foot feet yard mile meter metre centimeter centimetre kilometer kilometre
    millimeter millimetre gram kilogram pound ounce ton gallon quart pint cup liter litre degree radian point cent dollar percent
    unit square cubic sq cu per light
    person people page piece story volt watt joule newton pascal kelvin ampere amp ohm tesla hertz mole kilowatt milliliter
"""
_MEASURE = re.compile(rf"(?:{'|'.join(_MEASURES.split())})s?")
_COMPOUND = re.compile(rf"(?<!\s)-(?:{_MEASURE.pattern})(?![a-zA-Z])")  # `-year`; another word may be subtracted
_KNOWN = frozenset(("hr", "hrs", "min", "mins", "lbs", "ppm", "way", "ways", "total", "exact", "times"))
_TIMES = re.compile(r"[\s})]*$|\s+(?:per|a)\s")  # nothing that would be multiplied
_OHM = re.compile(r"\}?\s*(?:\\text\s*\{)?\s*\\Omega")
_EV = re.compile(r"eV\W*/\W*$")  # MeV/c^2
_OPEN_END = re.compile(r"(?:[-/*;]|\\cdot|\b(?:and|per|of|a))[\s)}]*$")  # something was to follow
_AND = re.compile(r"\s+[a-zA-Z]{3}")
_MAX_CHARACTERS = 80


def is_refused(word: str) -> bool:
    """Whether a word hedges, denies, counts or compares."""
    word = word.lower()
    return word in _REFUSED or any(pattern.fullmatch(word) for pattern in (_COUNT, _HEDGED, _TURNED))


def is_hedge(word: str) -> bool:
    """Whether a word denies, or says that the answer is none yet (`unlikely`, `eliminated`)."""
    word = word.lower()
    return word in DENIALS or word in _UNCERTAIN.split() or any(pattern.fullmatch(word) for pattern in (_HEDGED, _DROPPED))


def is_turning(word: str) -> bool:
    """Whether a name with this word is that of another value than the one asked for (`half`, `Upper bound`)."""
    return word.lower() in _ANOTHER or any(pattern.fullmatch(word.lower()) for pattern in (_HEDGED, _TURNED, _DROPPED))


def is_another(name: str) -> bool:
    """The same of a whole name: `square of x`, `lnK`. A `half-life` is no half."""
    words = re.findall(r"(?<![\\a-z])[a-z]{2,}", name.lower().replace("half-", ""))
    return any(map(is_turning, words)) or _TAKEN.search(" ".join(words)) is not None or _GLUED.search(name) is not None


def read(tail: str) -> int | None:
    """The scale that `tail` (of `latex.plain`, what follows a number) puts on the number; None where it is no unit."""
    scale = 1
    while (match := _HEAD.match(tail)) and match[1].lower() in _SCALES:
        scale *= _SCALES[match[1].lower()]
        tail = tail[: match.start(1)] + tail[match.end() :]
    return scale if is_unit(tail, is_empty_fine=scale > 1) else None


def is_unit(text: str, *, is_empty_fine: bool = False, is_known: bool = False) -> bool:
    """Whether this may stand after a number without changing it. `is_empty_fine`: brackets may hold nothing.

    `is_known`: each word must be in the tables; an ordinary word is no unit.
    """
    if (
        len(text) > _MAX_CHARACTERS
        or any(text.count(one) != text.count(two) for one, two in ("()", "[]"))
        or _OPEN_END.search(text)
    ):
        return False
    position, before, raised, opened = 0, "", "", False
    is_apart = False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return False
        kind, token = match.lastgroup or "", match[0]
        if kind == "close" and opened and not is_empty_fine:
            return False  # `5()3`
        if is_known and kind == "word" and not _is_known(token):
            return False
        if not _fits(match, is_apart, before, raised):
            return False
        opened = kind == "open" or (opened and kind == "space")
        is_apart = kind == "space" or token.startswith(r"\text") or (is_apart and kind == "open")
        raised = token if kind == "word" else ""
        if kind not in ("space", "open"):
            before = _kept(before, kind)
        position = match.end()
    return True


def _is_known(word: str) -> bool:
    return word in _SHORT or word in _KNOWN or _MEASURE.fullmatch(word.lower()) is not None


def _kept(before: str, kind: str) -> str:
    """A bracket closes what it holds: a power may follow it only where that is a unit."""
    return before if kind == "close" and before in ("word", "command", "power", "digit") else kind


def _fits(token: re.Match[str], is_apart: bool, before: str, raised: str) -> bool:
    """`is_apart`: a space stands right before it. `before`: the kind of the last token. `raised`: the word right before it."""
    if command := token["command"]:
        needed = _FOLLOWED.get(command)
        return command in _COMMANDS and (needed is None or needed.match(token.string, token.end()) is not None)
    if word := token["word"]:
        if word.lower() == "and" and before == "word":
            return _AND.match(token.string, token.end()) is not None  # boys and girls
        if word.lower() == "times":
            return is_apart and _TIMES.match(token.string, token.end()) is not None
        if word == "a" and before == "word":
            return _AND.match(token.string, token.end()) is not None  # hours a day
        if (word in ("k", "M") and _OHM.match(token.string, token.end())) or (
            word == "c" and _EV.search(token.string[: token.start()])
        ):
            return True
        is_word = len(word) > 2 and not is_refused(word) and word.lower() not in _TURNING
        return word in _SHORT or (is_word and (is_apart or before != ""))
    if token["digit"]:
        return raised in _RAISED
    if token["power"]:
        return before in ("word", "command", "close") and not is_apart
    if token["join"]:
        return before in ("word", "close", "power") or (before == "" and _COMPOUND.match(token.string, token.start()) is not None)
    return True
