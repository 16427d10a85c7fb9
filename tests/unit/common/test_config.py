"""Configurations: every fault is one line with field, rule, value and remedy (design section 7, "Bad input")."""

from pathlib import Path
from typing import Any

import pytest

from common.config import Config, RewardConfig, load_config
from common.config_errors import validate
from common.errors import ConfigError

BASE: dict[str, Any] = {"model": {"path": "some/model"}}


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    file = tmp_path / "run.yaml"
    file.write_text(text if text.startswith("model:") else "model: {path: some/model}\n" + text)
    return load_config(file, list(overrides))


FAULTS = [
    # What is typed, and the whole line that comes back.
    ("shedule: cgp", "shedule: is no known setting, got 'cgp'; did you mean schedule?"),
    (
        "training: {learning_rat: 1}",
        "training.learning_rat: is no known setting, got 1; known here: activation_checkpointing",
    ),
    (
        "training: {lr_schedul: cosine}",
        "training.lr_schedul: is no known setting, got 'cosine'; did you mean training.lr_schedule?",
    ),
    ("training: {kl: {coeff: 0.1}}", "training.kl.coeff: is no known setting, got 0.1; did you mean training.kl.coef?"),
    (
        "responses_per_group: 1",
        "responses_per_group: must be at least 2: the loss 'grpo' compares the members of a group, got 1; use 8",
    ),
    ("responses_per_group: 0", "responses_per_group: must be greater than or equal to 1, got 0; change it, or remove it"),
    (
        "schedule: cgp\nadvantage_std: batch",
        "advantage_std: must be `group` or `none` under schedule `cgp`, which trains before the batch is complete, got 'batch'; "
        "use advantage_std=group, or schedule=serial",
    ),
    (
        "groups_per_round: 8\ngroups_per_update: 9",
        "groups_per_update: must be between 1 and groups_per_round (8), or `round`, got 9; lower it, or raise groups_per_round",
    ),
    ("groups_per_update: 0", "groups_per_update: must be between 1 and groups_per_round (32), or `round`, got 0; lower it"),
    (
        "groups_per_update: all",
        "groups_per_update: must be a valid integer, unable to parse string as an integer, or must be 'round'",
    ),
    (
        "sampling: {max_tokens: 256}\ntraining: {micro_batch_tokens: 256}",
        "training.micro_batch_tokens: must hold the longest allowed sample, prompt included "
        "(at least sampling.max_tokens + 1 = 257), got 256; raise it, or lower sampling.max_tokens",
    ),
    (
        "sampling: {top_p: 0.9}",
        "sampling.top_p: must be 1.0: a truncated sampler's log-probs are not the policy's, got 0.9; "
        "remove it, or lower sampling.temperature instead",
    ),
    ("sampling: {top_k: 50}", "sampling.top_k: must be 0: a truncated sampler's log-probs are not the policy's, got 50; "),
    ("sampling: {min_p: 0.1}", "sampling.min_p: must be 0.0: a truncated sampler's log-probs are not the policy's, got 0.1; "),
    ("sampling: {temperature: 0}", "sampling.temperature: must be above 0, got 0.0; use 1.0 for the model's own distribution"),
    ("sampling: {max_tokens: 0}", "sampling.max_tokens: must be at least 1, got 0; raise it"),
    ("model: {}", "model: exactly one of path and recipe must be set, got {'path': None, 'recipe': None}; set model.path"),
    ("model: {path: a, recipe: quickstart}", "model: exactly one of path and recipe must be set, got {'path': 'a', "),
    ("schedule: fast", "schedule: must be 'serial', 'cgp', 'fgd', 'fgd-strict' or 'adaptive', got 'fast'; change it"),
    ("rounds: none", "rounds: must be a valid integer, unable to parse string as an integer, got 'none'; change it"),
    ("limits: {stall_s: 0}", "limits.stall_s: must be greater than 0, got 0; change it, or remove it for the default"),
    ("supervision: {silent_s: 0.5}", "supervision.silent_s: must be greater than or equal to 1, got 0.5; change it"),
    ("supervision: {max_restarts: 1001}", "supervision.max_restarts: must be less than or equal to 1000, got 1001; change it"),
    ("rollout: {replicas: 100001}", "rollout.replicas: must be less than or equal to 100000, got 100001; change it"),
    ("limits: {group_timeout_s: .inf}", "limits.group_timeout_s: must be a finite number, got inf; change it"),
    ("training: {lr: .nan}", "training.lr: must be a finite number, got nan; change it"),
    ("limits: {max_broken_share: 2}", "limits.max_broken_share: must be less than or equal to 1, got 2; change it"),
    ("rollout: 3", "rollout: must be a section: settings in lines below it, got 3; change it"),
    (
        "groups_per_update: 4\ntraining: {importance_cap: 2}",
        "training.importance_cap: needs the trainer's log-probs under the round's weights, which are gone after its first "
        "update, got 2.0; set training.keep_round_weights=true (one more copy of the weights), or groups_per_update=round",
    ),
    (
        "filter: drop\ntraining: {kl: {coef: 0.1, kind: k1}}",
        "filter: must be `keep` with training.kl.kind k1 (k1 changes rewards, so zero spread before it does not mean zero "
        "advantage), got 'drop'; set filter=keep",
    ),
    ("training: {kl: {kind: k3}}", "training.kl.coef: must be set, got None; add it to the configuration"),
    ("- a list", "CONFIG: must be valid YAML, got "),
    ("name: [", "CONFIG: must be valid YAML, got "),
]


