"""What a resumed run must share with the run that it goes on with: every setting that decides what is trained.

A setting that is in `FREE`, or in a section that is, only changes how fast a run goes, where, and what it leaves on disk; all
others are fixed, so a setting that is new is fixed until it is put here. `docs/resume.md` gives the reason for each.
"""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common.config import Config
from common.errors import ConfigError, explain
from common.rundir import RunDir

FREE = frozenset(
    {
        "name",
        "run_dir",  # checked apart: it must be the run that is resumed
        "rounds",
        "schedule",
        "frontier_width",
        "request_order",
        "workload.path",  # the problems themselves are compared, by their content
        "rewards.workers",
        "rewards.timeout_s",
        "rewards.memory_mb",
        "rewards.remote.url",
        "rewards.remote.timeout_s",
        "rewards.remote.retries",
        "rewards.remote.max_in_flight",
        "rewards.remote.max_reply_kb",
        "rewards.remote.token_variable",
        "rollout.replicas",
        "rollout.min_replicas",
        "rollout.capacity",
        "rollout.max_model_len",
        "rollout.threads",
        "rollout.kv_cache_gb",
        "rollout.tensor_parallel",
        "rollout.engine_options",
        "training.ranks",
        "training.tensor_parallel",
        "training.attention",
        "training.threads",
        "training.keep_round_weights",
        "training.micro_batch_tokens",
        "training.activation_checkpointing",
        "limits",
        "checkpoint",
        "eval",  # checked apart, against the figures that the run has (`common.evaluation.training`)
        "cluster",
        "supervision",
        "retention",
    }
)
_MODEL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors")  # configuration, tokenizer, weights


def check_same_run(config: Config, before: Config, run_dir: RunDir) -> None:
    """Raises ConfigError, in one line, where `config` would train something else than `before`, the run's own.

    The first difference is told in full, the others by name. A model at another path is the same where `start.json` has the
    identity that it has.
    """
    found = list(_differences(_settings(before), _settings(config)))
    if any(field == "model.path" for field, _, _ in found) and _is_same_model(config, run_dir):
        found = [difference for difference in found if difference[0] != "model.path"]
    if found:
        (field, was, now), *others = found
        also = f"also different: {', '.join(name for name, _, _ in others)}; leave them out" if others else "leave it out"
        rule = f"must be what the run was started with ({was!r})"
        raise ConfigError(explain(field, rule, now, f"{also}, or start a new run"))


def model_identity(model_dir: Path) -> str:
    """sha256 over names and contents of a model's configuration, tokenizer and weights. Streamed, files side by side."""
    files = sorted({path for pattern in _MODEL_FILES for path in model_dir.glob(pattern) if path.is_file()})
    with ThreadPoolExecutor() as threads:
        digests = list(threads.map(_digest, files))
    named = [[file.name, digest] for file, digest in zip(files, digests, strict=True)]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _settings(config: Config) -> dict[str, Any]:
    """Plain values. Two ways to say one thing are one: `groups_per_update: round` is R, `max_refills` None is R."""
    plain = config.model_dump(mode="json")
    plain["groups_per_update"] = config.update_groups
    plain["max_refills"] = config.groups_per_round if config.max_refills is None else config.max_refills
    return plain


def _differences(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(setting, old value, new value) of those that are fixed; of a section that only one has, the whole."""
    for name in dict.fromkeys([*before, *after]):
        field, was, now = prefix + name, before.get(name), after.get(name)
        if field in FREE or was == now:
            continue
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _differences(was, now, f"{field}.")
        else:
            yield field, was, now


def _is_same_model(config: Config, run_dir: RunDir) -> bool:
    try:
        known = json.loads((run_dir.path / "start.json").read_text(encoding="utf-8"))["model"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return config.model.path is not None and known == model_identity(Path(config.model.path))
