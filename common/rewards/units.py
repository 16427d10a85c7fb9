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
"""
_COMPARISONS = "less least most than under over below above within beyond exceeding exceeds greater smaller larger lower higher"
_TURNS = "loss losses lost debt debts owed owing deficit deficits shortfall short fewer arrears"  # 5 may be -5
_FUNCTIONS = """
    double triple quadruple twice thrice squared cubed factorial reciprocal inverse root sqrt sin cos tan cot sec csc
    log exp sinh cosh tanh infinity infinite alpha beta gamma delta epsilon theta lambda sigma omega phi psi rho tau
    kilo mega giga tera peta exa hecto deca deci centi milli micro nano pico femto atto
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
_REFUSED = HEDGES | frozenset((_COMPARISONS + _FUNCTIONS).split())
_COUNT = re.compile(rf"(?:{'|'.join(_STEMS.split())})+(?:s|es|th|ths|fold|some)?")
_BASES = "m s g J N W V A C K T F H L l Hz Pa eV mol cal bar rad Wb lx Torr"
_OTHERS = "h d D B S u yr hr mi ft in lb oz yd gal pt qt AU pc ly dB of per atm rpm mph kph sq cu cc deg KJ kPA JK AM PM am pm"
_RAISED = frozenset(prefix + base for prefix in ("", *"fpnuμmcdkMGT") for base in _BASES.split())  # `m2`
_SHORT = _RAISED | frozenset((*_OTHERS.split(), "a.m", "p.m", "A.M", "P.M"))
_COMMANDS = frozenset(("cdot", "mu", "Omega", "AA", "alpha", "frac", "ell"))
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<open>\\text\s*\{|[({\[])|(?P<close>[)}\]])|\\(?P<command>[a-zA-Z]+)|(?P<word>[aApP]\.[mM](?![A-Za-z])|[A-Za-zμ]+)"
    r"|(?P<circle>\^\s*\{\s*\\circ\s*\})|(?P<power>\^\s*(?:\{\s*[-+]?\s*[0-9]\s*\}|[-+]?[0-9]))|(?P<digit>[2-6](?![\w.,]))"
    r"|(?P<join>-(?=[a-zA-Z])|;)|(?P<sign>(?P<once>[/*.%])(?!\s*(?P=once))|')"
)
_HEAD = re.compile(r"(?:\s|\\text\s*\{|[{(])*([a-zA-Z]+)(?![a-zA-Z])")
_COMPOUND = re.compile(r"(?<!\s)-[a-zA-Z]{4}")  # `-year`; a shorter word may be factors
_OHM = re.compile(r"\}?\s*(?:\\text\s*\{)?\s*\\Omega")
_EV = re.compile(r"eV\W*/\W*$")  # MeV/c^2
_AND = re.compile(r"\s+[a-zA-Z]{3}")
_MAX_CHARACTERS = 80


def is_refused(word: str) -> bool:
    """Whether a word hedges, denies, counts or compares."""
    return word.lower() in _REFUSED or _COUNT.fullmatch(word.lower()) is not None


def read(tail: str) -> int | None:
    """The scale that `tail` (of `latex.plain`, what follows a number) puts on the number; None where it is no unit."""
    scale = 1
    while (match := _HEAD.match(tail)) and match[1].lower() in _SCALES:
        scale *= _SCALES[match[1].lower()]
        tail = tail[: match.start(1)] + tail[match.end() :]
    return scale if is_unit(tail, is_empty_fine=scale > 1) else None


def is_unit(text: str, *, is_empty_fine: bool = False) -> bool:
    """Whether this may stand after a number without changing it. `is_empty_fine`: brackets may hold nothing."""
    if len(text) > _MAX_CHARACTERS or text.count("(") != text.count(")"):
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
        if not _fits(match, is_apart, before, raised):
            return False
        opened = kind == "open" or (opened and kind == "space")
        is_apart = kind == "space" or token.startswith(r"\text") or (is_apart and kind == "open")
        raised = token if kind == "word" else ""
        if kind not in ("space", "open"):
            before = _kept(before, kind)
        position = match.end()
    return True


def _kept(before: str, kind: str) -> str:
    """A bracket closes what it holds: a power may follow it only where that is a unit."""
    return before if kind == "close" and before in ("word", "command", "power", "digit") else kind


def _fits(token: re.Match[str], is_apart: bool, before: str, raised: str) -> bool:
    """`is_apart`: a space stands right before it. `before`: the kind of the last token. `raised`: the word right before it."""
    if command := token["command"]:
        return command in _COMMANDS
    if word := token["word"]:
        if word.lower() == "and" and before == "word":
            return _AND.match(token.string, token.end()) is not None  # boys and girls
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
