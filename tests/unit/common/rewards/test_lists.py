"""Lists, tuples, intervals, equations and tolerances, and the judged answers of OlympiadBench."""

import itertools
import json
import random
from fractions import Fraction
from pathlib import Path

import pytest

from common.rewards import latex
from common.rewards.checkers import check
from common.rewards.lists import Matcher, _is_matching, items


def same(gold: str, answer: str) -> bool:
    return Matcher().is_same(latex.plain(gold), latex.plain(answer))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1, -2", ["1", "-2"]),
        (r"\{1,2\}", ["1", "2"]),
        (r"1 \text{ and } 2", ["1", "2"]),
        ("1 or 2", ["1", "2"]),
        ("1; 2", ["1", "2"]),
        ("58,500", ["58,500"]),  # one number
        ("2500,7500", ["2500", "7500"]),
        ("(1,2),(3,4)", ["(1,2)", "(3,4)"]),
        ("(-1,0]", ["(-1,0]"]),
        (r"3 \pm 2\sqrt{2}", [r"3 + 2\sqrt{2}", r"3 - 2\sqrt{2}"]),
        (r"\{1\pm\sqrt{5},-2\}", [r"1+\sqrt{5}", r"1-\sqrt{5}", "-2"]),
        (r"\begin{pmatrix} 1, 2 \end{pmatrix}", [r"\begin{pmatrix} 1", r"2 \end{pmatrix}"]),
        (r"f(x)=x, f(x)=-x", ["f(x)=x", "f(x)=-x"]),
        (r"\text{one and two}", ["one", "two"]),
        (r"\text{Evelyn}", [r"\text{Evelyn}"]),
        (r"\{1,2\} \cup \{3\}", [r"\{1,2\} \cup \{3\}"]),
        ("5", ["5"]),
        (",", [","]),
    ],
)
def test_items(text: str, parts: list[str]) -> None:
    assert items(text) == parts


