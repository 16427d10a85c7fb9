r"""Whether two expressions (text of `latex.plain`) have the same value, whatever their form; symbols keep their case.

In this order; the first that can tell, tells:

    as written, spaces aside              x+1 and x + 1
    both are numbers                      exact (`common.rewards.numbers`)
    a number with its base                52_8: only as written
    a word (\text{Evelyn})                letters alone, capitals aside
    both can be evaluated                 at several points, on 30 digits (`common.rewards.values`)
    gold or answer has a sum, integral ...   math-verify, where no two symbols differ in case alone

Evaluation replaces algebra: two formulas that agree at random points are the same formula, and a difference of case, of a
factor or of a power of ten shows at once. What math-verify alone gets wrong is in docs/checking.md.
"""

import functools
import logging
import random
import re
from fractions import Fraction
from typing import Any

from common.rewards import latex, numbers, units, values
from common.rewards.values import Node, Unreadable

ERROR = 1e-12  # relative, of 30 digits
MIN_POINTS = 3  # at which both sides have a value
_BASED = re.compile(r"(?<![\^{\d.])\d+\s*_")
_WORD = re.compile(r"\(?[A-Za-z][A-Za-z' -]*\)?\.?")
_LIBRARY = re.compile(r"\\(?:sum|prod|i*int|lim|max|min|gcd|lcm|det|begin|pmod|bmod|operatorname)(?![a-zA-Z])")
_COMMAND = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_SCRIPT = re.compile(r"[_^]\s*(?:\\text)?\{(?:[^{}]|\{[^{}]*\})*\}")
_OTHER_ENVIRONMENT = re.compile(r"\\begin\{(?![pbvBV]?matrix\}|array\})")
_UNIT_WORD = re.compile(r"\s*\\text\{\s*\(?[A-Za-z]{2}")
_UNBOUND = re.compile(  # math-verify drops these signs: `\sum 3` would be 3
    r"\\(?:sum|prod|lim)(?![a-zA-Z])(?!\s*[_^])|\\i*int(?![a-zA-Z])(?!\s*[_^])(?!.*d\s*\\?[a-zA-Z])", re.DOTALL
)
_TURNED_I = re.compile(r"(?<![a-zA-Z\\])i\s*\^\{\\circ\}")
_UNIT_END = re.compile(r"(?:[\d)}\]]|\\pi)\s*$")


def same(gold: str, answer: str, *, is_positive: bool = False, tolerance: Fraction | None = None) -> bool:
    """`is_positive`: symbols stand for positive values (physics). `tolerance`: absolute, for values without symbols."""
    if latex.compact(gold) == latex.compact(answer) != "":
        return True
    left, right = numbers.read_plain(gold, has_bare_unit=False), numbers.read_plain(answer)
    if left and right:
        return numbers.same(left, right, tolerance, is_relative=False)
    if right and right.is_cut and (tolerance is not None or right.digits >= numbers.WRITTEN_DIGITS):
        answer = answer.removesuffix("...")
    if _BASED.search(gold) or _BASED.search(answer) or _UNBOUND.search(answer) or (_TURNED_I.search(answer) and not right):
        return False
    if (word := _word(gold)) is not None:
        return word == _word(answer, is_sure=True)
    wanted = _parsed(gold)
    if wanted is None or (_LIBRARY.search(answer) and _parsed(answer) is None):
        return not _extra_words(gold, without_unit(answer)) and _by_library(gold, without_unit(answer))
    texts = [
        text
        for text in dict.fromkeys([answer, without_unit(answer, is_symbolic=bool(values.symbols(wanted)))])
        if not _extra_words(gold, text)
    ]
    return any(
        _agree(one, other, left, right, tolerance, is_positive)
        for one in _readings(gold)
        for reading in texts
        for other in _readings(reading)
    )


