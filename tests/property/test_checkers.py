"""Any text gets a verdict: random, like LaTeX, with direction marks, surrogates, NUL, full-width digits, deep, or long."""

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from common.protocols import Score
from common.records import Verdict
from common.rewards.checkers import check, gold_fault

TASKS: list[dict[str, Any]] = [
    {"workload": "lsat_ar", "gold": "C"},
    {"workload": "lsat_ar", "gold": "C", "choices": ["Ann", "Bo", "Cy", "Di", "Ed"]},
    {"workload": "sci_xw", "gold": "3.52E-19", "unit": r"$10^{-19} \mathrm{~J}$"},
    {"workload": "sci_jl", "gold": "0"},
    {"workload": "gsm8k", "gold": "1,000"},
    {"workload": "math500", "gold": r"\frac{1}{2}"},
    {"workload": "math500", "gold": r"\{1\pm\sqrt{5},-2\}"},
    {"workload": "math500", "gold": "x^2-1"},
    {"workload": "math500", "gold": r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"},
    {"workload": "math500", "gold": r"x \in [-2,7)"},
    {"workload": "olyphys", "gold": ["$1.5$", "$x=y$"], "tolerance": "0.1"},
    {"workload": "olyphys", "gold": ["$k \\geqslant 2$"], "unit": "%"},
    {"workload": "jsonl", "gold": "7"},
]
PIECES = r"""
    \boxed{ \fbox{ { } \{ \} ( ) [ ] | \frac \frac{ \sqrt[ \sqrt \left( \right) \text{ \pm \mp \cup \in \le < > =
    \approx \cdot \times ^ ^{ _ _{ 1 2.5 .5 007 1e9 -3 10^ e i x M \pi \alpha \infty \sin \log_ ! % \% , ; & \\
    \begin{pmatrix} \end{pmatrix} ' $ / + - * ** ° × 10⁻¹ ３ and or
"""
LATEX = st.lists(st.sampled_from([*PIECES.split(), " "]), max_size=40).map("".join)
TEXT = st.text(st.characters(exclude_categories=()), max_size=80)  # surrogates, marks and NUL among them
RESPONSES = st.one_of(
    TEXT,
    LATEX,
    LATEX.map(lambda text: rf"\boxed{{{text}}}"),
    TEXT.map(lambda text: rf"so \boxed{{{text}}}"),
    st.tuples(TEXT, LATEX).map(lambda parts: rf"<think>{parts[0]}</think>\boxed{{{parts[1]}}}"),
)


def judge(task: dict[str, Any], response: str) -> Score:
    score = Score(**check(task, response))
    assert score.reward == float(score.status == Verdict.OK)
    assert score.status in (Verdict.OK, Verdict.WRONG, Verdict.NO_ANSWER)
    assert "\n" not in score.reason and score.reason and len(score.extracted) <= 200
    (score.reason + score.extracted).encode()  # no lone surrogate: verdicts are written to files
    return score


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task['workload']}-{task['gold']}")
@given(response=RESPONSES)
@example(response="\x00" * 50)
@example(response=r"\boxed{" + "\ud800" * 9 + "}")
@example(response=r"\boxed{" + "\u202e" + "5" + "\u200f}")
@example(response=r"\boxed{" + "９" * 400 + "}")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_gets_a_verdict(task: dict[str, Any], response: str) -> None:
    judge(task, response)


@given(gold=st.one_of(TEXT, LATEX), workload=st.sampled_from(["lsat_ar", "sci_xw", "gsm8k", "math500", "olyphys"]))
@example(gold="}{", workload="math500")
@example(gold="1\\", workload="math500")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_gold_without_a_fault_is_right_as_written(gold: str, workload: str) -> None:
    task = {"workload": workload, "gold": gold}
    if gold_fault(task) is None and "think>" not in gold:
        score = judge(task, rf"\boxed{{{gold}}}")
        assert score.status == Verdict.OK


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task['workload']}-{task['gold']}")
@pytest.mark.parametrize(
    "response",
    [
        "word " * 20_000,
        r"\boxed{" + "1" * 100_000 + "}",
        r"\boxed{" + "{" * 50_000 + "}" * 50_000 + "}",
        r"\boxed{" * 15_000,
        r"\boxed{3}" * 12_000,
        "{" * 100_000,
        "}" * 100_000,
        "\\" * 100_000,
        "<think>" * 15_000 + "</think>",
        r"\boxed{3}</think>" * 5_000 + r"\boxed{4",
        "=" * 100_000,
        "9" * 100_000,
        "answer is " * 10_000,
        "\x00\ud800\u202e９" * 25_000,
    ],
    ids=lambda text: ascii(text[:12]),
)
@pytest.mark.timeout(20)
def test_long_texts_get_a_verdict(task: dict[str, Any], response: str) -> None:
    judge(task, response)
