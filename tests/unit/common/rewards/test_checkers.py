"""Which rule a workload has, verdicts with their reasons, and the wrong verdicts that math-verify alone is known for."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.config_workload import SCHEMAS
from common.protocols import Score
from common.records import Verdict
from common.rewards.checkers import CHECKED, MAX_CHARACTERS, check, gold_fault

CHOICES = ["(A)one", "(B)two", "(C)three", "(D)four", "(E)five"]


def verdict(workload: str, gold: str | list[str], response: str, **task: Any) -> Score:
    return Score(**check({"workload": workload, "gold": gold, **task}, response))


def is_right(workload: str, gold: str | list[str], answer: str, **task: Any) -> bool:
    return verdict(workload, gold, rf"So $\boxed{{{answer}}}$.", **task).status == Verdict.OK


def test_all_workloads_with_a_schema_are_checked() -> None:
    assert frozenset(SCHEMAS) == CHECKED


@pytest.mark.parametrize("workload", sorted(CHECKED))
@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("", r"no \boxed{}"),
        ("The answer is C, that is 5.", r"no \boxed{}"),
        (r"So \boxed{C", r"no complete \boxed{}"),
        (r"So \boxed{5", r"no complete \boxed{}"),
        (r"<think> \boxed{C} and \boxed{5}", "a think block never closes"),
        (r"</think> <think> \boxed{C} and \boxed{5}", "a think block never closes"),
        (r"<think>\boxed{C}\boxed{5}</think> so", r"no \boxed{}"),
        (r"\boxed{5} \boxed{}", "the last box is empty"),
        (r"\boxed{ }", "the last box is empty"),
    ],
)
def test_no_answer(workload: str, response: str, reason: str) -> None:
    gold = "C" if workload == "lsat_ar" else "5"
    assert verdict(workload, gold, response) == Score(reward=0.0, status=Verdict.NO_ANSWER, reason=reason)


@pytest.mark.parametrize(
    ("workload", "gold", "task", "answer", "status", "reason"),
    [
        ("lsat_ar", "C", {}, "(C)", Verdict.OK, "C is C"),
        ("lsat_ar", "C", {}, "D", Verdict.WRONG, "D is not C"),
        ("lsat_ar", "C", {}, "A or C", Verdict.WRONG, "the answer is not one of the options"),
        ("lsat_ar", "C", {"choices": CHOICES}, "three", Verdict.OK, "C is C"),
        ("sci_xw", "3.4", {}, "3.2", Verdict.WRONG, "3.2 is not within 5 % of 3.4"),
        ("sci_jl", "3.4", {}, "3.3", Verdict.OK, "3.3 is within 5 % of 3.4"),
        ("sci_xw", "3.4", {}, "big", Verdict.WRONG, "the answer is not one number"),
        ("gsm8k", "18", {}, "19", Verdict.WRONG, "19 is not equal to 18"),
        ("math500", r"\frac{1}{2}", {}, "0.5", Verdict.OK, r"0.5 is equal to \frac{1}{2}"),
        ("olyphys", ["$4.2$"], {"tolerance": "1e-1"}, "4.4", Verdict.WRONG, "4.4 is not within 0.1 of $4.2$"),
        ("olyphys", ["$1$", "$2$"], {}, "1", Verdict.WRONG, "1 is not equal to $1$, $2$"),
    ],
)
def test_a_verdict_says_why(workload: str, gold: Any, task: dict[str, Any], answer: str, status: Verdict, reason: str) -> None:
    score = verdict(workload, gold, rf"Thus \boxed{{{answer}}}.", **task)
    assert score == Score(reward=float(status == Verdict.OK), status=status, extracted=answer, reason=reason)


def test_long_answers() -> None:
    long = "1" * (MAX_CHARACTERS + 1)
    score = verdict("math500", "5", rf"\boxed{{{long}}}")
    assert (
        score.status == Verdict.WRONG
        and score.reason == "the answer has 501 characters, more than 500"
        and len(score.extracted) == 200
    )
    assert is_right("math500", long, long)  # exactly the gold
    assert not is_right("math500", long, long + "+0")
    assert is_right("math500", "5", "5" + " " * 600)


def test_reasons_are_one_short_line() -> None:
    score = verdict("math500", "5", "\\boxed{1\n+\n" + "x" * 300 + "}")
    assert "\n" not in score.reason and len(score.reason) < 200


CHARGE = {"workload": "sci_xw", "gold": "3.52E-19", "unit": r"$10^{-19} \mathrm{~J}$"}


@pytest.mark.parametrize(
    "answer",
    [
        "3.52e-19",
        r"3.52 \times 10^{-19}",
        "3.52",
        "3.5",
        "3.69e-19",
        r"3.52\ \mathrm{J}",
        r"3.52 \times 10^{-19} \mathrm{~J}",
        "3.696",
    ],
)
def test_where_the_prompt_states_the_power_the_mantissa_is_enough(answer: str) -> None:
    assert check(CHARGE, rf"\boxed{{{answer}}}")["reward"] == 1.0


@pytest.mark.parametrize("answer", ["3.52e-20", "35.2", "0.352", "-3.52", "-3.52e-19", "3.7", "3.52e-38", "0", "3.52e19"])
def test_the_mantissa_is_enough_within_the_tolerance_alone(answer: str) -> None:
    assert check(CHARGE, rf"\boxed{{{answer}}}")["reward"] == 0.0


def test_without_the_power_in_the_unit_the_mantissa_is_wrong() -> None:
    assert not is_right("sci_xw", "3.52E-19", "3.52", unit=r"$\mathrm{J}$")
    assert not is_right("sci_xw", "3.52E-19", "3.52")
    assert not is_right("gsm8k", "3.52E-19", "3.52", unit=r"$10^{-19} \mathrm{~J}$")
    percent = {"unit": r" $10^{-3} \%$"}
    assert is_right("sci_xw", "1.25E-3", "1.25", **percent) and not is_right("sci_xw", "1.25E-3", "1.25e-2", **percent)


def test_sciences() -> None:
    assert is_right("sci_xw", "0", "0.0") and not is_right("sci_xw", "0", "0.001")
    assert is_right("sci_xw", "2.534324263", r"2 \sqrt{2} \sin \frac{\pi}{2 \sqrt{2}}")
    assert is_right("sci_xw", "1838.50666349", r"2400\cos({40}^{\circ})")
    assert is_right("sci_xw", "89,034.79", r"\$89{,}034.79") and is_right("sci_xw", "−2", "-2")
    assert is_right("sci_xw", "32", "0.32", unit=" %") and is_right("sci_xw", "32", r"32\%", unit=" %")
    assert is_right("sci_xw", "-5", r"-5\ e", unit=r"$e$")
    assert is_right("sci_xw", "100", "101", tolerance=0.01) and not is_right("sci_xw", "100", "103", tolerance=0.01)
    assert not is_right("sci_xw", "100", r"x = 100 = 7391") and not is_right("sci_xw", "100", "100 or 7391")
    assert not is_right("sci_xw", "5", "5x")


def test_values_of_expressions_for_numbers() -> None:
    for answer in (r"\frac{50}{2} = 25", "5^2", "x = 5^2 = 25", r"5 \times 5", "25 more", "20+5"):
        assert is_right("gsm8k", "25", answer), answer
    for answer in ("25 = 26", "26 = 25", "x = 26 = 25", "2x = 25", "25x", r"\frac{25}{0}", "y = x = 25 or 26"):
        assert not is_right("gsm8k", "25", answer), answer


def test_jsonl_by_kind() -> None:
    """A kind of its own changes how answers are compared; math and letters need a box, numbers do not."""
    assert verdict("jsonl", "1,000", "so she has 1000 apples").status == Verdict.OK
    assert verdict("jsonl", "2", "first => 2, then => 3", answer_pattern=r"=> (\d+)").status == Verdict.WRONG
    assert verdict("jsonl", "0.5", r"\boxed{\frac{1}{2}}").status == Verdict.OK
    assert verdict("jsonl", "blue", "Answer: blue").status == Verdict.OK
    assert verdict("jsonl", "5", "<think> 5").status == Verdict.NO_ANSWER
    assert verdict("jsonl", "x+1", r"\boxed{1+x}", answer_kind="math").status == Verdict.OK
    assert verdict("jsonl", "x+1", "= 1+x", answer_kind="math").status == Verdict.NO_ANSWER
    assert verdict("jsonl", "B", r"\boxed{(B)}", answer_kind="letter").status == Verdict.OK
    assert verdict("jsonl", "B", "answer: b", answer_kind="letter", answer_pattern="answer: (.)").status == Verdict.OK
    assert verdict("jsonl", "B", "b", answer_kind="letter", answer_pattern="answer: (.)").status == Verdict.NO_ANSWER


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        ({"workload": "lsat_ar", "gold": "C"}, None),
        ({"workload": "lsat_ar", "gold": "c"}, None),
        ({"workload": "lsat_ar", "gold": "F"}, "the answer is none of the letters A, B, C, D, E"),
        ({"workload": "lsat_ar", "gold": "E", "choices": ["a"] * 4}, "the answer is none of the letters A, B, C, D"),
        ({"workload": "lsat_ar", "gold": ["A"]}, "the answer is empty or no text"),
        ({"workload": "sci_xw", "gold": "−1.5"}, None),
        ({"workload": "sci_xw", "gold": "3 or 4"}, "the answer is not a number"),
        ({"workload": "sci_xw", "gold": "3", "unit": 5}, "the unit is no text"),
        ({"workload": "gsm8k", "gold": "1,450,000"}, None),
        ({"workload": "gsm8k", "gold": ""}, "the answer is empty or no text"),
        ({"workload": "gsm8k", "gold": None}, "the answer is empty or no text"),
        ({"workload": "gsm8k"}, "the answer is empty or no text"),
        ({"workload": "gsm8k", "gold": "5", "tolerance": "small"}, "the tolerance must be a number from 0 on, got 'small'"),
        ({"workload": "gsm8k", "gold": "5", "tolerance": -1}, "the tolerance must be a number from 0 on, got -1"),
        ({"workload": "gsm8k", "gold": "5", "tolerance": True}, "the tolerance must be a number from 0 on, got True"),
        ({"workload": "math500", "gold": r"\frac{1}{2"}, "the answer's braces are not balanced"),
        ({"workload": "math500", "gold": r"\{1,2\}"}, None),
        ({"workload": "math500", "gold": "1" * 501}, "the answer has more than 500 characters"),
        ({"workload": "olyphys", "gold": []}, "the answer is empty or no text"),
        ({"workload": "olyphys", "gold": ["1", " "]}, "the answer is empty or no text"),
        ({"workload": "olyphys", "gold": ["$1$", "$2$"], "tolerance": "1e-1,1e-2"}, None),
        ({"workload": "olyphys", "gold": ["$1$, $2$"], "tolerance": [0.1, 0.2]}, None),
        ({"workload": "olyphys", "gold": ["$1$"], "tolerance": "1e-1,1e-2"}, "the tolerance has 2 values for 1 answers"),
        ({"workload": "jsonl", "gold": "blue"}, None),
        ({"workload": "jsonl", "gold": "blue", "answer_kind": "letter"}, "the answer is none of the letters A, B, C, D, E"),
        ({"workload": "jsonl", "gold": "}", "answer_kind": "math"}, "the answer's braces are not balanced"),
    ],
)
def test_faults_of_golds(task: dict[str, Any], fault: str | None) -> None:
    assert gold_fault(task) == fault


# What math-verify 0.9.0 alone accepts, each a way to be rewarded for nothing
FALSE_ACCEPTS = [
    ("math500", r"3.52 \times 10^{-19}", r"3.52 \times 10^{-20}"),  # tiny numbers
    ("math500", r"3.52 \times 10^{-19}", r"-3.52 \times 10^{-19}"),
    ("math500", "0.00000035", "0.00000070"),
    ("olyphys", r"1.6 \times 10^{-19}", "0"),
    ("sci_xw", "0.00000035", "0.00000070"),
    ("olyphys", r"\frac{GMm}{r^2}", r"\frac{Gm^2}{r^2}"),  # case
    ("olyphys", r"\frac{mv^2}{R}", r"\frac{MV^2}{R}"),
    ("math500", "M", "m"),
    ("math500", "52_8", "52_7"),  # bases
    ("math500", "52_8", "52"),
    ("math500", "60", "0.6"),  # percent without a sign
    ("math500", "0.6", "60"),
    ("math500", "5/2", r"2 \frac{5}{2}"),  # a product read as a mixed number
    ("math500", "11", "5 6"),
    ("math500", r"\frac{5}{2}", r"2(\frac{1}{2})"),
]

FALSE_REJECTS = [
    ("sci_xw", "1.6e-19", "1.6e-19"),
    ("sci_xw", "3.2", "3.2 m/s"),
    ("gsm8k", "1000", r"1\,000"),
    ("sci_xw", "1.6e-19", "1.6·10⁻¹⁹"),
    ("olyphys", r"$I_{\max }=\frac{q_{0}}{\sqrt{2 L C}}$", r"I_{\max}=\frac{q_0}{\sqrt{2CL}}"),
    ("olyphys", r"$I_{\max }=\frac{q_{0}}{\sqrt{2 L C}}$", r"\frac{q_0}{\sqrt{2LC}}"),
    ("lsat_ar", "C", "C. Cy goes first"),
    ("math500", r"\frac{1}{3}", "0.333333"),
    ("math500", "60", r"60\%"),
    ("math500", r"60\%", "0.6"),
]


@pytest.mark.parametrize(("workload", "gold", "answer"), FALSE_ACCEPTS)
def test_known_false_accepts_are_refused(workload: str, gold: str, answer: str) -> None:
    assert not is_right(workload, gold, answer)
    assert is_right(workload, gold, gold)


@pytest.mark.parametrize(("workload", "gold", "answer"), FALSE_REJECTS)
def test_known_false_rejects_are_accepted(workload: str, gold: str, answer: str) -> None:
    assert is_right(workload, gold, answer)


def test_verdicts_that_stay_as_they_are() -> None:
    """By the contract: units are ignored, and a rounded decimal is not the fraction."""
    assert is_right("gsm8k", "5", "5 km") and is_right("gsm8k", "5", "5 m")
    assert not is_right("math500", r"\frac{8}{3}", "2.667") and not is_right("math500", r"\frac{1}{3}", "0.333")


@pytest.mark.parametrize(
    "answer",
    [
        *["9^{9^9}", "9^{9^{9^9}}", "10^{10^{10^{10}}}", "3^{10^9}", "99999999!", "((10!)!)!", r"\binom{10^6}{5\cdot 10^5}"],
        *[
            "1" * 499,
            "(" * 249 + "5",
            "{" * 200 + "6" + "}" * 200,
            r"\frac{" * 60 + "1" + "}{2}" * 60,
            r"\sqrt{" * 80 + "6" + "}" * 80,
        ],
        *[
            r"\sin" * 120,
            "-" * 499 + "x",
            "2^" * 249 + "2",
            "1+" * 249 + "1",
            "1," * 249 + "1",
            "!" * 499,
            "|" * 499,
            "x=" * 249 + "6",
        ],
    ],
)
def test_what_hangs_a_computer_algebra_system_is_refused_at_once(answer: str) -> None:
    for workload in ("math500", "olyphys", "gsm8k", "sci_xw"):
        assert not is_right(workload, "5", answer)


def test_a_task_without_mathematics_imports_no_computer_algebra() -> None:
    code = (
        "import sys; from common.rewards.checkers import check\n"
        "for w, g, a in [('lsat_ar', 'C', '(C)'), ('sci_xw', '3', '3.1 m'), ('gsm8k', '1,000', '1000'),"
        " ('math500', '.5', '1/2')]:\n"
        "   assert check({'workload': w, 'gold': g}, '\\\\boxed{' + a + '}')['reward'] == 1.0\n"
        "print(sorted({'sympy', 'math_verify', 'mpmath'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_examples_of_the_documentation_run() -> None:
    text = (Path(__file__).parents[4] / "docs" / "checking.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    call, _, shown = first[first.index("check({") :].partition("\n# ")
    assert eval(call, {"check": check}) == eval(shown)
    names: dict[str, Any] = {}
    exec(second, names)
    assert names["score"]({"gold": "3.4"}, r"\boxed{3.41 m}") == (1.0, "3.41 m against 3.4, within 1 %")
    assert names["score"]({"gold": "3.4"}, r"\boxed{3.5}")[0] == 0.0
    assert names["score"]({"gold": "3.4"}, "3.4") == (0.0, "no number")


@pytest.mark.parametrize(
    ("workload", "gold", "answer", "accepted"),
    [
        ("math500", r"\cos n\pi", "(-1)^n", False),
        ("math500", "y=1/x", "xy=1", False),
        ("math500", r"\ln 2", r"\log 2", False),
        ("math500", "v=2", "u=2", False),
        ("gsm8k", "63", "5 feet 3 inches", False),
        ("gsm8k", "5", "five", False),
        ("math500", r"\frac{1}{2}", r"\sin 30^\circ", True),
        ("olyphys", "f(a)+f(b)", "f(a+b)", True),
        ("math500", "6", "6m", True),
    ],
)
def test_known_limits(workload: str, gold: str, answer: str, accepted: bool) -> None:
    """As docs/checking.md names them."""
    assert is_right(workload, gold, answer) is accepted
