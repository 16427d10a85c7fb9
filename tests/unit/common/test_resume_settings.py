"""Which settings a resume may change, and how a difference is told (pain 18)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from round_lab import config_of

from common.config import Config
from common.errors import ConfigError
from common.resume import FREE, check_same_run, model_identity
from common.rundir import RunDir

DOC = Path(__file__).resolve().parents[3] / "docs" / "resume.md"


def difference(tmp_path: Path, before: dict[str, Any], after: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        check_same_run(config_of(**after), config_of(**before), RunDir(tmp_path))
    return str(error.value)


def test_one_difference_is_told_with_both_values(tmp_path: Path) -> None:
    told = difference(tmp_path, {"sampling": {"max_tokens": 16}}, {"sampling": {"max_tokens": 32}})
    assert told == ("sampling.max_tokens: must be what the run was started with (16), got 32; leave it out, or start a new run")


def test_of_many_differences_the_first_is_told_in_full_and_the_others_by_name(tmp_path: Path) -> None:
    after = {"seed": 3, "training": {"lr": 0.1, "kl": {"coef": 0.1}}, "filter": "drop", "limits": {"stall_s": 1}}
    told = difference(tmp_path, {"training": {"loss": "dapo"}}, {**after, "filter": "keep", "responses_per_group": 8})
    assert told.startswith("seed: must be what the run was started with (0), got 3; also different: responses_per_group, ")
    assert "training.loss, training.kl, training.lr; leave them out" in told and "limits" not in told and "\n" not in told


@pytest.mark.parametrize(
    "free",
    [
        {"rounds": 9, "schedule": "cgp", "name": "other", "request_order": "shuffled", "frontier_width": 3},
        {"rollout": {"replicas": 3, "capacity": 5, "engine_options": {"a": 1}}, "limits": {"group_timeout_s": 5}},
        {"checkpoint": {"every": 1}, "retention": {"groups": 2}, "eval": {"every": 2}, "supervision": {"max_restarts": 0}},
        {"training": {"ranks": 2, "micro_batch_tokens": 4096}, "rewards": {"workers": 3, "timeout_s": 9}},
        {"cluster": {"address": "auto"}},
        {"groups_per_update": 4, "max_refills": 4},
    ],
    ids=str,
)
def test_what_does_not_change_what_is_trained_is_free(tmp_path: Path, free: dict[str, Any]) -> None:
    """`groups_per_update: 4` and `round` are the same with R=4."""
    before = {"groups_per_update": "round"}
    check_same_run(config_of(**{**before, **free}), config_of(**before), RunDir(tmp_path))


def test_of_a_remote_verifier_the_address_is_free_but_not_that_there_is_one(tmp_path: Path) -> None:
    one, other = ({"rewards": {"remote": {"url": f"http://127.0.0.1:{port}/"}}} for port in (1, 2))
    check_same_run(config_of(**other), config_of(**one), RunDir(tmp_path))
    assert difference(tmp_path, {}, one).startswith("rewards.remote: must be what the run was started with (None)")


def model(directory: Path, weights: bytes = b"w" * 100) -> Path:
    directory.mkdir()
    for name, data in (("config.json", b"{}"), ("tokenizer.json", b"{1}"), ("model.safetensors", weights)):
        (directory / name).write_bytes(data)
    (directory / "README.md").write_text("not part of it")
    return directory


def test_a_model_that_moved_is_the_same_and_one_with_another_weight_is_not(tmp_path: Path) -> None:
    """As told by `start.json`; without it the path decides."""
    first, moved = model(tmp_path / "a"), model(tmp_path / "b")
    changed = model(tmp_path / "c", b"w" * 99 + b"x")
    before, same, other = ({"model": {"path": str(path)}} for path in (first, moved, changed))
    assert difference(tmp_path, before, same).startswith("model.path: must be")
    (tmp_path / "start.json").write_text(json.dumps({"model": model_identity(first)}))
    check_same_run(config_of(**same), config_of(**before), RunDir(tmp_path))
    assert difference(tmp_path, before, other).startswith("model.path: must be")
    assert "model.path" not in difference(tmp_path, before, {**same, "seed": 1})
    assert "also different: model.path" in difference(tmp_path, before, {**other, "seed": 1})


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("how", ["edited", "renamed", "missing"])
def test_the_identity_is_of_configuration_tokenizer_and_weights(tmp_path: Path, name: str, how: str) -> None:
    first, second = model(tmp_path / "a"), model(tmp_path / "b")
    (second / "README.md").write_text("another text")
    assert model_identity(first) == model_identity(second)
    file = second / name
    if how == "edited":
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    elif how == "renamed":
        file.rename(second / f"x-{name}")
    else:
        file.unlink()
    assert model_identity(first) != model_identity(second)


def leaves(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every setting, also of the sections that are off by default."""
    for name, field in section.model_fields.items():
        inner = [kind for kind in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(kind, type)]
        sections = [kind for kind in inner if issubclass(kind, BaseModel)]
        if sections:
            yield from leaves(sections[0], f"{prefix}{name}.")
        else:
            yield prefix + name


def documented(heading: str) -> set[str]:
    """Names in the first column of the table under a heading; those in brackets are exceptions."""
    part = DOC.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    firsts = [re.sub(r"\(.*\)", "", line.split("|")[1]) for line in part.splitlines() if line.startswith("| `")]
    return {name for first in firsts for name in re.findall(r"`([^`]+)`", first)}


def test_the_documents_tables_have_every_setting_once() -> None:
    """A new setting must be put into one of them; what is not in FREE is fixed."""
    fixed, free = documented("Fixed"), documented("Free")
    assert free == FREE
    everything = list(leaves(Config))
    assert {"training.kl.coef", "rewards.remote.url", "eval.workload.path"} <= set(everything)
    for setting in everything:
        parts = setting.split(".")
        above = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
        assert above & (fixed | free), f"{setting} is in neither table of docs/resume.md"
    for name in fixed | free:
        assert any(f"{setting}.".startswith(f"{name}.") for setting in everything), f"{name} is no setting"
