"""Answers that a reviewer broke the checkers with: exceptions, false accepts, slow ones; and realistic ones that were refused."""

import time
from typing import Any

import pytest

from common.records import Verdict
from common.rewards.checkers import check, gold_fault
from common.rewards.values import Unreadable, parse

CHOICES = ["one", "two", "two boys and a girl", "four", "five of the six"]


def status(workload: str, gold: str, answer: str, **task: Any) -> str:
    return str(check({"workload": workload, "gold": gold, **task}, rf"So \boxed{{{answer}}}")["status"])


NUMBERS = ("gsm8k", "sci_xw", "math500")


@pytest.mark.parametrize("workload", [*NUMBERS, "lsat_ar", "olyphys", "jsonl"])
@pytest.mark.parametrize("answer", ["⑤", "❶", "\u1369", "x = ⑤", "5⑤", "²", r"\frac{⑤}{1}", "⑤!", "௰", "Ⅴ"])
def test_odd_digits_are_wrong(workload: str, answer: str) -> None:
    assert status(workload, "C" if workload == "lsat_ar" else "5", answer) == Verdict.WRONG


@pytest.mark.parametrize("text", ["⑤", "\u1369", "x⑤"])
def test_odd_digits_are_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(text)


def test_a_failure_of_the_library_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ValueError("exceeds the limit")

    monkeypatch.setattr("common.rewards.numbers.read", failing)
    assert check({"workload": "gsm8k", "gold": "5"}, r"\boxed{6}")["status"] == Verdict.WRONG
    assert gold_fault({"workload": "gsm8k", "gold": "5"}) is not None


@pytest.mark.parametrize(
    "task",
    [
        {"workload": "gsm8k", "gold": "9" * 5000},
        {"workload": "gsm8k", "gold": f"1/{'9' * 5000}"},
        {"workload": "sci_xw", "gold": "5", "unit": f"$10^{{{'9' * 5000}}}$ J"},
        {"workload": "sci_xw", "gold": "5", "unit": "$10^{999999}$ J"},
        {"workload": "sci_xw", "gold": "5", "unit": "$10^{-401}$ J"},
        {"workload": "sci_xw", "gold": "5", "tolerance": "9" * 5000},
        {"workload": "olyphys", "gold": ["5"], "tolerance": f"0.{'1' * 5000}"},
        *({"workload": name, "gold": gold} for name in ("math500", "sci_xw") for gold in ("$", ",", ".", ".;", r"\left", "2\\")),
        {"workload": "sci_xw", "gold": r"2{.\left%"},
    ],
    ids=lambda task: f"{task['workload']}-{str(task)[-30:]}",
)
def test_faults_of_golds_are_told(task: dict[str, Any]) -> None:
    assert gold_fault(task) is not None


@pytest.mark.parametrize("workload", NUMBERS)
@pytest.mark.parametrize(
    "answer",
    [
        *(
            rf"5\text{{ {word}}}"
            for word in ("million", "billion", "thousand", "hundred", "dozen", "score", "gross", "lakh", "crore")
        ),
        *(
            rf"5~\mathrm{{{word}}}"
            for word in ("million", "zillion", "hundredths", "sixths", "billionths", "nano", "kilo", "twofold")
        ),
        *(f"5 {{{word}}}" for word in ("million", "false", "incorrect", "maybe", "or so")),
        *(r"5\text{ ft }6\text{ in}", r"5\text{ft}6\text{in}", "5{}6", "5()3", "5[]3", r"5\text{ }6", r"5\text{ remainder }2"),
        *(r"5\text{ per }3", r"5\%{}6", "5{}^2", "5()^2", "5 apples 6", "5 m 3", "5 h3 min", "5 apples and six pears"),
        *(r"x=6 \quad x=5", "x=6y=5", r"x=\{6\}=5", r"\text{6 or}=5", r"x=2\cdot3=5", r"x=\sqrt{36}=5", "x=(6,7)=5"),
        *("x = 3 = 4 = 5", "x = six = 5", "2+2 = 5", r"6 \approx 5", r"x \approx 4.99 \approx 5 \approx 5.01", r"4.98 \approx 5"),
        *(r"\not=5", r"\text{not}=5", r"\text{wrong}=5", "not = 5", r"x \not= 5", r"x \neq 5", r"\neg 5", r"\lnot x = 5"),
        *(r"5\text{ false}", "5 none of these", r"5\text{ excluding}", r"5 \text{ isn't it}", "5 never", "wrong: 5"),
        *("5\u0338", "\u03385", r"\sum_{k=1}^{5}1 \text{ (or 6)}", r"5\text{ (or 7777)}", r"\cancel{5}", r"\phantom{5}"),
        *(
            "x+y = 5",
            "-x = 5",
            r"\sqrt{x} = 5",
            "2x = 5",
            "OR = 5",
            r"\text{The wrong answer is }5",
            r"5 and x",
            "5 or 6 boys",
            "5(6)",
        ),
        *(r"\begin{cases}5\\6\end{cases}", r"5 \pm 4", r"\begin{aligned}5\\6\end{aligned}"),
    ],
)
def test_false_accepts(workload: str, answer: str) -> None:
    assert status(workload, "5", answer) != Verdict.OK


