"""Lines of `rolloutpipe score`: which are refused, with which words, and what comes out."""

import json
from typing import Any

import pytest

from common.commands.score_lines import MAX_LINE_BYTES, read_line, write_fault, write_line
from common.config_rewards import RewardConfig
from common.errors import DataError
from common.protocols import Score
from common.records import Verdict

ROW = {"workload": "gsm8k", "gold": "72", "response": "so 72"}
OWN = RewardConfig(function="planted:score")
LENGTH = RewardConfig(weights={"length": 1.0}, length={"limit": 10, "buffer": 5})
GYM = {"workload": "reasoning_gym", "dataset": "chain_sum", "entry": {"answer": "4"}, "response": "4"}


def row_of(**changes: Any) -> bytes:
    """A line; a change to `...` leaves the field out."""
    return json.dumps({name: value for name, value in {**ROW, **changes}.items() if value is not ...}).encode()


def test_a_line_is_a_task_and_a_response() -> None:
    line = read_line(row_of(unit="m", tolerance=0.05, choices=["a", "b"], num_tokens=3, mine=[1]), RewardConfig())
    assert line.response == "so 72"
    assert line.task == {
        "workload": "gsm8k",
        "gold": "72",
        "unit": "m",
        "tolerance": 0.05,
        "choices": ["a", "b"],
        "num_tokens": 3,
        "mine": [1],
    }


@pytest.mark.parametrize(("gold", "text"), [(72, "72"), (-0.5, "-0.5"), (1e-19, "1e-19"), ("1/3", "1/3")])
def test_a_gold_may_be_a_number(gold: object, text: str) -> None:
    line = read_line(row_of(gold=gold), RewardConfig())
    assert line.task["gold"] == text and line.row["gold"] == gold


@pytest.mark.parametrize("raw", [b"\xef\xbb\xbf" + row_of(), row_of() + b"\r\n", b"  " + row_of() + b"\n"])
def test_byte_order_mark_and_line_ends_do_not_matter(raw: bytes) -> None:
    assert read_line(raw, RewardConfig()).row == ROW


def test_what_an_earlier_scoring_wrote_is_replaced() -> None:
    line = read_line(row_of(reward=0.5, status="wrong", extracted="x", reason="y", parts={"a": 1}), RewardConfig())
    assert line.task == {"workload": "gsm8k", "gold": "72"}
    out = json.loads(write_line(line.row, Score(reward=1.0, status=Verdict.OK, extracted="72")))
    assert out == {**ROW, "reward": 1.0, "status": "ok", "extracted": "72", "reason": ""}


def test_the_row_comes_out_as_it_came_in() -> None:
    row = {"id": 2**70, "b": [None, True, 1.0], "response": "é \u202e \x00", "a": {"z": 1}}
    out = json.loads(write_line(row, Score(reward=0.5, status=Verdict.WRONG, parts=(("answer", 0.0), ("format", 1.0)))))
    assert list(out) == [*row, "reward", "status", "extracted", "reason", "parts"]
    assert {name: out[name] for name in row} == row
    assert out["parts"] == {"answer": 0.0, "format": 1.0}


def test_half_a_surrogate_pair_comes_out() -> None:
    assert json.loads(write_line({"response": "\ud800"}, Score(reward=0.0, status=Verdict.WRONG)))["response"] == "\ud800"


def test_a_fault_stands_in_the_place_of_its_line() -> None:
    assert write_fault(7, "é") == '{"line": 7, "error": "é"}\n'.encode()


def test_a_function_of_ones_own_asks_for_a_response_only() -> None:
    assert read_line(b'{"response": "a", "x": 1}', OWN).task == {"x": 1}


def test_reasoning_gym_needs_its_data_set_and_entry() -> None:
    assert read_line(json.dumps(GYM).encode(), RewardConfig()).task["options"] == {}