EQUAL = [
    (r"\text{even}", "Even"),
    (r"\text{Evelyn}", r"\textbf{Evelyn}"),
    ("1,-2", "-2, 1"),
    ("1,-2", r"\{1,-2\}"),
    ("1,-2", "-2 and 1"),
    ("1,-2", "x = -2, x = 1"),
    ("1,-2", "x = 1, -2"),
    ("3, 5, 7", r"7,\ 5,\ 3"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"),
    (r"1 \pm \sqrt{19}", r"1-\sqrt{19} \text{ or } 1+\sqrt{19}"),
    (r"\sqrt[3]{\frac{5}{12}}, -\sqrt[3]{\frac{5}{12}}", r"y = \pm \sqrt[3]{\frac{5}{12}}"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
    (r"\left( \frac{3}{2}, -13 \right)", "(1.5,-13)"),
    ("(1,2), (3,4)", "(3,4),(1,2)"),
    (r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}", r"\begin{bmatrix}-\frac{1}{3}\\\frac{2}{3}\\\frac{5}{3}\end{bmatrix}"),
    (
        r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}",
        r"\begin{pmatrix} -1 & 0 \\[2pt] 0 & -1 \\ \end{pmatrix}".replace("[2pt]", ""),
    ),
    ("(3,4]", r"\left(3, 4\right]"),
    ("(3,4]", "3 < x \\le 4"),
    (r"x \in [-2,7]", "[-2,7]"),
    (r"x \in [-2,7]", r"-2 \leq x \leq 7"),
    ("[-2,7]", r"x \in [-2,7]"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(3,\infty)\cup(-\infty,2)"),
    (r"(-\infty, 2) \cup (3, \infty)", r"x \in (-\infty, 2) \cup (3, +\infty)"),
    (r"(2,\infty)", "x > 2"),
    (r"k \geqslant 2", r"2 \le k"),
    (r"k \geqslant 2", r"[2,\infty)"),
    ("x+y<3", "3>y+x"),
    ("x+y<3", "2x+2y<6"),
    ("x=5", "5"),
    ("5", "x=5"),
    ("5", r"\theta = 2+3 = 5"),
    (r"\frac{8}{3}", r"\frac{8}{3} \approx 2.667"),
    (r"\frac{8}{3}", r"x = \frac{8}{3} \approx 2.667"),
    ("14", r"2 \cdot 7 = 14"),
    ("y = 2x + 3", "y=3+2x"),
    ("y = 2x + 3", "2x - y + 3 = 0"),
    ("5x - 7y + 11z + 4 = 0", "-5x+7y-11z=4"),
    ("x^2+y^2=1", r"x^{2}=1-y^2"),
    (r"I_{\max }=\frac{q_{0}}{\sqrt{2 L C}}", r"\frac{q_0}{\sqrt{2CL}}"),
    (r"a_{n} =2 n    +1", "a_n=2n+1"),
    (r"\Phi (x,y)=\frac{x+1}{2y}", r"\Phi (x,    y)=\frac{x}{2y} + \frac{1}{2y}"),
    (r"f(x)=-1, f(x)=x+1", "f(x)=x+1 and f(x)=-1"),
    (r"\Delta p\approx -\frac{\hbar \omega_{L}}{c}", r"-\frac{\omega_{L} \hbar}{c}"),
    (r"f(x)=ax, where $a$ is an integer", r"f(x)=ax,where $a$ is an integer"),
]

DIFFERENT = [
    ("1,-2", "1"),
    ("1,-2", "1, -2, 3"),
    ("1,-2", "(1,-2)"),
    ("1", "1, -2"),
    ("1", "1 or -2"),
    ("1", r"1 \text{ or } 2"),
    ("1,1", "1"),
    ("1,2", "1,1"),
    (r"1 \pm \sqrt{19}", r"1 + \sqrt{19}"),
    ("5", r"5 \pm 1"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "1,2"),
    ("(1,2)", r"\{1,2\}"),
    ("(1,2)", "(1,2,3)"),
    ("(1,2),(3,4)", "(1,2,3,4)"),
    ("(3,4]", "(3,4)"),
    ("(3,4]", r"3 \le x \le 4"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{vmatrix} 1 \\ 2 \end{vmatrix}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "(1,2)"),
    (r"x \in [-2,7]", r"y \in [-2,7]"),
    (r"x \in [-2,7]", r"not x \in [-2,7]"),
    (r"x \in [-2,7]", r"-2 \le y \le 7"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty, 2)"),
    (r"k \geqslant 2", "k > 2"),
    (r"k \geqslant 2", r"k \le 2"),
    (r"k \geqslant 2", r"m \ge 2"),
    (r"k \geqslant 2", "2"),
    ("x+y<3", "x+y>3"),
    ("x+y<3", r"x+y \le 3"),
    ("x+y<3", "-x-y<-3"),
    ("x=5", "y=5"),
    ("x=5", "x=6"),
    ("5", "2x=5"),
    ("5", "x=4=5"),
    ("5", "5=x+1"),
    ("5", r"4 \approx 5"),
    (r"\frac{8}{3}", r"3 \approx \frac{8}{3}"),
    (r"\frac{8}{3}", "2.667"),
    ("y = 2x + 3", "y = 2x"),
    ("y = 2x + 3", "2x+3=Y"),
    ("y = 2x + 3", "x = 2y + 3"),
    ("x^2+y^2=1", "x^{2}+y^{2}=2"),
    ("x^2+y^2=1", "x^{2}-y^{2}=1"),
    ("x^2=4", "x=2"),
    (r"I=\frac{q}{m}", r"\frac{q}{M}"),
    ("f(x)=x, f(x)=-x", "f(x)=x"),
    ("-1", "f(x)=x+1 and f(x)=-1"),
    (r"\{1\}", r"\{2\}"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal(gold: str, answer: str) -> None:
    assert same(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(gold: str, answer: str) -> None:
    assert not same(gold, answer)


def test_pairing_agrees_with_trying_all_orders() -> None:
    chance = random.Random(0)
    for size, _ in itertools.product(range(5), range(80)):
        fits = [[chance.random() < 0.5 for _ in range(size)] for _ in range(size)]
        brute = any(all(fits[row][column] for row, column in enumerate(order)) for order in itertools.permutations(range(size)))
        assert _is_matching(fits) is brute


def olympiad(gold: str | list[str], response: str, **task: object) -> bool:
    return check({"workload": "olyphys", "gold": gold, **task}, response)["reward"] == 1.0


def test_tolerances_are_absolute_inclusive_and_belong_to_one_gold_each() -> None:
    gold = ["$7 \\times 10^{35}$", "$0.002$"]
    both = r"\boxed{0.001, 7.1 \cdot 10^{35}}"
    assert olympiad(gold, both, tolerance=[1e34, 1e-3])
    assert olympiad(gold, both, tolerance="1e34,1e-3")
    assert not olympiad(gold, both, tolerance=["1e33", "1e-3"])
    assert not olympiad(gold, both, tolerance=["1e-3", "1e34"])
    assert not olympiad(gold, both)
    assert olympiad("0.003, 5.233", r"\boxed{0.002, 5.234}", tolerance="1e-3")
    assert olympiad(["4.2"], r"\boxed{4.3}", tolerance="1e-1", unit="%")
    assert olympiad(["4.2"], r"\boxed{4.2\%}", tolerance="1e-1", unit="%")
    assert not olympiad(["4.2"], r"\boxed{4.31}", tolerance="1e-1", unit="%")
    assert not olympiad(["4.2"], r"\boxed{0}", tolerance="1e-1", unit="%")


def test_with_tolerances_the_pairing_is_not_greedy() -> None:
    """1.5 fits both golds, 1.0 the first alone."""
    assert olympiad(["1.4", "1.9"], r"\boxed{1.5, 1.0}", tolerance="0.41")


def test_several_answers_may_have_a_box_each() -> None:
    gold = ["$69$", "$84$"]
    assert olympiad(gold, r"\boxed{69}, \boxed{84}")
    assert olympiad(gold, r"first \boxed{84} then \boxed{69}.")
    assert olympiad(gold, r"\boxed{70}, so \boxed{69} and \boxed{84}")  # the last two
    assert not olympiad(gold, r"\boxed{69}, so \boxed{84} and \boxed{70}")
    assert not olympiad(gold, r"\boxed{69}")
    assert not olympiad(gold, r"\boxed{69, 84, 85}")
    assert not olympiad(gold, r"<think>\boxed{69}</think>\boxed{84}")
    assert not olympiad(["$69$"], r"\boxed{69}, \boxed{84}")  # one answer: the last box
    assert not check({"workload": "math500", "gold": "69, 84"}, r"\boxed{69}, \boxed{84}")["reward"]


def test_relative_tolerance_of_other_workloads() -> None:
    task = {"workload": "math500", "gold": "200", "tolerance": 0.01}
    assert check(task, r"\boxed{202}")["reward"] == 1.0
    assert check(task, r"\boxed{203}")["reward"] == 0.0
    assert check({**task, "workload": "gsm8k"}, r"\boxed{198}")["reward"] == 1.0


def test_judged_answers_of_olympiadbench(data_dir: Path) -> None:
    """Their 36 verdicts, with their tolerances."""
    examples = json.loads((data_dir / "olyphys" / "scoring_examples.json").read_text(encoding="utf-8"))
    judged = [(example["GT"], answer) for example in examples for answer in example["Ans"]]
    assert len(judged) == 36
    for gold, answer in judged:
        given = olympiad([gold], rf"\boxed{{{answer['answer']}}}", tolerance=answer.get("precision"))
        assert given is answer["equal"], (gold, answer)


def test_a_tolerance_is_exact() -> None:
    assert olympiad(["0.3"], r"\boxed{0.1}", tolerance="0.2")  # 0.3 - 0.1 > 0.2 in floats
    assert Fraction("0.3") - Fraction("0.1") == Fraction("0.2") and 0.3 - 0.1 != 0.2
