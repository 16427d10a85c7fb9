r"""What stands left of an equals sign, and words beside an answer: names say nothing, what is done to a name does."""

from typing import Any

import pytest

from common.rewards.checkers import check
from common.rewards.names import fits

GOLDS: list[tuple[str, Any]] = [
    ("gsm8k", "5"),
    ("sci_xw", "5"),
    ("math500", "5"),
    ("math500", r"3\sqrt{2}"),
    ("olyphys", ["2n+k"]),
]

DONE = [
    *[r"\sin x \cos x", "E[X^2]", "E[2X]", r"\langle v^2 \rangle", r"\det(2A)", r"\lim x^2", r"\frac{A}{A}", r"\sin x^2"],
    *[r"\sum x^2", r"\sum 2x", r"\int v^2", r"\max 2a", r"\max x^2", r"\det A^{-1}", r"\deg f^2", r"\arg z^2", r"x \cdot x"],
    *[r"v \times v", r"\Delta(\ln K)", "f(2x)", "f(x^2)", "f(x+1)", r"\tan(A+B)", r"\sin(x^2)", "f^{-1}(x)", r"\max(a, 2b)"],
    *[r"x = \sqrt{x}", "x = -x", "x = x^2", r"v = \ln v", "x = 2y", "x = 4 m", "x = 3", "x = x"],
]
NAMED = [
    *[
        "f(2)",
        "f(-1)",
        "f(x)",
        "f(g(3))",
        r"f(\frac{1}{2})",
        "f^{-1}(2)",
        "f^{(4)}(2)",
        "P(X > 3)",
        r"P(A \cap B)",
        "E[X]",
        "E[X|Y]",
    ],
    *[r"v = \sqrt{gh}", "E = mc^2", r"E = \frac{hc}{\lambda}", "F = -kx", r"t = \ln K", "x = y"],
    *[r"\det A", r"\det(A)", r"\sin x", r"\cos \angle ABC", r"\max(a, b)", r"\max f(x)", r"\lim_{x \to 0} x^2", r"\arg z"],
    *[r"\sum_{k=1}^{n} k^2", r"\int_0^1 x^2\,dx", r"\langle x \rangle", r"\frac{F}{A}", r"a \cdot b", "pH", "pK_a", r"m\angle A"],
    *[r"m \angle ABC", r"\Delta H(298 K)", r"\Delta G(\text{H}_2\text{O})", r"\|v\|", "|v|", r"\bar{x}", "x^*"],
    *["x = y", r"E = hc/\lambda", "F = ma", r"v = \frac{d}{t}", "x :"],
]
DONE_WORDS = [
    *["square root of x", "square", "squared", "cube", "cubed", "radius squared", "root", "cube root", "reciprocal"],
    *[
        "reciprocal of x",
        "logarithm",
        "log of K",
        "cost minus",
        "-x",
        "x times two",
        "answer times two",
        "one third",
        "sin x",
        "lnK",
    ],
    *["halved", "half of total", "half", "triple the total", "doubled", "third of total", "three quarters", "square of x"],
    *["Counterexample", "Attempt", "Partial"],
]
NAMED_WORDS = [
    *["half-life", "Number of triples", "Area of square", "Total cost", "Average speed", "Final score", "Gross profit"],
    *["Number of zeros", "First term", "Number of times", "Second number"],
]
DENIED = [
    *["contradiction", "contradicts", "incorrectly", "fails", "failed", "extraneous", "scratch that", "recheck", "verify"],
    *[
        "absurd",
        "hypothetical",
        "draft",
        "candidate",
        "conjecture",
        "(check)",
        "times 3",
        "times as many",
        "times faster",
        "times x",
    ],
]
BESIDE = ["hrs", "min", "lbs", "ppm", "ways", "total", "(exact)", "times", "times per day"]


def accepted(form: str, golds: list[tuple[str, Any]] = GOLDS) -> list[bool]:
    return [is_right(workload, gold, form.replace("#", gold if isinstance(gold, str) else gold[0])) for workload, gold in golds]


def is_right(workload: str, gold: Any, answer: str, **task: Any) -> bool:
    return bool(check({"workload": workload, "gold": gold, **task}, rf"\boxed{{{answer}}}")["reward"] == 1.0)


