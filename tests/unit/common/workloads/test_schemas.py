"""Each schema: what a row becomes, what is left out, and how a broken row is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from common.protocols import Problem
from tests.workload_lab import agieval, ar_lsat, ar_question, load, olympiad, scibench

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."


def problem(name: str, row: dict[str, Any], folder: Path) -> Problem:
    (only,) = load(name, [row], folder).problems
    return only


def test_lsat_rows_of_both_schemas_make_the_same_problem(tmp_path: Path) -> None:
    problems = [problem("lsat_ar", row, tmp_path) for row in (agieval(), ar_lsat(ar_question()))]
    assert problems[0].prompt == problems[1].prompt
    assert problems[0].prompt == (
        "<user>Five sit in a row.\n\nWho sits first?\n\n(A) Ann\n(B) Bob\n(C) Cy\n(D) Di\n(E) Ed\n\n"
        "Please reason step by step, and put only the letter of the right option within \\boxed{}."
    )
    assert problems[0].content_hash == problems[1].content_hash
    choices = ["Ann", "Bob", "Cy", "Di", "Ed"]
    assert problems[0].task == problems[1].task == {"workload": "lsat_ar", "gold": "B", "choices": choices}


def test_a_passage_has_many_questions_and_some_have_four_options(tmp_path: Path) -> None:
    four = ["Ann", "Bob", "(C) or not", "Di"]
    workload = load("lsat_ar", [ar_lsat(ar_question(), ar_question("Who sits last?", "D", four))], tmp_path)
    assert [p.task["gold"] for p in workload.problems] == ["B", "D"]
    assert workload.problems[1].task["choices"] == four  # a label is taken off only where all have their own
    assert workload.num_rows == 2
    assert len(load("lsat_ar", [ar_lsat(ar_question())], tmp_path, where={"passageId": [1]}).problems) == 1  # of the passage


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (agieval(label="F"), "rows.jsonl:1: label must be one letter of A to E, got 'F'"),
        (agieval(label="b"), "rows.jsonl:1: label must be one letter of A to E, got 'b'"),
        (agieval(label="AB"), "rows.jsonl:1: label must be one letter of A to E, got 'AB'"),
        ({**agieval(), "label": None}, "rows.jsonl:1: label must be text or a number, got None"),
        ({**agieval(), "options": ["a"]}, "rows.jsonl:1: options must be 2 to 5 options, got ['a']"),
        ({**agieval(), "options": "a, b"}, "rows.jsonl:1: options must be a list of texts, got 'a, b'"),
        ({**agieval(), "options": ["a", ""]}, "rows.jsonl:1: options must be a list of texts, got ['a', '']"),
        ({"question": "a", "options": ["a", "b"], "label": "A"}, "rows.jsonl:1: must have the field passage"),
        (ar_lsat(), "rows.jsonl:1: questions must be a list of questions, got []"),
        ({**ar_lsat(), "questions": None}, "rows.jsonl:1: questions must be a list of questions, got None"),
        (ar_lsat("a"), "rows.jsonl:1.questions[0]: must be one JSON object, got 'a'"),  # type: ignore[arg-type]
        (
            ar_lsat(ar_question(), ar_question(answer="E", options=["a", "b", "c", "d"])),
            "questions[1]: answer must be one letter of A to D",
        ),
        ({"id": "p", "questions": [ar_question()]}, "rows.jsonl:1: must have the field passage"),
    ],
)
def test_broken_lsat_rows(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("lsat_ar", [row], tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "unit", "gold", "kept_unit", "asked"),
    [
        ("50.7", "$\\mathrm{atm}$ ", "50.7", "$\\mathrm{atm}$", "in units of $\\mathrm{atm}$, without the unit."),
        (" +65.49", " ", "65.49", None, None),
        ("−1.642876", "", "-1.642876", None, None),
        ("89,034.79", " $", "89034.79", "$", "in dollars, without the dollar sign."),
        ("12", " $\\$$", "12", "$", "in dollars, without the dollar sign."),
        ("4", "% ", "4", "%", "in percent, without the percent sign."),
        ("4", " $\\%$", "4", "%", "in percent, without the percent sign."),
        ("300", " $ \\mathrm{~K}$\r\n", "300", "$\\mathrm{~K}$", "in units of $\\mathrm{~K}$, without the unit."),
        (
            "3.52",
            "$10^{-19} \\mathrm{~J}$",
            "0.000000000000000000352",
            "$10^{-19} \\mathrm{~J}$",
            "in units of $10^{-19} \\mathrm{~J}$: only the factor that stands before $10^{-19}$, without the unit.",
        ),
        (
            "4.16",
            "$10^{42}$",
            "416" + "0" * 40,
            "$10^{42}$",
            "as a multiple of $10^{42}$: only the factor that stands before $10^{42}$.",
        ),
        (
            "1.50",
            " 10^{-5} \\mathrm{~m}",
            "0.0000150",
            "$10^{-5} \\mathrm{~m}$",
            "in units of $10^{-5} \\mathrm{~m}$: only the factor that stands before $10^{-5}$, without the unit.",
        ),
        (
            "2.7",
            " $\\mathrm{10^7} \\mathrm{~km}$",
            "27000000",
            "$\\mathrm{10^7} \\mathrm{~km}$",
            "before $10^{7}$, without the unit.",
        ),
        ("9", " $10 ^ {-6}m/s^2$", "0.000009", "$10 ^ {-6}m/s^2$", "before $10^{-6}$, without the unit."),
        (
            "7",
            " $\r\n10^{15} \\text { photon }\r\n$",
            "7" + "0" * 15,
            "$10^{15} \\text { photon }$",
            "before $10^{15}$, without the unit.",
        ),
        ("5", "$\\mathrm{cm^2}$", "5", "$\\mathrm{cm^2}$", "in units of $\\mathrm{cm^2}$, without the unit."),
    ],
)
def test_scibench_golds_are_exact_values_and_the_prompt_states_the_unit(
    number: str, unit: str, gold: str, kept_unit: str | None, asked: str | None, tmp_path: Path
) -> None:
    found = problem("sci_xw", scibench(number, unit), tmp_path)
    assert found.task["gold"] == gold
    assert found.task.get("unit") == kept_unit
    assert found.task["category"] == "atkins"
    sentence = "" if asked is None else found.prompt.split("\n\n")[1]
    assert sentence.endswith(asked or "")
    assert sentence.startswith("Give the number " if asked else "")
    assert found.prompt.endswith("and put your final answer, a decimal number, within \\boxed{}.")


@pytest.mark.parametrize(
    ("number", "latex", "is_left_out"),
    [
        ("4.59", " 1.69", True),
        ("0.00017", " $1.7 \\times 10^{-5}$", True),
        ("1.44", "$\\frac{36}{125}$\r\n", True),
        ("2.7", "$2.7 \\times 10^{17}$", False),  # the unit's power in both fields
        ("0.444", "$\\frac{41}{90}$", False),  # within 5 %
        ("999.5", "$T_1 = 999.5$, $T_2 = 433$", False),
        ("30", "$74.8^\\circ$, $5.2^\\circ$", False),  # not one number
        ("0.3333333", "1/3", False),
        ("-1.5", "$-1.5$", False),
        ("1", "1/0", False),
    ],
)
def test_scibench_rows_that_contradict_themselves_are_left_out(
    number: str, latex: str, is_left_out: bool, tmp_path: Path
) -> None:
    rows = [scibench(), scibench(number, "$10^{17} \\mathrm{~Hz}$", answer_latex=latex, problem_text="What?")]
    workload = load("sci_xw", rows, tmp_path)
    expected = {"answer_number and answer_latex contradict each other": 1} if is_left_out else {}
    assert workload.left_out == expected
    assert len(workload.problems) == 2 - is_left_out


@pytest.mark.parametrize("number", ["two", "", "1 or 2", "1.2.3", "1,23", "inf", "nan", "٣"])
def test_a_scibench_number_that_is_none(number: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:1: answer_number must be "):
        load("sci_jl", [scibench(number)], tmp_path)


def test_olympiad_context_unit_and_tolerance(tmp_path: Path) -> None:
    row = olympiad("$4.2$", context="A lens.", unit="$\\mathrm{cm}$", error="1e-1")
    found = problem("olyphys", row, tmp_path)
    asked = "Give the answer in units of $\\mathrm{cm}$, and write the unit outside the box."
    assert found.prompt == f"<user>A lens.\n\nHow far?\n\n{asked}\n\n{BOXED}"
    task = {"workload": "olyphys", "gold": "4.2", "unit": "\\mathrm{cm}", "tolerance": 0.1, "category": "Optics"}
    assert found.task == task


@pytest.mark.parametrize(
    ("answers", "is_multiple", "gold"),
    [
        (["$\\frac{1}{2}$"], False, "\\frac{1}{2}"),
        (["$69$,$84$"], True, ["69", "84"]),
        (["$(0,2),(0,-2)$"], True, ["(0,2)", "(0,-2)"]),
        (["$(0,2),(0,-2)$"], False, "(0,2),(0,-2)"),
        (["$1$", "$2$"], False, ["1", "2"]),
        (["$(-\\infty, 0) \\cup\\{1\\}$."], True, "(-\\infty, 0) \\cup\\{1\\}"),
        (["$f(x)=a x$, where $a$ is one, or more"], True, "f(x)=a x, where a is one, or more"),
        (["$a_{1,2}$, $\\sqrt[3]{2}$"], True, ["a_{1,2}", "\\sqrt[3]{2}"]),
    ],
)
def test_olympiad_golds_are_a_list_where_there_are_several(
    answers: list[str], is_multiple: bool, gold: str | list[str], tmp_path: Path
) -> None:
    found = problem("olyphys", olympiad(*answers, is_multiple_answer=is_multiple), tmp_path)
    assert found.task["gold"] == gold
    assert ("separated by commas" in found.prompt) == isinstance(gold, list)


def test_an_olympiad_tolerance_for_each_answer(tmp_path: Path) -> None:
    found = problem("olyphys", olympiad("$1$,$2$", is_multiple_answer=True, error="1e-1, 0.02"), tmp_path)
    assert found.task["tolerance"] == [0.1, 0.02]
    assert load("olyphys", [olympiad("1", error="1e-1")], tmp_path).content_hash != (
        load("olyphys", [olympiad("1", error="1e-2")], tmp_path).content_hash
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"image_1": {"bytes": "..."}}, "needs a picture"),
        ({"question": "See <image_1>."}, "needs a picture"),
        ({"context": "See <image_1>."}, "needs a picture"),
        ({"modality": "Multimodal"}, "needs a picture"),
        ({"question_type": "Theorem proof"}, "is not open-ended"),
        ({"answer_type": "Need_human_evaluate"}, "needs a person to judge the answer"),
    ],
)
def test_olympiad_rows_that_are_no_text_with_an_answer_are_left_out(fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    usable = olympiad("1", image_1=None, modality="Text-only", question_type="Open-ended")
    workload = load("olyphys", [usable, olympiad("2", **fields)], tmp_path)
    assert workload.left_out == {reason: 1}
    assert len(workload.problems) == 1
    assert workload.notes == (f"1 left out: {reason} ({tmp_path}/rows.jsonl:2)",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (olympiad(), "final_answer must be a list of texts, got []"),
        ({**olympiad("1"), "final_answer": "1"}, "final_answer must be a list of texts, got '1'"),
        (olympiad("$$"), "final_answer must hold an answer, got ['$$']"),
        (olympiad("1", error="some"), "error must be a number from 0 on"),
        (olympiad("1", error="-1"), "error must be a number from 0 on"),
        (olympiad("1", error="nan"), "error must be a number from 0 on"),
    ],
)
def test_broken_olympiad_answers(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("olyphys", [row], tmp_path)
    assert f"rows.jsonl:1: {message}" in str(caught.value)
    assert load("olyphys", [olympiad("1", question="b"), row], tmp_path, on_bad_gold="skip").num_bad_golds == 1


def test_an_olympiad_flag_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:1: is_multiple_answer must be true or false, got 'yes'"):
        load("olyphys", [olympiad("1", is_multiple_answer="yes")], tmp_path)


def test_gsm8k_and_math500_rows(tmp_path: Path) -> None:
    found = problem("gsm8k", {"question": "Eggs? ", "answer": "2 + 2 = <<2+2=4>>4\n#### 3\n#### 1,004"}, tmp_path)
    assert (found.prompt, found.task) == (f"<user>Eggs?\n\n{BOXED}", {"workload": "gsm8k", "gold": "1004"})
    row = {"problem": "Root?", "solution": "So", "answer": "\\sqrt{2}", "subject": "Algebra", "level": 5, "unique_id": "x"}
    found = problem("math500", row, tmp_path)
    assert found.prompt == f"<user>Root?\n\n{BOXED}"
    assert found.task == {"workload": "math500", "gold": "\\sqrt{2}", "category": "Algebra, level 5"}
    found = problem("math500", {"problem": "Root?", "answer": "1", "level": "Level 3"}, tmp_path)
    assert found.task["category"] == "level 3"


def test_tasks_are_plain_json_and_hold_no_row(tmp_path: Path) -> None:
    for name, row in (("lsat_ar", agieval()), ("sci_xw", scibench()), ("olyphys", olympiad("1", "2", error="1,2"))):
        task = problem(name, row, tmp_path).task
        assert json.loads(json.dumps(task)) == task
        assert "row" not in task