@pytest.mark.parametrize(
    ("raw", "config", "message"),
    [
        (b"nonsense", None, r"^line: must be one JSON object, got 'nonsense'; repair it \(Expecting value: line 1"),
        (b'{"a": 1', None, r"^line: must be one JSON object, got '{\"a\": 1'; repair it"),
        (b"[" * 100_000, None, r"^line: must be one JSON object"),
        (b"[1]", None, r"^line: must be one JSON object, got '\[1\]'; write"),
        (b'{"response": "\xff"}', None, r"^line: must be UTF-8 \(byte 15 is not\)"),
        (b'{"a": NaN}', None, r"NaN is no JSON"),
        (b"x" * (MAX_LINE_BYTES + 1), None, r"^line: must be at most 64 MiB"),
        (row_of(response=...), None, r"^response: must be the text to score, got None; add the field$"),
        (row_of(response=4), None, r"^response: must be the text to score, got 4; correct it$"),
        (row_of(workload=...), None, r"^workload: must be one of lsat_ar, sci_xw, .*, got None; add the field$"),
        (row_of(workload="chess"), None, r"^workload: must be one of lsat_ar, sci_xw, .*, got 'chess'; use one of them"),
        (row_of(gold=...), None, r"^gold: must be the right answer, as text or number, got None; add the field$"),
        (row_of(gold=True), None, r"^gold: must be the right answer, as text or number, got True; correct it$"),
        (row_of(gold=" "), None, r"^gold: must fit the workload gsm8k, got ' '; correct it \(the answer is empty"),
        (row_of(gold="many"), None, r"^gold: must fit the workload gsm8k, got 'many'; correct it \(the answer is not a number"),
        (row_of(workload="lsat_ar", gold="F"), None, r"^gold: must fit the workload lsat_ar, got 'F'"),
        (row_of(workload="math500", gold="{"), None, r"^gold: must fit the workload math500, got '{'"),
        (
            row_of(workload="olyphys", gold="1", tolerance="a"),
            None,
            r"^tolerance: must fit the workload olyphys, got .a.; correct it \(",
        ),
        (row_of(workload="jsonl", answer_kind="word"), None, r"^answer_kind: must be one of number, math, letter, got 'word'"),
        (row_of(gold=["x" * 500]), None, r"^gold: .*x\.\.\.\"; correct it"),
        (row_of(unit=3), None, r"^unit: must be text, got 3"),
        (row_of(tolerance=-1), None, r"^tolerance: must fit the workload gsm8k, got -1; correct it \("),
        (row_of(tolerance=True), None, r"^tolerance: must fit the workload gsm8k, got True; correct it \("),
        (row_of(choices="ABC"), None, r"^choices: must be a list of texts, got 'ABC'"),
        (row_of(num_tokens="3"), None, r"^num_tokens: must be the response's number of tokens, got '3'; correct it$"),
        (row_of(), LENGTH, r"^num_tokens: must be the response's number of tokens, got None; add the field$"),
        (row_of(response=...), OWN, r"^response: must be the text to score, got None"),
        (row_of(answer_pattern=3), None, r"^answer_pattern: must be a regular expression with a group, got 3; correct it$"),
        (row_of(answer_pattern="("), None, r"^answer_pattern: must be a regular expression with a group, got '\('; correct it$"),
        (row_of(answer_pattern="a"), None, r"^answer_pattern: must be a regular expression with a group, got 'a'; correct it$"),
        (row_of(answer_pattern="(" * 5000), None, r"^answer_pattern: must be a regular expression with a group"),
        (row_of(answer_pattern="(a{99999999999999999999})"), None, r"^answer_pattern: must be a regular expression with a group"),
        (
            row_of()[:-1] + b', "gold": "73"}',
            None,
            r"^line: must hold each key once, got 'gold'; remove all but one of them$",
        ),
        (b'{"response": "", "x": {"y": 1, "y": 1}}', OWN, r"^line: must hold each key once, got 'y'"),
        (json.dumps({**GYM, "dataset": 1}).encode(), None, r"^dataset: must be the name of a reasoning-gym data set, got 1"),
        (
            json.dumps({**GYM, "dataset": "nope"}).encode(),
            None,
            r"^dataset: must be .* data set, got 'nope'; correct it$",
        ),
        (json.dumps({**GYM, "answer_pattern": "("}).encode(), None, r"^answer_pattern: must be a regular expression"),
        (json.dumps({**GYM, "entry": "4"}).encode(), None, r"^entry: must be an object"),
    ],
)
def test_a_broken_line_is_one_line_that_names_the_field(raw: bytes, config: RewardConfig | None, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_line(raw, config or RewardConfig())
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_number_beyond_every_float_is_refused_on_the_way_out() -> None:
    line = read_line(b'{"response": "a", "x": 1e999}', OWN)
    with pytest.raises(DataError, match=r"^line: must hold finite numbers"):
        write_line(line.row, Score(reward=1.0, status=Verdict.OK))