def test_what_is_done_to_a_symbol_is_no_name() -> None:
    assert [left for left in DONE if any(accepted(f"{left} = #"))] == []
    values = GOLDS[:4]  # between two equals signs a name is left out where the last is a value
    assert [left for left in NAMED if not all(accepted(f"{left} = #", values))] == []


def test_words_for_what_is_done_are_no_name() -> None:
    for form in (r"\text{%s} = #", r"\text{%s: }#", "%s: #"):
        assert [words for words in DONE_WORDS if any(accepted(form % words))] == [], form
    assert [words for words in NAMED_WORDS if not all(accepted(rf"\text{{{words}}} = #"))] == []
    assert not any(accepted("lnK = #")) and not any(accepted("square root of x = #"))


def test_words_and_signs_after_an_answer() -> None:
    assert [words for words in DENIED if any(accepted(rf"# \text{{ {words}}}"))] == []
    assert [words for words in BESIDE if not all(accepted(rf"# \text{{ {words}}}"))] == []
    for sign in (r"\frac", r"\alpha", r"\ell", r"\mu", "]", r"\right]", "[", r"\frac m"):
        assert not any(accepted(f"# {sign}")), sign
    for unit in (r"\mu m", r"\,\mu\text{m}", r"\frac{\text{m}}{\text{s}}", r"\text{ [m]}"):
        assert all(accepted(f"# {unit}", GOLDS[:3])), unit
    assert not is_right("math500", "1,-2", r"1 \text{ extraneous}, -2") and is_right("math500", "1,-2", "1, -2")


@pytest.mark.parametrize(
    "form", [r"\text{The answer is #}", r"# \blacksquare", r"#\tag{1}", "x := #", "# = #", r"\text{Final answer is: }#"]
)
def test_what_stands_around_a_whole_answer(form: str) -> None:
    assert all(accepted(form))


def test_a_value_may_follow_a_sign_of_nearness_and_a_symbol_not() -> None:
    for sign in (r"\simeq", r"\sim", r"\approx"):
        assert all(accepted(f"{sign} #", GOLDS[:4])), sign
    assert not is_right("math500", "x", r"\sim x")
    assert not is_right("math500", "5", r"\text{The answer is not }5") and not is_right(
        "gsm8k", "5", r"\text{The answer is 5 or 6}"
    )


@pytest.mark.parametrize("name", ["|x|", "f(x)", r"|\bar{x}|", r"\sin x", "x^2", "-x"])
def test_an_interval_is_about_a_variable(name: str) -> None:
    for gold, form in [("(3,4]", r"3 < %s \le 4"), ("(3,4]", r"%s \in (3,4]"), (r"(2,\infty)", "%s > 2")]:
        assert not is_right("math500", gold, form % name), form
        assert all(is_right("math500", gold, form % right) for right in ("x", "x_1", r"\theta")), form


def test_a_modulus_is_no_negative_or_complex_number_and_a_conjugate_another_one() -> None:
    for name in (r"\bar{z}", r"\overline{z}", "z^*", "|z|"):
        assert not is_right("math500", "6 - 5i", f"{name} = 6-5i"), name
    assert is_right("math500", "6 - 5i", "z = 6-5i") and is_right("math500", r"\sqrt{61}", r"|z| = \sqrt{61}")
    for workload, gold in [("math500", r"-\sqrt{3}"), ("gsm8k", "-5"), ("sci_xw", "-5"), ("math500", "-5")]:
        assert not is_right(workload, gold, f"|x| = {gold}") and is_right(workload, gold, f"x = {gold}")
    assert fits(r"\bar{x}", "-5") and fits(r"\bar{x}", "x_i") and not fits(r"\|v\|", "-5")


def test_an_option_whose_text_looks_like_a_label() -> None:
    texts = [
        "Venezuela: Kayne Yemen: Jaramillo Zambia: Landon",
        "Venezuela: Landon Yemen: Kayne",
        "Yemen: Jaramillo Zambia: Landon",
    ]
    choices = [f"({letter}){text}" for letter, text in zip("ABC", texts, strict=True)]
    for form in ("%s", r"\text{%s}", "A. %s", r"\text{(A) %s}", r"\text{Answer: %s}", "The answer is %s"):
        assert is_right("lsat_ar", "A", form % texts[0], choices=choices), form
        assert not any(is_right("lsat_ar", "A", form % text, choices=choices) for text in texts[1:]), form
