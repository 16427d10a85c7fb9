"""Verdicts of the built-in scorers."""

import json
from typing import Any

import pytest

from common.config import WorkloadConfig
from common.errors import ConfigError
from common.records import Verdict
from common.rewards.scorers import score, warm_up
from common.workloads.reasoning_gym import generate_rows


def task_of(name: str, **options: Any) -> dict[str, Any]:
    """The first task of a reasoning-gym data set, as it looks after a journey through JSON."""
    row = next(generate_rows(WorkloadConfig(name=f"reasoning_gym:{name}", options=options, size=1)))
    return dict(json.loads(json.dumps(row.task)))


def test_chain_sum_is_right_wrong_or_unanswered() -> None:
    task = task_of("chain_sum")
    gold = task["entry"]["answer"]
    right, wrong, empty = (score(None, task, text) for text in (f"1+1={gold}", "1+1=no", "I do not know"))
    assert (right.reward, right.status, right.extracted) == (1.0, Verdict.OK, gold)
    assert (wrong.reward, wrong.status, wrong.extracted) == (0.0, Verdict.WRONG, "no")
    assert (empty.reward, empty.status, empty.extracted) == (0.0, Verdict.NO_ANSWER, "")


def test_partial_credit_is_kept_and_is_not_right() -> None:
    task = task_of("chain_sum")
    given = score(None, task, f"={task['entry']['answer']} apples")
    assert given.status is Verdict.WRONG
    assert given.reward is not None and 0 < given.reward < 1


@pytest.mark.parametrize("name", ["arc_1d", "arc_agi", "rearc", "countdown", "sudoku", "base_conversion"])
def test_data_sets_that_need_more_than_the_answer_accept_their_own(name: str) -> None:
    # arc_agi and rearc compare with tuples and read the board format of their settings.
    task = task_of(name)
    assert score(None, task, f"<answer>{task['entry']['answer']}</answer>").status is Verdict.OK


def test_integer_keys_survive_the_journey() -> None:
    # graph_color has no answer of its own; its scorer looks vertices up by number. Colour by colour, the first that fits.
    task = task_of("graph_color", min_num_vertices=4, max_num_vertices=4, edge_probability=0.2)
    edges = task["entry"]["metadata"]["puzzle"]["edges"]
    pairs = [tuple(edge["__tuple__"]) for edge in edges]
    colors: dict[int, int] = {}
    for vertex in range(4):
        taken = {colors[a if b == vertex else b] for a, b in pairs if vertex in (a, b) and (a in colors or b in colors)}
        colors[vertex] = min({1, 2, 3} - taken)
    answer = json.dumps({str(vertex): color for vertex, color in colors.items()})
    assert score(None, task, f"<answer>{answer}</answer>").status is Verdict.OK


def test_jsonl_compares_numbers_by_value() -> None:
    task = {"workload": "jsonl", "gold": "1,000"}
    assert score(None, task, "That makes 1000.00 dollars").status is Verdict.OK
    assert score(None, task, "That makes 100 dollars").status is Verdict.WRONG
    assert score(None, task, "That makes many").status is Verdict.NO_ANSWER


def test_the_answer_pattern_of_the_task_is_used() -> None:
    task = {"workload": "jsonl", "gold": "2", "answer_pattern": r"=> (\d+)"}
    assert score(None, task, "=> 1 => 2, not 3").status is Verdict.OK
    assert score(None, task, r"\boxed{2}").status is Verdict.NO_ANSWER


def test_an_unknown_workload_is_an_error_that_names_the_remedy() -> None:
    given = score(None, {"workload": "chess"}, "e4")
    assert given.status is Verdict.ERROR
    assert "set rewards.function" in given.reason


def test_warming_up_finds_a_bad_function() -> None:
    with pytest.raises(ConfigError, match=r"rewards\.function"):
        warm_up("no_such_module:score", [])
    warm_up(None, [task_of("chain_sum"), {"workload": "jsonl", "gold": "1"}])