@pytest.mark.parametrize(("text", "line"), FAULTS, ids=[text.replace("\n", " ") for text, _ in FAULTS])
def test_a_fault_is_one_line_with_field_rule_value_and_remedy(tmp_path: Path, text: str, line: str) -> None:
    """What the user types, and what the user is told."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(line)
    assert "\n" not in message and ", got " in message and "; " in message


def test_an_unknown_key_is_told_before_what_follows_from_it(tmp_path: Path) -> None:
    """A misspelt `coef` also leaves `coef` unset; the spelling is the cause."""
    with pytest.raises(ConfigError, match=r"^training\.kl\.coeff: is no known setting"):
        load(tmp_path, "training: {kl: {coeff: 0.1}, lr: -1}")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("rounds", "override: must read key=value, got 'rounds'; for example rounds=4"),
        ("=4", "override: must read key=value, got '=4'; "),
        ("training.lr.x=1", "training.lr.x: lr must be a section to have parts, got 0.1; check the spelling"),
        ("name=[", "name: must be a YAML value, got '['; "),
        ("round=4", "round: is no known setting, got 4; did you mean rounds?"),
        ("training.lr=-1", "training.lr: must be greater than 0, got -1; "),
    ],
)
def test_overrides_are_checked_in_the_same_way(tmp_path: Path, override: str, line: str) -> None:
    """`key=value` on the command line."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "training: {lr: 0.1}", override)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_overrides_reach_into_sections(tmp_path: Path) -> None:
    """Values are YAML; `1e-4` is the number that people mean, and what stands in the file stays."""
    config = load(
        tmp_path, "training: {lr: 0.1, ranks: 2}", "training.lr=1e-4", "training.kl.coef=0.1", "groups_per_update=4", "name=x"
    )
    assert (config.training.lr, config.training.ranks, config.groups_per_update, config.name) == (1e-4, 2, 4, "x")
    assert config.training.kl is not None and config.training.kl.coef == 0.1
    assert load(tmp_path, "training: {kl: {coef: 1}}", "training.kl=null").training.kl is None


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda path: None, "CONFIG: must be a readable YAML file"),
        (lambda path: path.mkdir(), "CONFIG: must be a readable YAML file"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "CONFIG: must be "),
        (lambda path: path.write_text(""), "CONFIG: must hold a mapping of settings"),
        (lambda path: path.write_text("- a\n- b\n"), "CONFIG: must hold a mapping of settings"),
    ],
    ids=["missing", "folder", "binary", "empty", "list"],
)
def test_a_file_that_is_no_configuration_is_told_in_one_line(tmp_path: Path, make: Any, line: str) -> None:
    """No traceback of YAML or of the file system."""
    make(tmp_path / "run.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "run.yaml")
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_few_numbers_are_set_and_the_rest_follows() -> None:
    """R=10, U=4: three updates a round, the last one short; the width is U unless it is set."""
    config = validate(Config, {**BASE, "groups_per_round": 10, "groups_per_update": 4, "rounds": 5})
    assert (config.update_groups, config.updates_per_round, config.total_updates, config.width) == (4, 3, 15, 4)
    assert validate(Config, {**BASE, "groups_per_round": 10}).update_groups == 10
    assert validate(Config, {**BASE, "frontier_width": 3}).width == 3
    assert validate(Config, {**BASE, "rollout": {"replicas": 2, "capacity": 8}}).total_capacity == 16


def test_shapes_need_not_divide_each_other() -> None:
    """Pain 19: R=10, K=3, 4 ranks, U=4 is a plan and no error."""
    shape = {"groups_per_round": 10, "responses_per_group": 3, "groups_per_update": 4, "training": {"ranks": 4}}
    assert validate(Config, {**BASE, **shape}).updates_per_round == 3


def test_a_configuration_does_not_change(tmp_path: Path) -> None:
    """Frozen once it is valid."""
    config = load(tmp_path, "")
    with pytest.raises(ValueError, match="frozen"):
        config.rounds = 7  # type: ignore[misc]


def test_batch_advantages_are_allowed_where_the_batch_is_complete() -> None:
    """Trap 3: `serial` alone."""
    assert validate(Config, {**BASE, "schedule": "serial", "advantage_std": "batch"}).advantage_std == "batch"


@pytest.mark.parametrize("extra", [{"groups_per_update": "round"}, {"training": {"keep_round_weights": True}}])
def test_truncated_importance_sampling_is_allowed_where_the_old_log_probs_are_known(extra: dict[str, Any]) -> None:
    """Design section 3: one update a round, or a second copy of the weights."""
    training = {"importance_cap": 2.0, **extra.get("training", {})}
    settings = {**BASE, "groups_per_update": 4, **extra, "training": training}
    assert validate(Config, settings).training.importance_cap == 2.0


def test_golds_are_needed_by_the_shipped_checkers_alone() -> None:
    assert RewardConfig().needs_gold
    assert not RewardConfig(function="my_rewards:score").needs_gold
    assert not RewardConfig.model_validate({"remote": {"url": "http://127.0.0.1:8000/score"}}).needs_gold
