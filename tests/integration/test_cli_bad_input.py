"""Bad input: one line on stderr that names field, rule, value and remedy, exit 2, and nothing is made. One claim a test."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from common import cli
from tests.integration.tiny_models import sums_model

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model directory, for tests to break a copy of."""
    return sums_model(tmp_path_factory.mktemp("models") / "sums", steps=1)


@dataclass
class Shell:
    """`rolloutpipe` in this process, within an empty directory that it must leave empty."""

    folder: Path
    model: Path
    capsys: pytest.CaptureFixture[str]

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder.parent / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def config(self, **settings: Any) -> Path:
        """The quickstart with the small model of the tests."""
        data = yaml.safe_load(QUICKSTART.read_text())
        return self.write("config.yaml", yaml.safe_dump({**data, "model": {"path": str(self.model)}, **settings}))

    def __call__(self, *words: object) -> tuple[int, str, str]:
        code = cli.run([str(word) for word in words])
        out, err = self.capsys.readouterr()
        return code, out, err

    def refuses(self, *words: object) -> str:
        """The one line; fails unless that is all that happens."""
        start_s = time.monotonic()
        code, _, err = self(*words)
        assert code == 2, err
        assert err.startswith("rolloutpipe: ") and err.count("\n") == 1 and err.endswith("\n"), err
        assert "Traceback" not in err
        assert list(self.folder.iterdir()) == [], "something was written"
        assert time.monotonic() - start_s < 30
        return err.removeprefix("rolloutpipe: ").rstrip()

    def refuses_to_train(self, *overrides: str, **settings: Any) -> str:
        return self.refuses("train", self.config(**settings), *overrides)


