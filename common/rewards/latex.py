r"""Text of an answer brought to one spelling, and cut at its top level. Nothing here knows what the text means.

plain(r"\dfrac12\,\mathrm{m}")       r"\frac{1}{2} \text{m}"      signs, spaces, wrappers
compact(r"x_1 + \frac{1}{2}")        r"x_{1}+\frac{1}{2}"         and without spaces: for comparison as written
cut("(1,2), 3", ",")                 ["(1,2)", "3"]               outside of brackets only
"""

import re
import unicodedata

_SIGNS = {
    **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
    **dict.fromkeys("·⋅∙・", r"\cdot "),
    **dict.fromkeys("∗＊", "*"),
    **dict.fromkeys("°º", r"^{\circ}"),
    **dict.fromkeys("ÅÅ", r"\AA "),
    **dict.fromkeys("÷∕⁄", "/"),
    **dict.fromkeys("εϵ", r"\epsilon "),
    "′": "'",
    "…": "...",
    "⋯": "...",
    "¢": r"\text{ cents}",
}
_COMMANDS = "∅emptyset ×times ≤le ≥ge ≠ne ≈approx ∞infty ±pm ∪cup ∈in ℏhbar ⟨langle ⟩rangle µmu ϕphi"
_COMMANDS += " ΓGamma ΔDelta ΘTheta ΛLambda ΞXi ΠPi ΣSigma ΦPhi ΨPsi ΩOmega ΩOmega"
_COMMANDS += " αalpha βbeta γgamma δdelta ζzeta ηeta θtheta"
_COMMANDS += " ιiota κkappa λlambda μmu νnu ξxi πpi ρrho σsigma τtau υupsilon φphi χchi ψpsi ωomega"
_SIGNS |= {word[0]: f"\\{word[1:]} " for word in _COMMANDS.split()}
_TABLE = str.maketrans(_SIGNS)
_SCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻₀₁₂₃₄₅₆₇₈₉", "0123456789+-0123456789")
_SUPERSCRIPT = re.compile("[⁺⁻⁰¹²³⁴-⁹]+")
_SUBSCRIPT = re.compile("[₀-₉]+")
_ODD = re.compile(r"[^\x20-\x7e]")
_OVERLAY = re.compile("[\u0334-\u0338\u20d0-\u20f0]")
_WIDE = re.compile("[！-～]")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?)(?![\d.a-zA-Z]))")  # √2x may be either

_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\\\\s*$", ""),  # a line break at the end
        (r"\\\\(?=[a-zA-Z])", r"\\"),  # a doubled backslash before a command
        (r",\s*\\!\s*|\{\s*,\s*\}", ","),  # 10,\!080 and 1{,}000
        (
            r"\\[()\[\]]|[$€£]|\\\$|\\(?:textdollar|dollar|pounds|euro)(?![a-zA-Z])",
            " ",
        ),  # delimiters of mathematics, and dollars, which are a unit
        (r"(?:\\tag\*?\s*\{[^{}]*\}|\\(?:blacksquare|qed|nonumber)(?![a-zA-Z])|\s)+$", ""),  # what ends a line of a proof
        (r":\s*=|\\coloneqq(?![a-zA-Z])", "="),
        (r"\\!|\\(?:displaystyle|textstyle|limits|nolimits|boldmath|rm|bf|[lL]arge|LARGE|[hH]uge)(?![a-zA-Z])", ""),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?", ""),
        (r"\\[,;:> ]|~|\\(?:q?quad|thinspace|hspace\*?\{[^{}]*\})(?![a-zA-Z])|[\s\u00a0\u2000-\u200a\u202f\u205f\u3000]", " "),
        (r"\\(?:d|t|c)frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:leqslant|leqq|leq)(?![a-zA-Z])", r"\\le"),
        (r"\\(?:geqslant|geqq|geq)(?![a-zA-Z])", r"\\ge"),
        (r"\\neq(?![a-zA-Z])|\\not\s*=", r"\\ne "),
        (r">=", r"\\ge "),
        (r"<=", r"\\le "),
        (r"\\varnothing(?![a-zA-Z])|^\s*\\\{\s*\\\}\s*$", r"\\emptyset"),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\(?:lvert|rvert|vert|mid)(?![a-zA-Z])", "|"),
        (
            r"\\(?:degree|degrees)(?![a-zA-Z])|(?:\{\s*\}\s*)?\^\s*\\circ(?![a-zA-Z])|\{\s*\}\s*\^\s*\{\s*\\circ\s*\}",
            r"^{\\circ}",
        ),
        (r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![a-zA-Z]))", "'"),
        (r"\\var(epsilon|phi|theta|rho|sigma|kappa|pi)(?![a-zA-Z])", r"\\\1"),
        (r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)|math(?:rm|bf|it|sf|tt|bb|cal)|boldsymbol|bm|mbox|hbox|emph)\s*\{", r"\\text{"),
        (r"\\text\s+\{", r"\\text{"),
        (r"(?<=\d)\s*\\text\{\s*[eE]\s*(-?\d+)\s*\}|(?<=\d)\s*\\text\{\s*[eE]\s*\}\s*\{(-?\d+)\}", r"e\1\2"),  # 1.6\text{e-19}
        (r"(\\(?:cdot|times))\s*\{\s*\}", r"\1 "),
        (r"\\colon(?![a-zA-Z])", " "),
        (r"\\(?:dots|ldots|cdots|dotsc|dotsb)(?![a-zA-Z])|\.\s*\.\s*\.", "..."),
        (r"\\%", "%"),
        (r"(?<=[\w)}])\s*\*\*\s*(?=[-+(\d])", "^"),  # 10**-19
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([0-9a-zA-Z])\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\{[^{}]*\})\s*([0-9a-zA-Z])", r"\\frac\1{\2}"),
        (r"\\sqrt\s*([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r" {2,}", " "),
    ]
)
_WRAPPED = re.compile(r"\s*(?:\\(?:boxed|fbox|text)\s*)?\{(.*)\}\s*", re.DOTALL)
_OPEN, _CLOSE = "([{", ")]}"