@pytest.mark.parametrize(
    "answer", [r"0\text{ (or 7777)}", r"0\text{ is false}", r"0\text{ or }x", r"\sum_{k=1}^{0}1 \text{ (or 6)}"]
)
def test_words_are_no_factors_of_zero(answer: str) -> None:
    assert status("math500", "0", answer) == status("gsm8k", "0", answer) == Verdict.WRONG


@pytest.mark.parametrize("workload", NUMBERS)
@pytest.mark.parametrize(
    "answer", [r"5\text{ million}", "5 million", r"5~\mathrm{million}", "5{million}", r"\$5\text{ million dollars}"]
)
def test_scales_count(workload: str, answer: str) -> None:
    assert status(workload, "5000000", answer) == Verdict.OK


@pytest.mark.parametrize("workload", ["gsm8k", "math500"])
@pytest.mark.parametrize("answer", [r"249 \approx 250", r"249 \approx 250 \approx 251", r"250 \approx 251", r"249.9 \approx 250"])
def test_an_approximation_has_an_exact_side(workload: str, answer: str) -> None:
    assert status(workload, "250", answer) == Verdict.WRONG


@pytest.mark.parametrize("gold", [r"\frac{22}{7}", "3.14"])
@pytest.mark.parametrize(
    "answer", [r"\frac{22}{7} \approx 3.14", r"x = \frac{22}{7} \approx 3.14", r"x = \frac{44}{14} = \frac{22}{7} \approx 3.14"]
)
def test_of_an_approximation_either_side_is_right(gold: str, answer: str) -> None:
    assert status("math500", gold, answer) == status("gsm8k", gold, answer) == Verdict.OK


@pytest.mark.parametrize(
    "answer",
    [
        r"\not C",
        r"\neg C",
        r"\neq C",
        r"\cancel{C}",
        r"\overline{C}",
        r"\phantom{C}",
        r"\sqrt{C}",
        r"C\D",
        "C̸",
        "C⃒",
        r"\lnot C",
        "not: C",
        "C. none of the above",
        "C. wrong",
        "C. the second option",
        "C. second",
        r"C. \D",
        "C. also D",
        "C. not",
    ],
)
@pytest.mark.parametrize("choices", [[], CHOICES])
def test_letters_struck_out_or_denied(answer: str, choices: list[str]) -> None:
    assert status("lsat_ar", "C", answer, choices=choices) == Verdict.WRONG


@pytest.mark.parametrize("answer", ["C (five)", "C. five", "C - one", "C. four", "C: two boys and", "C. two boys or a girl"])
def test_a_letter_with_another_text(answer: str) -> None:
    is_prefix = answer == "C: two boys and"
    assert (status("lsat_ar", "C", answer, choices=CHOICES) == Verdict.OK) == is_prefix


@pytest.mark.parametrize(
    "answer", ["C (five)", "C - five", "`C`", "'C'", r"\text{C}", r"\color{red}{C}", r"\operatorname{C}", "**C**", "Answer: C"]
)
def test_ways_to_write_a_letter(answer: str) -> None:
    assert status("lsat_ar", "C", answer, choices=["one", "two", "five"]) == Verdict.OK


