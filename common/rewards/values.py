r"""An expression in LaTeX as a value: read once, evaluated where its symbols have given values.

    evaluate(parse(r"\frac{1}{2} m v^2"), {"m": 3, "v": 2})       6

Numbers stay exact (int, Fraction) as long as the operations allow; from there on they have 30 digits (mpmath, real or complex).
Symbols are case-sensitive and keep their subscripts, primes and accents: `M`, `m`, `m_{1}`, `\dot{m}` are four. Not read: sums,
integrals, limits, matrices, relations, lists. Nothing here can hang: what would be too large raises Unreadable.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from common.rewards import latex

DIGITS = 30
MAX_DEPTH = 60  # of nested groups
MAX_BITS = 20_000  # of an exact integer; larger ones have DIGITS digits
MAX_POWER = 10**12  # of an exponent and of a factorial's argument
Node = tuple[Any, ...]  # ("number", value), ("symbol", name), or (operation, node ...)

_TOKEN = re.compile(r"\s+|(\d+\.?\d*|\.\d+|\\[a-zA-Z]+|\\[^a-zA-Z]|.)", re.DOTALL)
_WORDS = re.compile(r"(?<![\\a-zA-Z{])(arcsin|arccos|arctan|sqrt|sinh|cosh|tanh|sin|cos|tan|pi|ln|log|exp)(?![a-zA-Z])")
_SWAPPED = re.compile(r"([a-zA-Z])\^(\{[^{}]*\}|\d)_(\{[^{}]*\}|\w)")  # v^2_0: the subscript belongs to the name
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega"
_OTHERS = "Pi hbar ell infty mho odot star AA"
_MARKS = "vec bar hat dot ddot tilde overline widehat widetilde overrightarrow"
_SYMBOLS = {"\\" + name for names in (_GREEK, _GREEK.title(), _OTHERS) for name in names.split()}
_ACCENTS = {"\\" + name for name in _MARKS.split()}
_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
_FUNCTIONS = {
    **{"\\" + name: name for name in (*_TRIGONOMETRIC, "sinh", "cosh", "tanh", "coth", "exp", "ln", "log")},
    **{"\\arc" + name: "a" + name for name in _TRIGONOMETRIC},
    "\\lg": "log",
}
_PAIRS = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil", "|": "|"}
_TIMES = ("*", r"\cdot", r"\times")
_OVER = ("/", r"\div")


class Unreadable(ValueError):
    """This is no expression that is read here."""


def parse(text: str, *, is_tight: bool = False) -> Node:
    """The expression that all of `text` (as `latex.plain` returns it) says. Raises Unreadable.

    `a/bc` is (a/b)c, and with `is_tight` a/(bc): both are in use.
    """
    text = _SWAPPED.sub(r"\1_\3^\2", latex.compact(_WORDS.sub(r"\\\1 ", text)))
    reader = _Reader([token for token in _TOKEN.findall(text) if token], is_tight)
    node = reader.sum()
    if reader.token is not None:
        raise Unreadable(f"{reader.token} is out of place")
    return node


def symbols(node: Node) -> set[str]:
    """Names of all symbols."""
    if node[0] == "symbol":
        return {node[1]}
    return set().union(*(symbols(part) for part in node[1:] if isinstance(part, tuple)))


def operations(node: Node) -> set[str]:
    """Names of all operations and functions."""
    return {node[0]}.union(*(operations(part) for part in node[1:] if isinstance(part, tuple)))


class _Reader:
    """Recursive descent: sum > product > power > atom."""

    def __init__(self, tokens: list[str], is_tight: bool) -> None:
        self._tokens = tokens
        self._is_tight = is_tight
        self._position = 0
        self._depth = 0
        self._in_angle = False  # inside of a sine: degrees are to be turned into radians

    @property
    def token(self) -> str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _next(self, expected: str | None = None) -> str:
        token = self.token
        if token is None or (expected is not None and token != expected):
            raise Unreadable(f"{expected or 'something'} is missing")
        self._position += 1
        return token

    def _take(self, *tokens: str) -> bool:
        if self.token in tokens:
            self._position += 1
            return True
        return False

    def sum(self) -> Node:
        node = self._signed(self._product)
        while self.token in ("+", "-"):
            node = ("add", node, self._signed(self._product))
        return node

    def _signed(self, read: Any) -> Node:
        is_negative = False
        while self.token in ("+", "-"):
            is_negative ^= self._next() == "-"
        node: Node = read()
        return ("multiply", ("number", -1), node) if is_negative else node

    def _product(self, *, is_argument: bool = False) -> Node:
        """Of a function without brackets (`\\sin 2x`) the argument ends before the next function."""
        node = self._power()
        while True:
            if self._take(*_TIMES):
                node = ("multiply", node, self._signed(self._power))
            elif self._take(*_OVER):
                node = ("divide", node, self._signed(self._divisor))
            elif self._starts_factor() and not (is_argument and self.token in _FUNCTIONS):
                node = self._adjacent(node)
            else:
                return node

    def _divisor(self) -> Node:
        node = self._power()
        while self._is_tight and self._starts_factor():
            node = self._adjacent(node)
        return node

    def _adjacent(self, left: Node) -> Node:
        is_fraction = self.token == r"\frac"
        right = self._power()
        whole, part = left[0] == "number" and is_fraction, right[:1] == ("divide",) and right[1][0] == right[2][0] == "number"
        if whole and part and isinstance(left[1], int) and isinstance(right[1][1], int) and 0 < right[1][1] < right[2][1]:
            return ("add", left, right)  # a mixed number
        if right[0] == "number":
            raise Unreadable("a number right after another factor")
        return ("multiply", left, right)

    def _starts_factor(self) -> bool:
        token = self.token
        if token is None or token == "|":
            return False
        known = token in _PAIRS or token in _FUNCTIONS or token in _SYMBOLS or token in _ACCENTS
        return known or token[0].isalnum() or token in (r"\frac", r"\sqrt", r"\binom", r"\text", r"\pi", r"\operatorname")

    def _power(self) -> Node:
        node = self._atom()
        while True:
            if self._take("!"):
                node = ("factorial", node)
            elif self.token == "^":
                self._next()
                exponent = self._group() if self.token == "{" else self._atom()
                if exponent == ("symbol", r"\circ"):
                    node = ("multiply", node, ("degree",)) if self._in_angle else node
                else:
                    return self._after_power(("power", node, exponent))
            else:
                return node

    def _after_power(self, node: Node) -> Node:
        if self.token in ("^", "_"):
            raise Unreadable("two exponents")
        return ("factorial", node) if self._take("!") else node

    def _group(self, opening: str | None = None) -> Node:
        opening = self._next(opening)
        self._depth += 1
        if self._depth > MAX_DEPTH or opening not in _PAIRS:
            raise Unreadable("no group, or too many nested groups")
        node = self._circle() if self.token == r"\circ" else self.sum()
        self._next(_PAIRS[opening])
        self._depth -= 1
        return node

    def _circle(self) -> Node:
        return ("symbol", self._next())

    def _atom(self) -> Node:
        token = self.token
        if token in _PAIRS:
            kind = {"|": "absolute", r"\lfloor": "floor", r"\lceil": "ceiling"}.get(token)
            node = self._group()
            return (kind, node) if kind else node
        token = self._next()
        if token[0].isdecimal() or token[0] == ".":
            return self._number(token)
        if token in (r"\frac", r"\binom"):
            return ("divide" if token == r"\frac" else "binomial", self._group("{"), self._group("{"))
        if token == r"\sqrt":
            root = self._group("[") if self.token == "[" else ("number", 2)
            return ("root", self._group(), root)
        if token in _FUNCTIONS:
            return self._function(_FUNCTIONS[token])
        if token == r"\operatorname":
            name = self._raw_group()
            return self._function(_FUNCTIONS["\\" + name]) if "\\" + name in _FUNCTIONS else self._marked(name)
        if token == r"\pi" or (token in ("e", "i") and self.token not in ("_", "'")):
            return ("constant", token.strip("\\"))
        return self._symbol(token)

    def _number(self, token: str) -> Node:
        if self.token == "_":
            raise Unreadable("a number in another base")
        return ("number", int(token) if token.isdecimal() else Fraction(token.rstrip(".") or "0"))

    def _function(self, name: str) -> Node:
        base: Node = ("number", 10)
        exponent: Node | None = None
        while self.token in ("^", "_"):
            if self._next() == "_":
                base = self._group("{")
            else:
                exponent = self._group("{")
        outside, self._in_angle = self._in_angle, self._in_angle or name in _TRIGONOMETRIC
        argument = self._group() if self.token in ("(", "{", "[") else self._signed(lambda: self._product(is_argument=True))
        self._in_angle = outside
        if exponent == ("multiply", ("number", -1), ("number", 1)) and name in _TRIGONOMETRIC:
            name, exponent = "a" + name, None
        node: Node = ("log", argument, base) if name == "log" else (name, argument)
        return ("power", node, exponent) if exponent else node

    def _symbol(self, token: str) -> Node:
        if token == r"\text":
            name = self._raw_group()
            return ("constant", name) if name in ("e", "i") and self.token != "_" else self._marked(name)
        if token in _ACCENTS:
            return self._marked(token + "{" + (self._raw_group() if self.token == "{" else self._next()) + "}")
        if token in _SYMBOLS or (token.isalpha() and token.isascii()):
            return self._marked(token)
        raise Unreadable(f"{token} is not known here")

    def _marked(self, name: str) -> Node:
        """A symbol with what belongs to its name: subscript, primes, star."""
        marks = []
        while self.token in ("_", "'"):
            marks.append("_" + self._raw_group() if self._next() == "_" else "'")
        if self._tokens[self._position : self._position + 4] == ["^", "{", "*", "}"]:
            self._position += 4
            marks.append("*")
        return ("symbol", name + "".join(sorted(marks)))

    def _raw_group(self) -> str:
        """The text of a group in braces, without inner wrappers: `k_{\\text{B}}` is `k_{B}`."""
        self._next("{")
        content, depth = [], 1
        while depth:
            token = self._next()
            depth += (token == "{") - (token == "}")
            content.append("" if token in ("{", "}", r"\text") else token.removeprefix("\\"))
        return "".join(content).strip()


def evaluate(node: Node, values: Mapping[str, Any]) -> Any:
    """Its value: int, Fraction, or an mpmath number. Raises Unreadable where there is none (1/0) or it is too large."""
    from common.rewards.arithmetic import OPERATIONS, constant

    def value(node: Node) -> Any:
        if node[0] == "number":
            return node[1]
        if node[0] == "symbol":
            return values[node[1]]
        if node[0] in ("constant", "degree"):
            return constant(node[-1])
        return OPERATIONS[node[0]](*(value(part) for part in node[1:]))

    return value(node)