def value(text: str) -> Fraction | None:
    """The real value of an expression without symbols; None where it has none or cannot be read. Cheap."""
    nodes = [node for one in (text, without_unit(text)) if (node := _parsed(one)) is not None and not values.symbols(node)]
    if not nodes:
        return None
    node = nodes[0]
    found = _at(node, {})
    if found is None or getattr(found, "imag", 0) != 0:
        return None
    if isinstance(found, int | Fraction):
        return Fraction(found)
    return Fraction(str(found.real)) if found.real == 0 or 1e-300 < abs(found.real) < 1e300 else None


def without_unit(text: str, *, is_symbolic: bool = False) -> str:
    r"""`2\pi \text{ cm}` without its unit; the text itself where nothing after a factor reads as a unit.

    `is_symbolic`: only a word in `\text` is one (`G\text{ units}`), as letters are factors.
    """
    for match in re.finditer(r"\s+|(?=\\text\{)", text):
        head, tail = text[: match.start()], text[match.start() :]
        is_after = bool(_UNIT_WORD.match(tail)) if is_symbolic else _UNIT_END.search(head) is not None
        if is_after and head.strip() and tail.strip() and latex.is_balanced(head) and units.is_unit(tail, is_known=True):
            return head
    return text


def _extra_words(gold: str, answer: str) -> set[str]:
    r"""Words in `\text` that the answer alone has (`0 \text{ is false}`): no factors. Subscripts do not count."""
    wanted, given = (set(_TEXT.findall(_SCRIPT.sub("", text))) for text in (gold, answer))
    return {word for word in given - wanted if len(re.findall(r"\w", word)) > 1}


def proportional(gold: tuple[str, str], answer: tuple[str, str], *, is_positive: bool = False, is_ordered: bool = False) -> bool:
    """Whether the sides' differences are multiples of each other (`x = 1 - y`, `2x + 2y = 2`); `is_ordered`: positive ones."""
    left, right = _difference(gold), _difference(answer)
    if left is None or right is None:
        return False
    ratios = []
    for point in _points(left, right, is_positive):
        above, below = _at(left, point), _at(right, point)
        if above is None or below is None:
            continue
        if above == 0 or below == 0:
            return False
        ratios.append(_inexact(above) / _inexact(below))
    if len(ratios) < MIN_POINTS or not all(_is_close(ratio, ratios[0]) for ratio in ratios):
        return False
    return not is_ordered or (getattr(ratios[0], "imag", 0) == 0 and ratios[0].real > 0)


def _difference(sides: tuple[str, str]) -> Node | None:
    left, right = (_parsed(side) for side in sides)
    return ("add", left, ("multiply", ("number", -1), right)) if left and right else None


@functools.lru_cache(maxsize=512)
def _parsed(text: str, *, is_tight: bool = False) -> Node | None:
    """Cached: the answers of a group share a gold."""
    try:
        return values.parse(text, is_tight=is_tight)
    except (Unreadable, RecursionError):
        return None


def _readings(text: str) -> list[Node]:
    """Both ways to read `a/bc`."""
    found = [_parsed(text), _parsed(text, is_tight=True) if "/" in text else None]
    return [node for index, node in enumerate(found) if node is not None and node not in found[:index]]


def _word(text: str, *, is_sure: bool = False) -> str | None:
    r"""A word or name in `\text`, its letters in lower case (one letter alone as it is). `is_sure`: without `\text` as well."""
    inside = latex.unwrap(text)
    if (inside == text and not is_sure) or not _WORD.fullmatch(inside):
        return None
    letters = " ".join(inside.strip("().").split())
    return letters.casefold() if len(letters) > 1 else letters