@pytest.mark.parametrize("workload", ["gsm8k", "sci_xw", "math500", "olyphys"])
@pytest.mark.parametrize(
    "answer", [r"2^{-10^{12}}", r"(-10^{12}+0.5)!", r"(-999999999999.5)!", r"\binom{-999999999999.5}{2.5}", r"(10^{12})!"]
)
def test_nothing_takes_long(workload: str, answer: str) -> None:
    start = time.process_time()
    assert status(workload, "5", answer) == Verdict.WRONG
    assert time.process_time() - start < 2  # seconds; it was minutes


@pytest.mark.parametrize("workload", ["gsm8k", "sci_xw", "math500", "olyphys"])
@pytest.mark.parametrize(
    "answer",
    [
        r"\mathbf{42}",
        r"\boldsymbol{42}",
        r"\mathrm{42}",
        r"\textbf{42}",
        r"\underline{42}",
        r"\color{blue}{42}",
        r"{\color{red} 42}",
        r"\therefore 42",
        r"\therefore x = 42",
        r"\text{Answer: }42",
        r"\text{approximately }42",
        r"\text{about } 42",
        r"\approx 42",
        r"\begin{aligned}x &= 42\end{aligned}",
        r"\text{Total: }42",
        r"\text{\$}42",
        r"\textdollar 42",
        r"\boldsymbol{x = 42}",
        "42 boys and girls",
        "42 apples",
        r"42{}^\circ\text{C}",
        r"\text{The total is }42",
        r"\text{The answer is: } 42",
        r"\Large 42",
        "42 hours a day",
        "AB = 42",
        r"42\text{ students}",
        r"(42)\ \text{m}",
        r"x = 6 \cdot 7 = 42",
        r"\sqrt{1764}\ \text{m}",
        r"\text{42}",
        r"a = bc = 42",
        r"\textcolor{red}{\textbf{42}}",
        "42~\\text{kg m/s}^2",
        "42 kg m2",
        r"42\ \mathrm{m^{2}\,s^{-1}}",
    ],
)
def test_wrapped_answers(workload: str, answer: str) -> None:
    assert status(workload, "42", answer) == Verdict.OK


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("6.63e-34", r"(6.63 \times 10^{-34})\ \text{J s}"),
        ("6.63e-34", r"6.63\cdot{}10^{-34}"),
        ("1.6e-19", r"1.6\text{e-19}"),
        ("1.6e-19", r"1.6 \mathrm{e}{-19}"),
        ("3.5", r"(3.5)\ \text{m}"),
        ("3.2", r"\sqrt{10.24} \approx 3.2"),
        ("3.2", r"\sqrt{10.24}\ \text{m}"),
        ("3.2", r"3.2 \pm 0.1"),
        ("3.2", r"x = (3.2 \pm 0.1)\ \text{m}"),
        ("3.2", r"E = hc/\lambda = 3.2"),
        ("3.16", r"v = \sqrt{10} = 3.16\ \text{m/s}"),
    ],
)
def test_science(gold: str, answer: str) -> None:
    assert status("sci_xw", gold, answer) == Verdict.OK


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"x \ge 2", "x>=2"),
        (r"x \le 2", "x<=2"),
        (r"\emptyset", r"\{\}"),
        (r"\emptyset", r"\varnothing"),
        ("G", r"G\text{ units}"),
        (r"\text{Evelyn}", r"\textbf{Evelyn}"),
        (r"x+1", r"\mathbf{x+1}"),
        (r"\text{June 20}", r"\text{June 20}"),
        (r"\text{June 20}", r"\textbf{June 20}"),
        ("(1,2)", "(x,y) = (1,2)"),
        ("2x", r"y = x + x = 2x"),
    ],
)
def test_expressions(gold: str, answer: str) -> None:
    assert status("math500", gold, answer) == Verdict.OK


@pytest.mark.parametrize("answer", ["(x,y) = (2,1)", "(x,y) = (1,2) = (2,1)", "(x,y) = (2,1) = (1,2)", "(2,1) = (1,2)", "(x,y)"])
def test_a_tuple_with_names(answer: str) -> None:
    assert status("math500", "(1,2)", answer) == Verdict.WRONG


@pytest.mark.parametrize("answer", [r"G\text{ or H}", r"G\text{ units}\text{ or so}", r"G = H = 2", r"x = H = G"])
def test_a_symbol_with_words(answer: str) -> None:
    assert status("math500", "G", answer) == Verdict.WRONG