@pytest.fixture
def shell(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ROLLOUTPIPE_CACHE", str(tmp_path / "cache"))
    return Shell(folder, model, capsys)


# --- words of the command line


def test_an_unknown_command_gets_the_nearest(shell: Shell) -> None:
    assert shell.refuses("trian") == "No such command 'trian'. Did you mean 'train'?"


def test_an_unknown_option_is_one_line(shell: Shell) -> None:
    assert shell.refuses("train", "--nonsense") == "No such option: --nonsense"


def test_train_without_a_configuration_says_which_to_give(shell: Shell) -> None:
    assert shell.refuses("train") == "CONFIG: must be given, got None; for example configs/quickstart.yaml"


def test_no_words_at_all_show_the_help(shell: Shell) -> None:
    code, out, err = shell()
    assert code == 0 and "train" in out and err == ""


def test_help_of_every_command_fits_the_terminal(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("train", "compare", "parity", "report", "convert", "doctor"):
        code, out, _ = shell(command, "--help")
        assert code == 0 and all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_result_file_that_cannot_be_written_is_refused_before_the_run(shell: Shell, command: str) -> None:
    """Not after an hour of training."""
    said = shell.refuses(command, shell.config(), "--json", "/nowhere/at/all.json")
    assert (
        said
        == "--json: must be a file that can be written, got '/nowhere/at/all.json'; check the path (No such file or directory)"
    )


def test_checking_the_result_file_leaves_none(shell: Shell) -> None:
    shell.refuses("train", shell.config(rounds=0), "--json", "result.json")


@pytest.mark.parametrize(
    ("schedules", "said"),
    [
        ("serial,cpg", "--schedules: must be some of serial,cgp,fgd,fgd-strict,adaptive, got 'cpg'"),
        ("fgd,fgd", "--schedules: must name each schedule once, got 'fgd,fgd'"),
        ("", "--schedules: must name each schedule once, got ''"),
    ],
)
def test_schedules_must_be_known_and_differ(shell: Shell, schedules: str, said: str) -> None:
    assert shell.refuses("compare", shell.config(), "--schedules", schedules).startswith(said)


# --- the configuration

FILES = [
    ("", "CONFIG: must hold a mapping of settings"),
    ("- a\n- b\n", "CONFIG: must hold a mapping of settings"),
    ("rounds:\n\t- 1\n", "(line 2, column 1: found character '\\t' that cannot start any token)"),
    ("rounds: [1\n", "CONFIG: must be valid YAML"),
    ("rounds: 1\nrounds: 2\n", "(line 2, column 1: rounds is set twice)"),
    ("name: 2024-13-45\n", "(month must be in 1..12)"),
    ("seed: " + "9" * 5000, "CONFIG: must be valid YAML"),
    ("a: " + "[" * 3000, "CONFIG: must be valid YAML"),
    ("a: !!python/object/apply:os.getcwd []\n", "CONFIG: must be valid YAML"),
    (b"\xff\xfe\x00\x01", "CONFIG: must be a readable YAML file"),
    ("rounds: 2\n", "model: must be set, got None"),
    ("model:\n", "model: must be a section: settings in lines below it, got None"),
    ("1: 2\nmodel: {recipe: quickstart}\n", "1: keys should be strings"),
]


@pytest.mark.parametrize(("content", "said"), FILES, ids=[str(content)[:30] for content, _ in FILES])
def test_a_broken_file_says_what_is_wrong_with_it(shell: Shell, content: str | bytes, said: str) -> None:
    assert said in shell.refuses("train", shell.write("bad.yaml", content))


@pytest.mark.parametrize("path", ["missing.yaml", ".", ""])
def test_a_file_that_is_not_there_is_told(shell: Shell, path: str) -> None:
    assert shell.refuses("train", path).startswith("CONFIG: must be a readable YAML file")


SETTINGS = [
    ("rounds", "override: must read key=value, got 'rounds'; for example rounds=4"),
    ("=3", "override: must read key=value"),
    ("rounds=x", "rounds: must be a valid integer"),
    ("rounds=", "rounds: must be a valid integer"),
    ("rounds=1.5", "rounds: must be a valid integer"),
    ("rounds=[", "rounds: must be a YAML value"),
    ("rounds=2024-13-45", "rounds: must be a YAML value"),
    ("rounds=1e999", "rounds: must be a finite number, got inf"),
    ("rounds.x=3", "rounds.x: rounds must be a section to have parts, got 14"),
    ("training.lr.x=1", "training.lr.x: lr must be a section to have parts"),
    ("training=3", "training: must be a section"),
    ("training.lr=nan", "training.lr: must be a finite number"),
    ("training.lr=inf", "training.lr: must be a finite number"),
    ("limits.stall_s=.inf", "limits.stall_s: must be a finite number"),
    ("training.lr=-1", "training.lr: must be greater than 0, got -1"),
    ("training.betas=[0.9, 1.5]", "training.betas.1: must be less than 1, got 1.5"),
    ("groups_per_round=" + "9" * 30, "groups_per_round: must be less than or equal to 1000000"),
    ("name=../escape", "name: string should match pattern"),
    ("shedule=fgd", "shedule: is no known setting, got 'fgd'; did you mean schedule?"),
    ("schedule=fdg", "schedule: must be 'serial', 'cgp', 'fgd', 'fgd-strict' or 'adaptive', got 'fdg'; did you mean fgd?"),
    ("training.lerning_rate=1", "training.lerning_rate: is no known setting, got 1; "),
    ("traning.lr=1", "traning: is no known setting, got {'lr': 1}; did you mean training?"),
    ("groups_per_update=rounds", "or must be 'round', got 'rounds'; did you mean round?"),
    (
        "responses_per_group=1",
        "responses_per_group: must be at least 2: the loss 'grpo' compares the members of a group, got 1",
    ),
    ("advantage_std=batch", "advantage_std: must be `group` or `none` under schedule `fgd`"),
    ("groups_per_update=33", "groups_per_update: must be between 1 and groups_per_round (32), or `round`, got 33; lower it"),
    ("training.micro_batch_tokens=100", "training.micro_batch_tokens: must hold the longest allowed sample"),
    ("training.micro_batch_tokens=257", "training.micro_batch_tokens: must hold the longest allowed sample"),
    (
        "sampling.max_tokens=600",
        "sampling.max_tokens: must leave room for a prompt within the model's 512 tokens, got 600",
    ),
    ("sampling.top_p=0.9", "sampling.top_p: must be 1.0"),
    ("sampling.stop_token_ids=[-1]", "sampling.stop_token_ids: must be ids of the model's 256 tokens, got -1; remove it"),
    ("rollout.max_model_len=100", "rollout.max_model_len: must hold the longest prompt plus sampling.max_tokens"),
    (
        "workload.name=reasoning_gym:chain_summ",
        "must be a reasoning-gym data set, got 'chain_summ'; did you mean chain_sum?",
    ),
    ("workload.question_pattern=(zzz)", "workload.question_pattern finds nothing in the question"),
    ("workload.max_prompt_tokens=1", "workload.max_prompt_tokens: leaves no problem: all 2000 prompts are longer, got 1"),
    ("workload.use_chat_template=true", "workload.use_chat_template: needs a tokenizer with a chat template"),
    ("rewards.function=no_such_module:score", "rewards.function: module no_such_module must be importable"),
    ("rewards.function=json:no_such_function", "rewards.function: module json must define no_such_function"),
]


@pytest.mark.parametrize(("override", "said"), SETTINGS, ids=[override[:40] for override, _ in SETTINGS])
def test_a_setting_that_breaks_a_rule_is_told(shell: Shell, override: str, said: str) -> None:
    assert said in shell.refuses_to_train(override)


@pytest.mark.parametrize(
    "override", ["training.lr=1e-4", "rounds=1e3", "seed=-1", "seed=123456789012345678901", "name=ünïcode", "name=7"]
)
def test_unusual_values_that_are_fine_are_taken(shell: Shell, override: str) -> None:
    code, out, err = shell("train", shell.config(), override, "--dry-run")
    assert code == 0 and err == "" and "plan of" in out and list(shell.folder.iterdir()) == []


def test_fewer_problems_than_a_round_needs_are_refused_under_stop(shell: Shell) -> None:
    """Pain: decided up front, not when the data run out."""
    said = shell.refuses_to_train("groups_per_round=5000", "workload.when_short=stop")
    assert said.startswith("workload: needs at least groups_per_round (5000) problems with workload.when_short `stop`, got 19")


@pytest.mark.parametrize("when_short", ["wrap", "short"])
def test_fewer_problems_than_a_round_needs_are_fine_under_wrap_and_short(shell: Shell, when_short: str) -> None:
    code, out, _ = shell("train", shell.config(), "--dry-run", "groups_per_round=5000", f"workload.when_short={when_short}")
    assert code == 0 and "problems" in out


# --- the machine


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.ranks=999", "training.ranks: must be at most the "),
        ("rollout.replicas=9999", "rollout.replicas: must fit into the "),
        ("rollout.threads=9999", "rollout.threads: must be at most the "),
        ("rollout.kv_cache_gb=99999", "rollout.replicas: must fit into the "),
    ],
)
def test_more_than_the_machine_has_room_for_is_refused_within_5_s(tmp_path: Path, override: str, said: str) -> None:
    """From the start of the command, all imports included."""
    start_s = time.monotonic()
    command = [sys.executable, "-m", "common.cli", "train", str(QUICKSTART), override]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ROLLOUTPIPE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=environment)
    assert time.monotonic() - start_s < 5
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"rolloutpipe: {said}") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# --- the model


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        file = directory / "config.json"
        settings = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))

    return edit


