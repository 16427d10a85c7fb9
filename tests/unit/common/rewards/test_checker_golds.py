"""Every answer of the real files, and of a few rows made up in each schema, in all variants of `benchmarks/checker_table.py`."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.rewards.checkers import check, gold_fault

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
ROWS: dict[str, list[dict[str, Any]]] = {
    "lsat_ar/agieval_v1_lsat-ar.jsonl": [
        {"label": "B", "options": ["(A)Ann is first.", "(B)Bo is first.", "(C)Cy, Bo", "(D)Di", "(E)Ed"]},
        {"label": "E", "options": ["(A)1", "(B)2", "(C)3", "(D)4", "(E)5"]},
    ],
    "lsat_ar/ar_lsat_AR_TestData.json": [{"questions": [{"answer": "D", "options": ["Ann", "B", "Cy or Di", "D, E"]}]}],
    "sci_xw/thermo.json": [
        {"answer_number": " +65.49", "unit": r"$\mathrm{kJ} \mathrm{mol}^{-1}$"},
        {"answer_number": "3.52", "unit": r"$10^{-19} \mathrm{~J}$"},
        {"answer_number": "−2", "unit": " "},
        {"answer_number": "89,034.79", "unit": " $"},
        {"answer_number": "0", "unit": ""},
        {"answer_number": "2.3", "unit": r" $\%$"},
        {"answer_number": "1.25", "unit": r" $10^{-3} \%$"},
    ],
    "olyphys/OE_made_up.jsonl": [
        {"final_answer": ["$2022.2$"], "unit": None, "error": None},
        {"final_answer": ["$1 \\times 10^{14}$"], "unit": "s", "error": None},
        {"final_answer": ["$\\frac{\\sqrt{2}}{2}$"], "unit": None, "error": None},
        {"final_answer": ["$\\frac{GMm}{r^{2}}$"], "unit": None, "error": None},
        {"final_answer": ["$69$", "$84$"], "unit": None, "error": None},
        {"final_answer": ["$(2,4)$, $(6,3)$"], "unit": None, "error": None},
        {"final_answer": ["4.2"], "unit": "%", "error": "1e-1"},
    ],
    "gsm8k/test.jsonl": [{"answer": "2*9=<<2*9=18>>18\n#### 18"}, {"answer": "#### 1,450,000"}, {"answer": "#### -10"}],
    "math500/math500_test.json": [
        {"answer": answer}
        for answer in [
            r"\frac{14}{3}",
            "p - q",
            r"\text{Evelyn}",
            r"90^\circ",
            "x=5",
            "1,-2",
            "52_8",
            r"1 \pm \sqrt{19}",
            "(3,4]",
        ]
        + [
            r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}",
            r"10,\!080",
            r"\$32,\!348",
            r"5.4 \text{ cents}",
            r"x \in [-2,7]",
            "6m",
            r"2\pi",
        ]
    ],
}


@pytest.fixture(scope="module")
def table() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    import checker_table

    yield checker_table
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, rows in ROWS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        lines = "\n".join(json.dumps(row) for row in rows)
        (folder / name).write_text(lines if name.endswith(".jsonl") else json.dumps(rows), encoding="utf-8")
    return folder


def missed(table: Any, variants: dict[str, Callable[..., Any]], golds: dict[str, list[Any]], *, is_right: bool) -> list[Any]:
    return [
        (name, workload, *miss)
        for name, variant in variants.items()
        for workload, tasks in golds.items()
        for miss in table.measure(variant, tasks, is_right=is_right).missed
    ]


def test_rows_made_up_in_all_variants(table: Any, made_up: Path) -> None:
    golds = table.golds(made_up)
    assert sum(map(len, golds.values())) == 35
    assert missed(table, table.RIGHT, golds, is_right=True) == []
    assert missed(table, table.WRONG, golds, is_right=False) == []


def test_every_real_gold_verifies_against_itself(table: Any, data_dir: Path) -> None:
    golds = table.golds(data_dir)
    counts = {name: len(tasks) for name, tasks in golds.items()}
    assert counts == {"lsat_ar": 230 + 1630 + 231 + 230, "sci_xw": 692, "olyphys": 163, "gsm8k": 1319, "math500": 500}
    for tasks in golds.values():
        for task in tasks:
            assert gold_fault(task) is None, task
            assert check(task, table.boxed(table.text(task)))["reward"] == 1.0, task
            assert check({**task, "unit": ""}, table.boxed(table.text(task)))["reward"] == 1.0, task


@pytest.mark.parametrize(
    "name", ["another letter, another option", "6 % off (Sci), 2 % off (exact)", "ten times", "a tenth", "the other sign"]
)
def test_every_real_gold_made_wrong_is_refused(table: Any, data_dir: Path, name: str) -> None:
    assert missed(table, {name: table.WRONG[name]}, table.golds(data_dir), is_right=False) == []


def test_real_golds_in_all_other_variants(table: Any, data_dir: Path) -> None:
    """All of MATH-500, OlympiadBench and the sciences, and a part of the larger ones."""
    golds = {
        name: tasks[:: {"lsat_ar": 29, "gsm8k": 11, "sci_xw": 3}.get(name, 1)] for name, tasks in table.golds(data_dir).items()
    }
    assert missed(table, table.RIGHT, golds, is_right=True) == []
    assert missed(table, table.WRONG, golds, is_right=False) == []


def test_no_gold_of_math_is_accepted_for_another(table: Any, data_dir: Path) -> None:
    """Of 438 different golds each is put against the next 40: only units and single symbols before `=` may be left out."""
    golds = table.golds(data_dir)
    tasks = [task for name in ("math500", "olyphys") for task in golds[name] if not task.get("tolerance")]
    distinct = list({table.text(task).replace("$", ""): task for task in tasks}.values())
    accepted = {
        (table.text(task), table.text(other))
        for index, task in enumerate(distinct)
        for other in distinct[index + 1 : index + 41]
        if check(task, table.boxed(table.text(other)))["reward"] == 1.0
    }
    plain = {
        (left.replace("$", "").replace(r"^\circ", ""), right.replace("$", "").replace(r"^\circ", "")) for left, right in accepted
    }
    assert {pair for pair in plain if pair[0] != pair[1]} <= {
        ("5", "x=5"),
        ("1,-2", "-2,1"),
        ("6", "6m"),
        ("1", "k=1"),
        ("1", "f(x)=1"),
    }


def test_all_units_of_the_sciences_with_a_power_are_read(table: Any, data_dir: Path) -> None:
    golds = table.golds(data_dir)["sci_xw"]
    with_power = [task for task in golds if task["mantissa"]]
    assert len(with_power) == sum("10" in task["unit"] for task in golds) == 109
