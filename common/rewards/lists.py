r"""Answers made of parts: lists and sets (in any order), tuples, intervals, unions, matrices, equations and inequalities.

    gold                          accepted                                   refused
    1, -2                         -2 and 1; \{1,-2\}; x = -2, 1              1; 1, 2; (1,-2)
    3 \pm 2\sqrt{2}               3+2\sqrt{2}, 3-2\sqrt{2}                   3+2\sqrt{2}
    (1,2)                         \left(1, 2\right)                          [1,2]; (2,1); 1,2
    (-\infty,2)\cup(3,\infty)     x \in (3,\infty)\cup(-\infty,2)            (-\infty,2)
    x = 5                         5; x=5                                     y = 5; x = 3 = 4
    x^2+y^2=1                     y^2 = 1 - x^2                              x^2+y^2=2
    k \ge 2                       2 \le k; [2,\infty)                        k > 2

The parts are compared by `expressions.same`. A tolerance is absolute, one for all or one for each gold in order.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from common.rewards import chains, expressions, latex, names, numbers

Tolerance = Fraction | None
MAX_PARTS = 100  # of a list
OR = re.compile(r"\\text\{\s*or\s*\}|(?<![a-zA-Z\\])or(?![a-zA-Z])")

_COMMA = r"(?:\\text\s*)?[,;]|\\(?:lor|vee)(?![a-zA-Z])|\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])"
_UNION = r"\\cup(?![a-zA-Z])"
_IN = r"\\in(?![a-zA-Z])"
_EQUAL = r"=|\\(?:equiv|triangleq)(?![a-zA-Z])"
_APPROXIMATE = r"\\(?:approx|simeq|sim|cong)(?![a-zA-Z])"
_ORDER = r"\\(?:le|ge|lt|gt)(?![a-zA-Z])|[<>]"
_MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_ARRAY = re.compile(r"[(\[]\s*\\begin\{array\}\s*\{[clr|]*\}(.*)\\end\{array\}\s*[)\]]", re.DOTALL)  # in brackets: a matrix
_SET = re.compile(r"[(\[]|\\\{|\\(?:emptyset|text)(?![a-zA-Z])")
_OPENING = re.compile(r"\(|\[|\\langle(?![a-zA-Z])")
_CLOSING = re.compile(r"(?:\)|\]|\\rangle)$")
_NAMES = re.compile(r"\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])+\s*\)")  # (x,y) = (1,2)
_CLOSERS = {"(": ")]", "[": ")]", r"\langle": (r"\rangle",)}


class Matcher:
    """Compares one answer with one gold."""

    def __init__(self, *, is_positive: bool = False) -> None:
        """`is_positive`: symbols stand for positive values (physics)."""
        self._is_positive = is_positive

    def is_list(self, golds: Sequence[str], answers: Sequence[str], tolerances: Sequence[Tolerance]) -> bool:
        """Whether each gold has an answer of its own, in any order, and none is left over."""
        if len(golds) != len(answers) or len(golds) > MAX_PARTS:
            return False
        return _is_matching(
            [
                [self.is_same(gold, answer, tolerance) for answer in answers]
                for gold, tolerance in zip(golds, tolerances, strict=True)
            ]
        )

    def is_same(self, gold: str, answer: str, tolerance: Tolerance = None) -> bool:
        """Of two texts of `latex.plain`. Raises nothing but MemoryError."""
        if latex.compact(gold) == latex.compact(answer) != "":
            return True
        golds, answers = items(gold), items(answer)
        if len(golds) > 1 or len(answers) > 1:
            return self.is_list(golds, answers, [tolerance] * len(golds))
        return self._is_same_part(golds[0], answers[0], tolerance)

    def _is_same_part(self, gold: str, answer: str, tolerance: Tolerance) -> bool:
        rules: tuple[Callable[[str, str, Tolerance], bool | None], ...] = (
            self._approximations,
            self._orders,
            self._memberships,
            self._equations,
            self._unions,
            self._matrices,
            self._tuples,
        )
        for rule in rules:
            verdict = rule(gold, answer, tolerance)
            if verdict is not None:
                return verdict
        return expressions.same(gold, answer, is_positive=self._is_positive, tolerance=tolerance)

    def _approximations(self, gold: str, answer: str, tolerance: Tolerance) -> bool | None:
        """`8/3 \\approx 2.667`: one of the two, where they mean the same; `x \\approx 3` as an equation."""
        wanted, given = latex.cut(gold, _APPROXIMATE), latex.cut(answer, _APPROXIMATE)
        if len(wanted) == len(given) == 1:
            return None
        if given[0] == "" and answer.startswith(r"\sim") and expressions.value(given[-1]) is None:
            return False  # not x
        if len(wanted) > 1:
            gold = wanted[-1]
        if len(given) == 1:
            return self.is_same(gold, answer, tolerance)
        if len(given) == 2 and names.is_symbol(given[0]):
            return self.is_same(gold, f"{given[0]} = {given[1]}", tolerance)
        return any(self.is_same(gold, part, tolerance) for part in chains.texts(answer) or ())

    def _orders(self, gold: str, answer: str, tolerance: Tolerance) -> bool | None:
        if re.search(_UNION, answer) and not re.search(_IN, gold + answer):
            return self._unions(gold, answer, tolerance)  # `x < 2 \cup x > 3`
        wanted, given = _chain(gold), _chain(answer)
        if not wanted and not given:
            return None
        left, right = _interval(wanted), _interval(given)
        if left and right:
            return left[0] == right[0] and self.is_same(left[1], right[1], tolerance)
        if left or right:
            sides = (rf"{left[0]} \in {left[1]}" if left else gold, rf"{right[0]} \in {right[1]}" if right else answer)
            if not (wanted and given):
                return self.is_same(*sides, tolerance)
        return len(wanted) == len(given) and all(
            one[1] == other[1]
            and expressions.proportional((one[0], one[2]), (other[0], other[2]), is_positive=self._is_positive, is_ordered=True)
            for one, other in zip(wanted, given, strict=True)
        )

    def _memberships(self, gold: str, answer: str, tolerance: Tolerance) -> bool | None:
        """`x \\in [1,2]` is `[1,2]`; of two names both must be the same."""
        (wanted, gold_set), (given, answer_set) = _named(gold, _IN), _named(answer, _IN)
        if wanted is None and given is None:
            return None
        if None in (wanted, given) and re.search(_IN, gold if wanted is None else answer):
            return False  # `not x \in [1,2]`
        if None in (wanted, given) and not _SET.search(gold_set if given is None else answer_set):
            return False  # `x \in 5`: no set
        return (wanted is None or given is None or wanted == given) and self.is_same(gold_set, answer_set, tolerance)

    def _equations(self, gold: str, answer: str, tolerance: Tolerance) -> bool | None:
        wanted, given = latex.cut(gold, _EQUAL), latex.cut(answer, _EQUAL)
        if len(wanted) == len(given) == 1:
            return None
        (name, last), (answer_name, answer_last) = _named(gold, _EQUAL), _named(answer, _EQUAL)
        if len(given) == 1:
            return name is not None and self.is_same(last, answer, tolerance)
        if len(wanted) == 1 and not (answer_name or "").startswith("("):
            is_name = names.is_label(given[0]) and names.fits(given[0], given[-1])  # `\\sin x = 5` for 5, not `\\pi = 5`
            answer_name = given[0] if is_name else None
        if len(wanted) == 1 or (name is not None and answer_name is not None):
            is_name_fine = len(wanted) == 1 or name == answer_name
            known, parts = wanted[1:] or wanted, given[1:] if answer_name else given
            return (
                is_name_fine
                and self.is_same(last, answer_last, tolerance)
                and self._is_chain(known, parts, tolerance, answer_name)
            )
        return len(wanted) == len(given) == 2 and expressions.proportional(
            (wanted[0], wanted[1]), (given[0], given[1]), is_positive=self._is_positive
        )

    def _is_chain(self, golds: Sequence[str], parts: Sequence[str], tolerance: Tolerance, name: str | None) -> bool:
        """Whether all parts before the last say what the gold says (`x = 3 = 4` says two things), or nothing (after a name)."""
        is_value = expressions.value(golds[-1]) is not None
        return all(
            any(self.is_same(gold, part, tolerance) for gold in golds)
            or (is_value and ((name is not None and chains.is_formula(part, name)) or chains.is_rounded(part, parts[-1])))
            for part in parts[:-1]
        )

    def _unions(self, gold: str, answer: str, tolerance: Tolerance) -> bool | None:
        wanted, given = latex.cut(gold, _UNION), latex.cut(answer, _UNION)
        return self.is_list(wanted, given, [tolerance] * len(wanted)) if len(wanted) > 1 or len(given) > 1 else None

    def _matrices(self, gold: str, answer: str, tolerance: Tolerance) -> bool | None:
        gold, answer = (_ARRAY.sub(r"\\begin{pmatrix}\1\\end{pmatrix}", text) for text in (gold, answer))
        wanted, given = _MATRIX.fullmatch(gold), _MATRIX.fullmatch(answer)
        if not wanted or not given:
            return False if wanted and not re.search(r"\\begin", answer) else None
        if wanted[1].strip("pbB") != given[1].strip("pbB"):
            return False  # a determinant is no matrix
        return self._is_sequence(_rows(wanted[2]), _rows(given[2]), tolerance)

    def _tuples(self, gold: str, answer: str, tolerance: Tolerance) -> bool | None:
        wanted, given = _bracketed(gold), _bracketed(answer)
        if wanted is None and given is None:
            return None
        return (
            wanted is not None
            and given is not None
            and wanted[0] == given[0]
            and self._is_sequence(wanted[1], given[1], tolerance)
        )

    def _is_sequence(self, golds: Sequence[str], answers: Sequence[str], tolerance: Tolerance) -> bool:
        return len(golds) == len(answers) and all(
            self.is_same(gold, answer, tolerance) for gold, answer in zip(golds, answers, strict=True)
        )


def items(text: str) -> list[str]:
    r"""Parts of a list or set: at commas, semicolons and `and` outside of brackets, `\pm` as two. A number with commas is one."""
    whole, text = text, latex.unwrap(text)
    if text.startswith(r"\{") and text.endswith(r"\}") and latex.is_balanced(text[2:-2].replace(r"\{", "{").replace(r"\}", "}")):
        text = text[2:-2].strip()
    if numbers.read_plain(text) is not None:
        return [text]
    parts = [part for part in latex.cut(text, _COMMA) if part]
    if len(parts) > 1 and (name := _named(parts[0], _IN)[0]) and not any(_named(part, _IN)[0] for part in parts[1:]):
        return [text] if name else parts
    found = [one for part in parts for one in _both_signs(part)]
    return found if len(found) > 1 or (found and not whole.startswith(r"\text")) else [whole]  # a word keeps its `\text`


def _both_signs(text: str) -> list[str]:
    if not re.search(r"\\pm(?![a-zA-Z])", text):
        return [text]
    return [re.sub(r"\\pm(?![a-zA-Z])", plus, re.sub(r"\\mp(?![a-zA-Z])", minus, text)) for plus, minus in ("+-", "-+")]


def _named(text: str, relation: str) -> tuple[str | None, str]:
    """The symbol left of the first relation, if it is one symbol, spelled in one way, and what stands right of the last."""
    parts = latex.cut(text, relation)
    is_tuple = len(parts) > 1 and _NAMES.fullmatch(parts[0]) is not None and _bracketed(parts[-1]) is not None
    if len(parts) < 2 or not (is_tuple or (names.is_variable if relation == _IN else names.is_symbol)(parts[0])):
        return None, parts[-1]
    return re.sub(r"\\text\{([^{}]*)\}|[{}\s]", r"\1", latex.compact(parts[0])), parts[-1]


def _chain(text: str) -> list[tuple[str, str, str]]:
    r"""`a \le b < c` as (lower, `\le` or `<`, upper) for each sign."""
    parts = latex.cut(text, _ORDER)
    signs = re.findall(_ORDER, text)
    if len(parts) != len(signs) + 1 or "" in parts:
        return []
    chain = []
    for left, sign, right in zip(parts, signs, parts[1:], strict=False):
        low, high = (right, left) if sign in (">", r"\ge", r"\gt") else (left, right)
        chain.append((low, r"\le" if sign in (r"\le", r"\ge") else "<", high))
    return chain


def _interval(chain: list[tuple[str, str, str]]) -> tuple[str, str] | None:
    r"""The name and the interval that a chain about one symbol says: `1 < x \le 2` is `(1,2]`."""
    if len(chain) == 1:
        low, sign, high = chain[0]
        if names.is_variable(low) and low != r"\infty":
            return latex.compact(low), rf"(-\infty,{high}{']' if sign != '<' else ')'}"
        if names.is_variable(high):
            return latex.compact(high), rf"{'[' if sign != '<' else '('}{low},\infty)"
    if len(chain) == 2:
        first, second = sorted(chain, key=lambda link: names.is_variable(link[0]))
        if first[2] == second[0] and names.is_variable(first[2]):
            left, right = "[" if first[1] != "<" else "(", "]" if second[1] != "<" else ")"
            return latex.compact(first[2]), f"{left}{first[0]},{second[2]}{right}"
    return None


def _rows(body: str) -> list[str]:
    """The entries of a matrix, with the shape as the first of them."""
    rows = [latex.cut(row, "&") for row in latex.cut(body, r"\\cr(?![a-zA-Z])") if row]
    return [" ".join(str(len(row)) for row in rows), *(entry for row in rows for entry in row)]


def _bracketed(text: str) -> tuple[str, list[str]] | None:
    """The brackets and the parts of a tuple or interval; None for a single value in brackets, and for anything else."""
    opening, closing = _OPENING.match(text), _CLOSING.search(text)
    if not opening or not closing or closing[0] not in _CLOSERS[opening[0]]:
        return None
    inside = text[opening.end() : closing.start()]
    if min(_depths(inside), default=0) < 0:
        return None  # (1,2),(3,4)
    parts = latex.cut(inside, "[,;]")
    return (opening[0] + closing[0], parts) if len(parts) > 1 else None


def _depths(text: str) -> list[int]:
    depth, depths = 0, []
    for sign in re.sub(r"\\[{}]", "", text):
        depth += (sign in "([{") - (sign in ")]}")
        depths.append(depth)
    return depths


def _is_matching(fits: list[list[bool]]) -> bool:
    """Whether rows and columns can be paired (augmenting paths): with tolerances, taking the first that fits may not do."""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, is_fit in enumerate(fits[row]):
            if is_fit and column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(fits)))