def _agree(
    gold: Node,
    answer: Node,
    left: numbers.Number | None,
    right: numbers.Number | None,
    tolerance: Fraction | None,
    is_positive: bool,
) -> bool:
    if not values.symbols(gold) | values.symbols(answer):
        return _agree_without_symbols(gold, answer, left, right, tolerance)
    if not values.symbols(gold):
        return False  # `0 (unknown)` is a product of letters, not 0
    agreed = 0
    for point in _points(gold, answer, is_positive):
        wanted, given = _at(gold, point), _at(answer, point)
        if wanted is None or given is None:
            continue  # a pole of one form may be a removable one of the other
        if not _is_close(wanted, given):
            return False
        agreed += 1
    return agreed >= MIN_POINTS


def _agree_without_symbols(
    gold: Node, answer: Node, left: numbers.Number | None, right: numbers.Number | None, tolerance: Fraction | None
) -> bool:
    wanted, given = _at(gold, {}), _at(answer, {})
    if wanted is None or given is None:
        return False
    if tolerance is not None:
        return bool(abs(_inexact(wanted) - _inexact(given)) <= _inexact(tolerance) * (1 + ERROR))
    written = max((number.digits for number in (left, right) if number), default=0)
    is_irrational = any(not isinstance(one, int | Fraction) for one in (wanted, given))
    return _is_close(
        wanted, given, float(numbers.WRITTEN_ERROR) if written >= numbers.WRITTEN_DIGITS and is_irrational else ERROR
    )


def _points(gold: Node, answer: Node, is_positive: bool) -> list[dict[str, Any]]:
    """Values for the symbols; whole ones where something is rounded, as such formulas are about integers."""
    names = sorted(values.symbols(gold) | values.symbols(answer))
    chance = random.Random(0)
    kinds = values.operations(gold) | values.operations(answer)
    if kinds & {"floor", "ceiling"}:
        return [{name: chance.randint(1, 40) if index else number for index, name in enumerate(names)} for number in range(1, 31)]

    def drawn(low: float, high: float) -> dict[str, Fraction]:
        return {name: Fraction(chance.randint(int(low * 997), int(high * 997)), 997) for name in names}

    points: list[dict[str, Any]] = [drawn(0.2, 3) for _ in range(3)] + [
        {name: chance.randint(2, 9) for name in names},
        drawn(2, 9),
    ]
    return points if is_positive or kinds & {"factorial", "binomial"} else [*points, drawn(-3, -0.2), drawn(-3, 3)]


def _at(node: Node, point: dict[str, Any]) -> Any:
    """The value at a point; None where there is none."""
    try:
        found = values.evaluate(node, point)
    except (ValueError, ArithmeticError, TypeError):  # Unreadable; a pole; a complex number where an order is needed
        return None
    return found if isinstance(found, int | Fraction) or (found == found and abs(found) != float("inf")) else None


def _is_close(left: Any, right: Any, error: float = ERROR) -> bool:
    if isinstance(left, int | Fraction) and isinstance(right, int | Fraction) and error == ERROR:
        return left == right
    left, right = _inexact(left), _inexact(right)
    return bool(abs(left - right) <= error * max(abs(left), abs(right)))


def _inexact(found: Any) -> Any:
    from common.rewards.arithmetic import inexact

    return inexact(found)


def _by_library(gold: str, answer: str) -> bool:
    """What math-verify says, where it cannot be misled: it folds case, and it drops what it cannot read."""
    names = [set(_COMMAND.findall(text)) for text in (gold, answer)]
    letters = {name for found in names for name in found}
    if _OTHER_ENVIRONMENT.search(gold + answer):
        return False  # cases: right as written only
    if not _LIBRARY.search(gold + answer) or len({name.lower() for name in letters}) < len(letters):
        return False
    from math_verify import LatexExtractionConfig, parse, verify

    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        left, right = (
            parse(
                rf"\boxed{{{text}}}",
                [LatexExtractionConfig()],
                fallback_mode="no_fallback",
                parsing_timeout=None,
                raise_on_error=True,
            )
            for text in (gold, answer)
        )
        return bool(left and right and verify(left, right, float_rounding=15, timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:  # a stranger's parser on any text: what it cannot read is no right answer
        return False
