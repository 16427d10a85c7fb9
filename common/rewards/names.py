r"""What may stand left of an equals sign and say nothing about the value on the right.

    is_symbol     `x`, `T_2`, `\Delta H`, `f(n)`, `P(X = 3)`, `E[X]`, `speed`
    is_label      these, and `\sin x`, `\det A`, `\int_0^1 f`, `\lfloor x \rfloor`, `\frac{dx}{dt}`, `u \cdot v`, `Total cost`

Neither are `-x`, `2x`, `\frac{x}{2}`, `x + 1`, `2\sin x`, `x^2`, `\ln x`, `e^x`: there the right side is not the value that was
asked for. Nor are constants labels (`\pi`, `e`, `\frac{\pi}{e}`): those have values of their own.
"""

import re
from collections.abc import Sequence

from common.rewards import latex, units

_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega"
_COMMANDS = "|".join([*_GREEK.split(), *_GREEK.title().split(), "hbar", "ell", "angle", "triangle", "nabla", "partial", "infty"])
_NAME = (
    rf"(?:[A-Z]{{2}}|p[HK]|[A-Za-z]|\\(?:{_COMMANDS})(?![a-zA-Z])"
    r"|\\(?:text|operatorname)\{\s*[A-Za-z][A-Za-z' .-]*\}|[A-Za-z]{3,})"
)
_SUBSCRIPT = r"\s*_\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}|\\?[A-Za-z*]+|\d)"
_BOUND = rf"(?:{_SUBSCRIPT}|{_SUBSCRIPT.replace('_', '[_^]', 1)})"
_MARK = (
    r"\s*\^\s*(?:\{\s*(?:\*|\\(?:circ|ominus|ast|star|dagger)|\(\d\)|\d?[-+])\s*\}|\*|\\(?:ominus|ast|star|dagger)(?![a-zA-Z]))"
)
_SCRIPT = rf"(?:{_SUBSCRIPT}|{_MARK}|')"  # a superscript may mark a state; a power leaves a root to be taken
_ARGUMENT = r"(?:\s*\([^=]*\)|\s*\[[^=\[\]]*\])"
_SYMBOL = re.compile(
    rf"\|?\s*(?:\\(?:Delta|delta|vec|bar|hat|dot|ddot|tilde|overline|angle)\s*)?\{{?{_NAME}\}}?{_SCRIPT}*{_ARGUMENT}?\s*\|?"
    r"|m?\s*\\angle\s*[A-Z](?:\s*[A-Z](?:_\{?\d\}?)?){0,2}"
    r"|[fghFGH]\s*\^\s*\{\s*-1\s*\}\s*\(\s*-?[\d.]+\s*\)"  # the inverse at a number; of x it is a formula
    rf"|\\Delta(?:{_SUBSCRIPT})?\s*{_NAME}(?:{_SCRIPT}|{_ARGUMENT}|\s*{_NAME}){{0,3}}"
    r"|[PE]\s*\([^()]*(?:\([^()]*\)[^()]*)*\)"
)
_FUNCTION = re.compile(
    rf"\\(?:(?:sin|cos|tan|cot|sec|csc|det|dim|deg|arg|gcd|max|min|sup|inf)(?![a-zA-Z])(?:{_SCRIPT})*"
    rf"|(?:lim|int|sum|prod)(?![a-zA-Z])(?P<bounds>(?:{_BOUND})*))(?P<argument>\s*[^\s^_].*)",
    re.DOTALL,
)
_NUMERIC = re.compile(r"\\(?:pi|circ|frac|sqrt|sin|cos|tan|ln|log|exp)(?![a-zA-Z])|[^a-zA-Z]")  # a value: `\sin 30^\circ`
_CONSTANT = re.compile(r"(?:\\(?:pi|infty)|(?<![a-zA-Z\\])[ei]|\\text\{\s*[ei]\s*\})(?![a-zA-Z]|\s*[_'])")
_ROUNDED = re.compile(r"\\lfloor\s*(.+)\\rfloor|\\lceil\s*(.+)\\rceil")
_ENCLOSED = re.compile(r"\\\|(.+)\\\||\\langle\s*(.+)\\rangle|\[\s*([A-Z]{3,})\s*\]")
_RATIO = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_DIFFERENTIAL = re.compile(r"(?:d|\\partial)\s*[A-Za-z]")
_WORDS = re.compile(r"[A-Za-z]{3,}(?: [A-Za-z]{2,}){1,5}")
_JOINT = r"\\(?:cdot|times|circ)(?![a-zA-Z])"
_OPERATION = rf"[-+*/=,;]|{_JOINT}"
_MAX_CHARACTERS = 60
_CALL = re.compile(r"(?P<head>.*?)[(\[](?P<argument>.*)[)\]]\s*\|?", re.DOTALL)
_SPECIES = re.compile(r"[\d.]+\s*(?:K|\\text\{[^{}]*\})|(?:\\text\{[A-Za-z ]*\}(?:_\{?\d\}?)?)+")  # (298 K), (H_2O)
_PROBABILITY = re.compile(r"P|\\text\{(?:P|Pr)\}|\\Pr")  # of any event
_MODULUS = re.compile(r"\|.*\||\\\|.*\\\|", re.DOTALL)
_CONJUGATE = re.compile(r"\\(?:bar|overline)(?![a-zA-Z])|\^\s*\{?\s*(?:\*|\\ast|\\star)")
_IMAGINARY = re.compile(r"(?<![a-zA-Z\\_])(?<!_\{)i(?![a-zA-Z_'])|\\text\{i\}")