def replace(name: str, content: bytes) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return edit


def remove(pattern: str) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        for file in directory.glob(pattern):
            file.unlink()

    return edit


def truncate(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100_000])


def shrink_vocabulary(directory: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(directory / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:100].copy()
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    edit_config(vocab_size=100)(directory)


MODELS = [
    ("no configuration", remove("config.json"), "must be a model directory"),
    ("no weights", remove("*.safetensors"), "must hold safetensors weights"),
    ("no tokenizer", remove("tokenizer*"), "must hold a tokenizer"),
    ("weights of a web page", replace("model.safetensors", b"<html>404</html>"), "must hold readable safetensors"),
    ("empty weights", replace("model.safetensors", b""), "must hold readable safetensors"),
    ("truncated weights", truncate, "must hold readable safetensors"),
    ("broken configuration", replace("config.json", b'{"a":'), "must hold a readable config.json"),
    ("configuration that is a list", replace("config.json", b"[]"), "must hold a readable config.json"),
    ("broken generation configuration", replace("generation_config.json", b"x"), "must hold readable JSON files"),
    ("broken tokenizer", replace("tokenizer.json", b"{}"), "must hold a readable tokenizer"),
    ("another architecture", edit_config(model_type="llama"), "must hold tensors named as the model's parameters"),
    ("no language model", edit_config(model_type="t5"), "must hold a causal language model that transformers can load"),
    ("an unknown architecture", edit_config(model_type="foo"), "must hold a causal language model"),
    ("another size", edit_config(hidden_size=64), "must hold model.embed_tokens.weight in the shape that config.json gives it"),
    ("no attention heads", edit_config(num_attention_heads=0), "must hold a causal language model"),
    ("no context length", edit_config(max_position_embeddings=None), "must hold a config.json in which max_position_embeddings"),
    ("a vocabulary smaller than the tokenizer's", shrink_vocabulary, "must have a vocabulary that holds the tokenizer's ids"),
]


@pytest.mark.parametrize(("spoil", "said"), [row[1:] for row in MODELS], ids=[row[0] for row in MODELS])
def test_a_missing_or_corrupt_model_is_told(shell: Shell, tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(shell.model, spoilt)
    spoil(spoilt)
    assert shell.refuses_to_train(f"model.path={spoilt}").startswith(f"model.path: {said}")


@pytest.mark.parametrize("path", ["nowhere", "org/some-model-on-a-hub"])
def test_a_model_that_is_not_there_is_told(shell: Shell, path: str) -> None:
    assert shell.refuses_to_train(f"model.path={path}").startswith(f"model.path: must be a model directory, got '{path}'")


def test_code_within_a_model_directory_is_not_run(shell: Shell, tmp_path: Path) -> None:
    """Nor is anybody asked whether it may."""
    spoilt = tmp_path / "spoilt"
    shutil.copytree(shell.model, spoilt)
    edit_config(model_type="mine", auto_map={"AutoConfig": "evil.Config"})(spoilt)
    (spoilt / "evil.py").write_text("raise SystemExit('it ran')")
    assert shell.refuses_to_train(f"model.path={spoilt}").startswith("model.path: must hold a causal language model")


def test_a_model_that_names_no_end_is_said_to_run_to_the_limit(shell: Shell, tmp_path: Path) -> None:
    endless = tmp_path / "endless"
    shutil.copytree(shell.model, endless)
    edit_config(eos_token_id=None)(endless)
    (endless / "generation_config.json").unlink()
    code, out, _ = shell("train", shell.config(), f"model.path={endless}", "--dry-run")
    assert code == 0 and "names no token that ends a response" in out


# --- the data

GOOD = '{"question": "1 + 1 =", "answer": "2"}\n'
ROWS = [
    (GOOD + '{"question": "2 + 2 ="}\n', ":2: must have the field answer"),
    (GOOD + '{"question": "2 + 2 =", "answer": ""}\n', ":2: answer must be text or a number"),
    (GOOD + '{"question": "2 + 2 =", "answer": "#### "}\n', ":2: answer must hold an answer"),
    (GOOD + GOOD + "{broken\n", ":3: must be one JSON object, got '{broken'"),
    (GOOD + "[1]\n", ":2: must be one JSON object"),
    ("", "workload.path: must hold at least one row"),
]


@pytest.mark.parametrize(("content", "said"), ROWS, ids=[said for _, said in ROWS])
def test_a_broken_row_is_named_by_its_line(shell: Shell, content: str, said: str) -> None:
    path = shell.write("rows.jsonl", content)
    assert said in shell.refuses_to_train(workload={"name": "jsonl", "path": str(path)})


def test_rows_are_read_before_a_model_is_built(shell: Shell) -> None:
    """A recipe takes a minute: nobody should wait that long to hear of a broken row."""
    path = shell.write("rows.jsonl", "{broken\n")
    workload = {"name": "jsonl", "path": str(path)}
    shell.refuses_to_train(model={"recipe": "quickstart"}, workload=workload)
    assert not (shell.folder.parent / "cache").exists()


def test_prompts_longer_than_the_model_allows_are_left_out_and_counted(shell: Shell) -> None:
    """Pain 17."""
    long = json.dumps({"question": "1 + " * 600 + "1 =", "answer": "601"}) + "\n"
    path = shell.write("rows.jsonl", GOOD + long + GOOD.replace("1 + 1", "2 + 1") + GOOD)
    code, out, _ = shell("train", shell.config(workload={"name": "jsonl", "path": str(path)}), "--dry-run")
    assert code == 0
    assert "1 left out: prompt too long\n1 left out: repeats of another row\n" in out


# --- the run directory


def test_a_run_directory_that_holds_a_run_is_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "timeline.jsonl").write_text("")
    assert "--resume" in shell.refuses_to_train(f"run_dir={tmp_path}/old")
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["timeline.jsonl"]


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_run_directory_that_is_a_file_is_refused(shell: Shell, command: str) -> None:
    path = shell.write("file", "mine")
    said = shell.refuses(command, shell.config(), f"run_dir={path}")
    assert said.startswith("run_dir: must be a directory that can be made") and path.read_text() == "mine"


@pytest.mark.parametrize("command", [("report",), ("train", "--resume")])
@pytest.mark.parametrize("what", ["nowhere", "empty"])
def test_what_is_no_run_is_refused(shell: Shell, tmp_path: Path, command: tuple[str, ...], what: str) -> None:
    (tmp_path / "empty").mkdir()
    assert "must " in shell.refuses(*command, tmp_path / what)


def stopped_run(root: Path, config: Path, *, checkpoint: dict[str, Any] | None = None) -> Path:
    """As a run leaves it: its configuration and, where given, the state of a checkpoint."""
    from common.config import load_config
    from common.rundir import RunDir, checkpoint_dir, create

    run_dir = RunDir(root / "run")
    create(run_dir, load_config(config))
    if checkpoint is not None:
        directory = checkpoint_dir(run_dir, checkpoint["round"])
        directory.mkdir(parents=True)
        (directory / "state.json").write_text(json.dumps(checkpoint))
    return run_dir.path


STATE = {"round": 1, "version": 1, "sampler": {}, "workload": "c0ffee"}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("responses_per_group=4", "responses_per_group: must be what the run was started with (8), got 4"),
        ("model.path=elsewhere", "model.path: must be what the run was started with"),
        ("workload.seed=1", "workload.seed: must be what the run was started with"),
        ("seed=1", "seed: must be what the run was started with (0), got 1"),
        ("run_dir=elsewhere", "run_dir: must be the run to resume"),
    ],
)
def test_what_would_make_it_another_run_cannot_be_changed_by_a_resume(
    shell: Shell, tmp_path: Path, override: str, said: str
) -> None:
    run = stopped_run(tmp_path, shell.config(), checkpoint=STATE)
    assert shell.refuses("train", "--resume", run, override).startswith(said)


