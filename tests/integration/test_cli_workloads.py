"""`rolloutpipe workloads`: the list, and problems as the model sees them; bad input is one line and exit 2."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from common import cli
from common.config_workload import JSONL, SCHEMAS
from tests.integration.tiny_models import sums_model
from tests.workload_lab import agieval, olympiad, scibench, write_lines

GSM8K = [{"question": f"How many, {number}?", "answer": f"So.\n#### {number}"} for number in range(6)]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.run([str(word) for word in ("workloads", *words)])
    out, err = capsys.readouterr()
    return code, out, err


def shown(capsys: pytest.CaptureFixture[str], folder: Path, *words: object) -> tuple[str, dict[str, Any]]:
    path = folder / "out.json"
    code, out, err = run(capsys, "show", *words, "--json", path)
    assert (code, err) == (0, "")
    return out, json.loads(path.read_text())


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    code, out, err = run(capsys, "show", *words)
    assert (code, out) == (2, "")
    assert err.startswith("rolloutpipe: ") and err.count("\n") == 1
    assert "Traceback" not in err
    return err


def test_every_workload_is_listed_with_schema_source_licence_and_checker(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = run(capsys, "--json", tmp_path / "out.json")
    listed = json.loads((tmp_path / "out.json").read_text())["workloads"]
    assert code == 0
    assert [one["name"] for one in listed] == [*SCHEMAS, JSONL, "reasoning_gym:NAME"]
    for one in listed:
        assert all(one[field] and one[field] in out for field in ("name", "about", "schema", "source", "licence", "checker"))


def test_the_generated_ones_are_listed_on_demand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "--generated", "--json", tmp_path / "out.json")
    names = json.loads((tmp_path / "out.json").read_text())["generated"]
    assert code == 0
    assert {"chain_sum", "gcd"} <= set(names) and "composite" not in names
    assert "chain_sum, " in out


def test_without_a_model_prompts_are_bare_and_that_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [scibench("3.5", "$10^{-19} \\mathrm{~J}$"), scibench()])
    out, result = shown(capsys, tmp_path, "sci_xw", f"path={path}", "--rows", 1)
    (problem,) = result["problems"]
    assert problem["prompt"].startswith("How much?\n\nGive the number in units of $10^{-19} \\mathrm{~J}$")
    assert problem["prompt"] in out
    assert problem["gold"] == "0.00000000000000000035" and f"gold      {problem['gold']}" in out
    assert (problem["unit"], problem["category"]) == ("$10^{-19} \\mathrm{~J}$", "atkins")
    assert problem["length"] == len(problem["prompt"])
    assert (result["length_unit"], result["is_chat"], result["model"]) == ("characters", False, None)
    assert "no model: bare prompts" in out


@pytest.mark.parametrize("prefix", ["", "workload."])
def test_settings_may_be_typed_with_and_without_their_section(
    prefix: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [*GSM8K, GSM8K[0], {"question": "a", "answer": "no mark"}])
    settings = [f"{prefix}path={path}", f"{prefix}on_bad_gold=skip", f"{prefix}max_problems=4"]
    _, result = shown(capsys, tmp_path, "gsm8k", *settings)
    assert len(result["problems"]) == 3
    counts = {name: result[name] for name in ("num_rows", "num_problems", "num_duplicates", "num_bad_golds", "num_filtered")}
    assert counts == {"num_rows": 8, "num_problems": 4, "num_duplicates": 1, "num_bad_golds": 1, "num_filtered": 0}
    assert result["left_out"] == {"more than workload.max_problems": 2}


def test_with_a_model_prompts_are_what_it_sees(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = sums_model(tmp_path / "model", steps=1)
    path = write_lines(tmp_path / "rows.jsonl", GSM8K)
    assert "set workload.use_chat_template=false" in refused(capsys, "gsm8k", f"path={path}", "--model", model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    chat = "{% for one in messages %}[{{ one.role }}]{{ one.content }}{% endfor %}"
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": chat}))
    out, result = shown(capsys, tmp_path, "gsm8k", f"path={path}", "system_prompt=Be brief.", "--model", model)
    assert result["problems"][0]["prompt"].startswith("[system]Be brief.[user]How many, 0?\n\nPlease reason")
    assert (result["length_unit"], result["is_chat"]) == ("tokens", True)
    assert "no model" not in out
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({"model": {"path": str(model)}, "workload": {"name": "gsm8k", "path": str(path)}}))
    _, from_file = shown(capsys, tmp_path, config, "workload.system_prompt=Be brief.")
    assert from_file == result
    _, half = shown(capsys, tmp_path, config, "holdout=0.5", "rounds=3")
    assert half["num_held_out"] + half["num_problems"] == 6


def test_percentiles_are_nearest_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{"question": "x" * length, "answer": "1"} for length in range(1, 201)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    out, result = shown(capsys, tmp_path, "jsonl", f"path={path}")
    assert result["prompt_length"] == {"p0": 1, "p50": 100, "p90": 180, "p95": 190, "p99": 198, "p100": 200}
    assert "prompt length in characters: p0 1, p50 100, p90 180, p95 190, p99 198, p100 200" in out


def test_a_generated_workload_needs_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, result = shown(capsys, tmp_path, "reasoning_gym:chain_sum", "size=20", "--rows", 2)
    assert [problem["category"] for problem in result["problems"]] == ["chain_sum"] * 2
    assert all(problem["gold"] for problem in result["problems"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["gsm9k"],
            "workload.name: must be one of lsat_ar, sci_xw, sci_jl, olyphys, gsm8k, math500, jsonl, reasoning_gym:NAME, got",
        ),
        (["gsm8k"], "workload: exactly one of path and dataset must be set for gsm8k"),
        (["gsm8k", "pth=x"], "workload.pth: is no known setting, got 'x'; did you mean workload.path?"),
        (["gsm8k", "path"], "override: must read key=value"),
        (["gsm8k", "path=none.jsonl"], "workload.path: must be a readable file, got 'none.jsonl'"),
        (["gsm8k", "path=ROWS", "--rows", "0"], "--rows: must be 1 or more, got 0"),
        (["gsm8k", "path=ROWS", "holdout=1"], "workload.holdout: must be less than 1, got 1"),
        (["gsm8k", "path=ROWS", "--model", "none"], "model.path: must be a model directory, got 'none'"),
        (["lsat_ar", "path=ROWS"], "rows.jsonl:1: must have the field passage, got ['answer', 'question']"),
        (["olyphys", "path=ROWS"], "rows.jsonl:1: must have the field final_answer"),
        (["none.yaml"], "CONFIG: must be a readable YAML file, got 'none.yaml'"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", GSM8K)
    assert message in refused(capsys, *[word.replace("ROWS", str(path)) for word in words])


def test_each_schema_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = {"lsat_ar": agieval(), "olyphys": olympiad("$1$,$2$", is_multiple_answer=True, error="1e-1", unit="m")}
    for name, row in rows.items():
        path = write_lines(tmp_path / "rows.jsonl", [row])
        out, result = shown(capsys, tmp_path, name, f"path={path}")
        assert f"gold      {result['problems'][0]['gold']}" in out
    assert result["problems"][0]["gold"] == ["1", "2"]
    assert "unit      m" in out and "tolerance 0.1" in out
