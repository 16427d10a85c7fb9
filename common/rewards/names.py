r"""What may stand left of an equals sign and say nothing about the value on the right.

    is_symbol     `x`, `T_2`, `\Delta H`, `f(n)`, `P(X = 3)`, `E[X]`, `speed`
    is_label      these, and `\sin x`, `\det A`, `\int_0^1 f`, `\lfloor x \rfloor`, `\frac{dx}{dt}`, `u \cdot v`, `Total cost`

Neither are `-x`, `2x`, `\frac{x}{2}`, `x + 1`, `2\sin x`, `x^2`, `\ln x`, `e^x`: there the right side is not the value that was
asked for. Nor are constants labels (`\pi`, `e`, `\frac{\pi}{e}`): those have values of their own.
"""

import re

from common.rewards import latex, units

_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega"
_COMMANDS = "|".join([*_GREEK.split(), *_GREEK.title().split(), "hbar", "ell", "angle", "triangle", "nabla", "partial", "infty"])
_NAME = rf"(?:[A-Z]{{2}}|[A-Za-z]|\\(?:{_COMMANDS})(?![a-zA-Z])|\\(?:text|operatorname)\{{[A-Za-z' .-]*\}}|[A-Za-z]{{3,}})"
_SUBSCRIPT = r"\s*_\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}|\\?[A-Za-z*]+|\d)"
_BOUND = rf"(?:{_SUBSCRIPT}|{_SUBSCRIPT.replace('_', '[_^]', 1)})"
_MARK = (
    r"\s*\^\s*(?:\{\s*(?:\*|\\(?:circ|ominus|ast|star|dagger)|\(\d\)|\d?[-+])\s*\}|\*|\\(?:ominus|ast|star|dagger)(?![a-zA-Z]))"
)
_SCRIPT = rf"(?:{_SUBSCRIPT}|{_MARK}|')"  # a superscript may mark a state; a power leaves a root to be taken
_ARGUMENT = r"(?:\s*\([^=]*\)|\s*\[[^=\[\]]*\])"
_SYMBOL = re.compile(
    rf"\|?\s*(?:\\(?:Delta|delta|vec|bar|hat|dot|ddot|tilde|overline|angle)\s*)?\{{?{_NAME}\}}?{_SCRIPT}*{_ARGUMENT}?\s*\|?"
    r"|m?\\angle\s*[A-Z](?:\s*[A-Z](?:_\{?\d\}?)?){2}"
    rf"|\\Delta(?:{_SUBSCRIPT})?\s*{_NAME}(?:{_SCRIPT}|{_ARGUMENT}|\s*{_NAME}){{0,3}}"
    r"|[PE]\s*\([^()]*(?:\([^()]*\)[^()]*)*\)"
)
_FUNCTION = re.compile(
    rf"\\(?:(?:sin|cos|tan|cot|sec|csc|det|dim|deg|arg|gcd|max|min|sup|inf)(?![a-zA-Z])(?:{_SCRIPT})*"
    rf"|(?P<bound>lim|int|sum|prod)(?![a-zA-Z])(?:{_BOUND})*)(?P<argument>\s*[^\s^_].*)",
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


def is_symbol(text: str) -> bool:
    """One name, with its scripts and its argument."""
    if len(text) >= _MAX_CHARACTERS or _SYMBOL.fullmatch(text.strip()) is None:
        return False
    words = set(re.findall(r"(?<![\\a-z])[a-z]{2,}", text.lower()))  # `not = 5`
    head = set(re.findall(r"(?<![\\a-z])[a-z]{2,}", re.sub(r"\(.*\)|[_^]\s*\{.*\}", "", text.lower())))
    return not (words & units.DENIALS or head & units.HEDGES or any(map(units.is_turning, head)))


def is_label(text: str) -> bool:
    """A symbol, a function of symbols, a product or ratio of symbols, or the words for a quantity."""
    if is_symbol(text):
        return _is_open(text)
    if not text or len(text) >= _MAX_CHARACTERS or set(re.findall(r"(?<![\\a-z])[a-z]{2,}", text.lower())) & units.HEDGES:
        return False
    if _WORDS.fullmatch(text):
        return not any(units.is_refused(word) or units.is_turning(word) for word in text.split())
    if match := _FUNCTION.fullmatch(text):
        is_open = _NUMERIC.sub("", match["argument"]) != "" if match["bound"] else _is_open(match["argument"])
        return is_open and len(latex.cut(match["argument"], _OPERATION)) == 1
    if match := _ROUNDED.fullmatch(text):
        return is_label((match[1] or match[2]).strip())
    if match := _ENCLOSED.fullmatch(text):
        return _is_open(next(group for group in match.groups() if group))
    if match := _RATIO.fullmatch(text):
        return all(_is_name(part) or _DIFFERENTIAL.fullmatch(part.strip()) for part in match.groups())
    factors = latex.cut(text, _JOINT)
    return len(factors) > 1 and all(_is_name(factor) for factor in factors)


def _is_name(text: str) -> bool:
    return is_symbol(text) and _is_open(text)


def _is_open(text: str) -> bool:
    """Whether it has a name beside the constants."""
    return _NUMERIC.sub("", _CONSTANT.sub("", text)) != ""