def is_symbol(text: str) -> bool:
    """One name, with its scripts and its argument."""
    if len(text) >= _MAX_CHARACTERS or _SYMBOL.fullmatch(text.strip()) is None:
        return False
    call = _CALL.fullmatch(re.sub(_SCRIPT, "", text.strip()))
    if call and not (_PROBABILITY.fullmatch(call["head"].strip()) or _is_plain(call["argument"])):
        return False  # f(2x)
    words = set(re.findall(r"(?<![\\a-z])[a-z]{2,}", text.lower()))  # `not = 5`
    head = re.sub(r"\(.*\)|[_^]\s*\{.*\}", "", text)
    hedges = set(re.findall(r"(?<![\\a-z])[a-z]{2,}", head.lower())) & units.HEDGES
    return not (words & units.DENIALS or hedges or units.is_another(head))


def is_variable(text: str) -> bool:
    """A symbol that is no modulus and no function's value: what an interval may be about."""
    return is_symbol(text) and re.search(r"[|(\[]", text) is None


def fits(name: str, value: str) -> bool:
    """Whether `name` may have this value: no modulus is negative or complex, and where a conjugate is, another is meant."""
    is_modulus = _MODULUS.fullmatch(name.strip()) is not None
    if is_modulus and value.lstrip().startswith("-"):
        return False
    return not ((is_modulus or _CONJUGATE.search(name)) and _IMAGINARY.search(value))


def is_label(text: str) -> bool:
    """A symbol, a function of symbols, a product or ratio of symbols, or the words for a quantity."""
    if is_symbol(text):
        return _is_open(text)
    if not text or len(text) >= _MAX_CHARACTERS or set(re.findall(r"(?<![\\a-z])[a-z]{2,}", text.lower())) & units.HEDGES:
        return False
    if _WORDS.fullmatch(text):
        return not (any(map(units.is_refused, text.split())) or units.is_another(text))
    if match := _FUNCTION.fullmatch(text):
        argument = match["argument"].strip()
        if match["bounds"]:  # the sum or limit that was asked for
            return _NUMERIC.sub("", argument) != "" and len(latex.cut(argument, _OPERATION)) == 1
        inside = argument[1:-1] if argument.startswith("(") and argument.endswith(")") else argument
        return _is_open(inside) and _is_plain(inside)
    if match := _ROUNDED.fullmatch(text):
        return is_label((match[1] or match[2]).strip())
    if match := _ENCLOSED.fullmatch(text):
        inside = next(group for group in match.groups() if group)
        return _is_open(inside) and _is_plain(inside)
    if match := _RATIO.fullmatch(text):
        return _is_each_once(match.groups()) and all(
            _is_name(part) or _DIFFERENTIAL.fullmatch(part.strip()) for part in match.groups()
        )
    factors = latex.cut(text, _JOINT)
    return len(factors) > 1 and _is_each_once(factors) and all(_is_name(factor) for factor in factors)


def _is_each_once(texts: Sequence[str]) -> bool:
    r"""`\frac{A}{A}` and `x \cdot x` are no names."""
    return len({latex.compact(text) for text in texts}) == len(texts)


def _is_plain(argument: str) -> bool:
    """Whether an argument is a list of names and numbers: of `2x` and `x^2` the function is another quantity."""
    parts = latex.cut(argument, r"[,;|]")
    return all(not _is_open(part) or is_symbol(part) or _SPECIES.fullmatch(part) is not None for part in parts)


def _is_name(text: str) -> bool:
    return is_symbol(text) and _is_open(text)


def _is_open(text: str) -> bool:
    """Whether it has a name beside the constants."""
    return _NUMERIC.sub("", _CONSTANT.sub("", text)) != ""