def test_other_data_than_the_run_was_trained_on_are_refused(shell: Shell, tmp_path: Path) -> None:
    """Pain 18: the settings are the same, the problems are not."""
    run = stopped_run(tmp_path, shell.config(), checkpoint=STATE)
    said = shell.refuses("train", "--resume", run)
    assert said.startswith("workload: must be the problems that the run was trained on (content c0ffee)")


def test_a_finished_run_has_nothing_to_do(shell: Shell, tmp_path: Path) -> None:
    run = stopped_run(tmp_path, shell.config(rounds=1), checkpoint=STATE)
    (run / "model").mkdir()
    (run / "result.json").write_text('{"weight_version": 1}')
    code, out, err = shell("train", "--resume", run, "--json", tmp_path / "out.json")
    assert (code, out, err) == (0, "nothing to do: all 1 rounds are done; more: rounds=N\n", "")
    assert json.loads((tmp_path / "out.json").read_text()) == {"weight_version": 1}


# --- the JAX trainer


def test_the_cpu_plays_a_sensible_number_of_devices(shell: Shell) -> None:
    said = shell.refuses("train", shell.config(), "trainer=jax", "training.ranks=100000", "--dry-run")
    assert said.startswith("training.ranks: must be at most the 64 devices that the CPU plays, got 100000; use 64")
