"""`rolloutpipe workloads`: what there is; and problems of one workload as the model sees them."""

from pathlib import Path
from typing import Any

from rich.console import Console

from common.config import Config
from common.config_errors import read_yaml, validate, with_overrides
from common.config_section import Section
from common.config_workload import WorkloadConfig
from common.errors import ConfigError, explain
from common.protocols import Problem
from common.workloads.catalog import CATALOG
from common.workloads.load import Workload, load_problems
from common.workloads.prompts import load_tokenizer
from common.workloads.reasoning_gym import data_set_names

_PERCENTILES = (0, 50, 90, 95, 99, 100)


class _Named(Section):
    """What is read from the command line where no configuration is."""

    workload: WorkloadConfig


class _Characters:
    """Stands in for a tokenizer where there is none: one token a character."""

    bos_token_id = None

    def __call__(self, texts: list[str], add_special_tokens: bool = False) -> dict[str, list[list[int]]]:
        return {"input_ids": [list(map(ord, text)) for text in texts]}


def list_workloads(console: Console, *, has_generated: bool = False) -> dict[str, Any]:
    """Every workload with its schema, source, licence and checker; with `has_generated` the names of reasoning-gym too."""
    for workload in CATALOG:
        console.print(f"[bold]{workload.name}[/bold]  {workload.about}", highlight=False, soft_wrap=True)
        for name in ("schema", "source", "licence", "checker"):
            console.print(f"  {name:8} {getattr(workload, name)}", markup=False, highlight=False, soft_wrap=True)
    result: dict[str, Any] = {"workloads": [workload.to_json() for workload in CATALOG]}
    if has_generated:
        result["generated"] = data_set_names()
        _line(console, f"reasoning-gym: {', '.join(result['generated'])}")
    return result


def show_workload(source: str, overrides: list[str], rows: int, model: Path | None, console: Console) -> dict[str, Any]:
    """The first problems of the workload, and what became of all rows. Without a tokenizer prompts are bare and lengths in
    characters. Raises ConfigError and DataError.
    """
    if rows < 1:
        raise ConfigError(explain("--rows", "must be 1 or more", rows, "use 3"))
    config, needs_gold, model = _settings(source, overrides, model)
    if model is None:
        bare = {"use_chat_template": False, "system_prompt": None, "enable_thinking": None, "max_prompt_tokens": None}
        workload = load_problems(config.model_copy(update=bare), _Characters(), needs_gold=needs_gold)
    else:
        workload = load_problems(config, load_tokenizer(model), needs_gold=needs_gold)
    result = _result(config, workload, rows, model)
    _print(console, result)
    return result


def _settings(source: str, overrides: list[str], model: Path | None) -> tuple[WorkloadConfig, bool, Path | None]:
    """Workload, whether it needs golds, and model directory, of a configuration file or of a name."""
    if source.endswith((".yaml", ".yml")) or Path(source).is_file():
        config = validate(Config, with_overrides(read_yaml(Path(source)), _prefixed(overrides, set(WorkloadConfig.model_fields))))
        path = None if config.model.path is None else Path(config.model.path)
        return config.workload, config.rewards.needs_gold, model or path
    named = validate(_Named, with_overrides({"workload": {"name": source}}, _prefixed(overrides)))
    return named.workload, True, model


def _prefixed(overrides: list[str], names: set[str] | None = None) -> list[str]:
    """A setting of the workload may be typed without `workload.`; those are the ones in `names`, or all where no other can be."""

    def prefixed(text: str) -> str:
        head = text.partition("=")[0].partition(".")[0]
        return f"workload.{text}" if head != "workload" and (names is None or head in names) else text

    return [prefixed(text) if "=" in text else text for text in overrides]


def _result(config: WorkloadConfig, workload: Workload, rows: int, model: Path | None) -> dict[str, Any]:
    lengths = sorted(len(problem.prompt_ids) for problem in workload.problems)
    ranks = {f"p{share}": lengths[max(0, -(-share * len(lengths) // 100) - 1)] for share in _PERCENTILES}
    return {
        "workload": config.name,
        "model": None if model is None else str(model),
        "is_chat": config.is_chat and model is not None,
        "length_unit": "characters" if model is None else "tokens",
        "problems": [_problem(problem) for problem in workload.problems[:rows]],
        "num_problems": len(workload.problems),
        "num_rows": workload.num_rows,
        "num_held_out": workload.num_held_out,
        "num_duplicates": workload.num_duplicates,
        "num_bad_golds": workload.num_bad_golds,
        "num_filtered": workload.num_filtered,
        "left_out": workload.left_out,
        "notes": list(workload.notes),
        "prompt_length": ranks,
    }


def _problem(problem: Problem) -> dict[str, Any]:
    task = problem.task
    gold = task["gold"] if "gold" in task else task["entry"]["answer"]  # the latter of reasoning-gym
    shown: dict[str, Any] = {"prompt": problem.prompt, "length": len(problem.prompt_ids), "gold": gold}
    return shown | {key: task[key] for key in ("unit", "tolerance", "category") if key in task}


def _print(console: Console, result: dict[str, Any]) -> None:
    unit = result["length_unit"]
    for index, problem in enumerate(result["problems"], start=1):
        console.rule(f"problem {index}, {problem['length']} {unit}", align="left")
        _line(console, problem["prompt"])
        console.rule(style="dim")
        for key in ("gold", "unit", "tolerance", "category"):
            if key in problem:
                _line(console, f"{key:9} {problem[key]}")
    console.rule()
    _line(console, f"{result['num_problems']:,} problems to train on, of {result['num_rows']:,} rows")
    for note in result["notes"]:
        _line(console, f"  {note}")
    lengths = ", ".join(f"{name} {length:,}" for name, length in result["prompt_length"].items())
    _line(console, f"prompt length in {unit}: {lengths}")
    if result["model"] is None:
        _line(console, "no model: bare prompts, without chat template and special tokens; --model DIR shows what a model sees")


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