def plain(text: str) -> str:
    """One spelling for what LaTeX and Unicode spell in many ways; what the text says is kept, dollar signs aside."""
    if _ODD.search(text):
        text = _ROOT.sub(lambda root: f"\\sqrt{{{root[1] or root[2]}}}", text)
        text = _SUPERSCRIPT.sub(lambda run: f"^{{{run[0].translate(_SCRIPTS)}}}", text)
        text = _SUBSCRIPT.sub(lambda run: f"_{{{run[0].translate(_SCRIPTS)}}}", text)
        text = _WIDE.sub(lambda sign: chr(ord(sign[0]) - 0xFEE0), text.translate(_TABLE))
        text = "".join(sign for sign in text if not _is_invisible(sign))  # direction marks and the like
    text = text.replace(r"\$", "$")
    if r"\begin" in text:
        text = text.replace("\\\\", r"\cr ")  # rows of a matrix: else its backslash would meet the space after it
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return _unended(text.strip().strip("*"))


def _is_invisible(sign: str) -> bool:
    """A direction mark, an accent; not what strikes out."""
    return unicodedata.category(sign) in ("Cf", "Mn") and not _OVERLAY.match(sign)


def _unended(text: str) -> str:
    """Without the punctuation that ends a sentence; dots that say it goes on are kept (`5...`)."""
    ended = text.strip().rstrip(".,;: ")
    return ended + "..." if "..." in text[len(ended) :].replace(" ", "") else ended


def compact(text: str) -> str:
    """`text` of `plain` without spaces that mean nothing, and with braces around each exponent and subscript."""
    text = re.sub(r"(\\[a-zA-Z]+|\d) +(?=([a-zA-Z])|\d)", _kept_space, text).replace(" ", "").replace("\x00", " ")
    text = re.sub(r"([_^])([0-9a-zA-Z]|\\[a-zA-Z]+(?![a-zA-Z{]))", r"\1{\2}", text)
    return re.sub(r"\{\{([^{}]*)\}\}", r"{\1}", text)


def _kept_space(match: re.Match[str]) -> str:
    """A space is kept where a command or a number would run into what follows."""
    is_needed = (match[1][0] == "\\") == (match[2] is not None)
    return match[1] + "\x00" if is_needed else match[1]


def unwrap(text: str) -> str:
    r"""The content where one `\boxed`, `\text` or pair of braces holds all of the text."""
    while (match := _WRAPPED.fullmatch(text)) and is_balanced(match[1]):
        text = _unended(match[1])
    return text


def is_balanced(text: str) -> bool:
    r"""Braces close in order; escaped ones (`\{`) do not count."""
    depth = 0
    for brace in re.findall(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def cut(text: str, pattern: str) -> list[str]:
    """Pieces between the matches of `pattern` that stand outside of all brackets (`(`, `[` and `{` count alike)."""
    pieces, depth, start, position = [], 0, 0, 0
    separator = re.compile(pattern)
    while position < len(text):
        if depth == 0 and (match := separator.match(text, position)) and match.end() > position:
            pieces.append(text[start:position].strip())
            start = position = match.end()
            continue
        sign = text[position]
        if sign == "\\" and text[position + 1 : position + 2] not in ("{", "}"):
            position += 1  # the sign after it is no bracket
        depth += (sign in _OPEN) - (sign in _CLOSE)
        position += 1
    return [*pieces, text[start:].strip()]
