"""`train --dry-run` for GPUs that are not here: the paper's settings, their figures by hand, and what cannot fit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from common import cli
from common.config import Config, load_config
from common.disk_space import journal_bytes
from common.plan_given import of_names
from common.plan_memory import plan_memory
from common.plan_run import plan_batches, plan_disk
from common.records import FinishReason, Group, Request, Response, Sample, Times, Verdict
from common.report.groups import group_to_json

ROOT = Path(__file__).parents[3]
PAPER = ROOT / "configs" / "paper"
SETTINGS = sorted(PAPER.glob("*_r*.yaml"))
SCHEDULES = ("serial", "cgp", "fgd", "adaptive")
LSAT = PAPER / "lsat_ar_r96.yaml"
FREE = 10**12


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory without model and data, on a disk of 1 TB."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(FREE, 0, FREE))  # type: ignore[attr-defined]
    return tmp_path


def plan(path: Path, *overrides: str) -> tuple[Any, Any, Any, Config]:
    config = load_config(path, list(overrides))
    given = of_names(config, print)
    return plan_memory(config, given), plan_batches(config, given), plan_disk(config, given, Path("runs/x")), config


def refused(capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    code = cli.run(["train", str(LSAT), "--dry-run", *overrides])
    out, err = capsys.readouterr()
    assert code == 2 and err.count("\n") == 1 and "plan of" not in out
    return err.removeprefix("rolloutpipe: ")


def test_the_settings_are_the_papers() -> None:
    names = {f"{workload}_r{groups}" for workload in ("lsat_ar", "sci_xw", "sci_jl", "olyphys") for groups in (32, 64, 96)}
    assert {path.stem for path in SETTINGS} == names
    for path in SETTINGS:
        config = load_config(path)
        assert (config.workload.name, config.groups_per_round) == (
            path.stem.rpartition("_")[0],
            int(path.stem.rpartition("r")[2]),
        )
        assert (config.responses_per_group, config.update_groups, config.width, config.rounds) == (8, 2, 2, 4)
        assert (config.update_groups * config.responses_per_group, config.training.dtype, config.training.loss) == (
            16,
            "bfloat16",
            "grpo",
        )
        assert (config.cluster.rollout.gpus, config.rollout.tensor_parallel, config.cluster.trainer.gpus) == (2, 2, 8)
        assert (config.cluster.rollout.labels, config.cluster.trainer.labels) == ({"pool": "rollout"}, {"pool": "trainer"})


def test_settings_of_a_workload_differ_in_the_round_alone() -> None:
    for path in SETTINGS:
        other = load_config(path, ["groups_per_round=32", "name=x"])
        assert other == load_config(PAPER / f"{path.stem.rpartition('_')[0]}_r32.yaml", ["name=x"])


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_setting_fits_under_each_schedule(path: Path, schedule: str) -> None:
    memory, batches, disk, config = plan(path, f"schedule={schedule}")
    assert config.schedule == schedule
    assert memory.trainer.total < memory.trainer.device_bytes and memory.rollout.total < memory.rollout.device_bytes
    assert memory.full_requests >= config.rollout.capacity
    assert batches.updates == config.groups_per_round // 2 and disk.total < FREE


def test_the_command_prints_the_plan_and_writes_all_figures(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", str(LSAT), "--dry-run", "schedule=serial", "--json", "plan.json"]) == 0
    out = capsys.readouterr().out
    assert "RTX 4090" in out and "A100" in out and "not looked at" in out
    figures = json.loads((elsewhere / "plan.json").read_text())["figures"]
    assert figures["has_data"] is False and figures["memory"]["kv_tokens"] > 0 and figures["disk"]["free"] == FREE
    assert [path.name for path in elsewhere.iterdir()] == ["plan.json"]


def test_figures_of_one_setting_by_hand() -> None:
    """LSAT-AR, R = 96: Qwen3-1.7B has 28 layers of width 2048, 6144 within, 16 heads and 8 key heads of 128."""
    memory, batches, disk, _ = plan(LSAT)
    layer = 2048 * (2 * 2048 + 2 * 1024) + 2 * 128 + 3 * 2048 * 6144 + 2 * 2048
    params = 28 * layer + 2048 + 151_936 * 2048
    assert params == 1_720_574_976
    trainer, rollout = memory.trainer.parts, memory.rollout.parts
    assert (trainer["parameters"], trainer["gradients"], trainer["moments"]) == (params // 2, params // 2, params)
    # 5120 tokens: the inputs of 28 layers, float32 and bfloat16 of the last norm, its output, cosine and sine.
    assert trainer["activations"] == 5120 * (28 * 2 * 2048 + 4 * 2048 + 2 * 2 * 2048 + 2 * 2 * 128)
    # The head: gathered tables and norm, the gradient of the table, five copies of 441 x 151936 logits, one gathered layer.
    assert trainer["working"] == 2 * (params - 28 * layer) + 2 * 151_936 * 2048 + 5 * 4 * 441 * 151_936 + 2 * layer
    assert rollout["weights"] == params and memory.kv_token_bytes == 28 * 2 * 4 * 128 * 2
    assert rollout["kv_cache"] == 34_000_000_000 - params - 2_000_000_000
    assert memory.kv_tokens == rollout["kv_cache"] // 57_344 and memory.full_requests == 103
    assert (batches.responses, batches.updates, batches.rows_per_update) == (768, 48, 16)
    assert (batches.micro_batches_per_group, batches.micro_batches_per_update, batches.micro_batch_tokens) == (1, 2, 5120)
    assert (batches.sampled_tokens, batches.trained_tokens) == (768 * 4096, 768 * 5120)
    assert (disk.checkpoint, disk.checkpoints, disk.model) == (12 * params, 1, 2 * params)


def test_checkpoints_and_samples_that_stay_are_counted() -> None:
    config = load_config(LSAT, ["rounds=40", "checkpoint.every=4", "checkpoint.keep=2", "retention.groups=5"])
    disk = plan_disk(config, of_names(config, print), Path("runs/x"))
    assert (disk.checkpoints, disk.journal_rounds) == (3, 5)  # the third is there before the first goes
    assert disk.spool == 2 * disk.model  # on a cluster it lies in the run directory
    assert disk.total == 3 * disk.checkpoint + 5 * disk.journal_round + disk.model + disk.spool
    assert plan(LSAT, "cluster.spool_dir=spools")[2].spool == 0


# --- what cannot fit


@pytest.mark.parametrize(
    ("overrides", "said", "remedy"),
    [
        (["cluster.trainer.gpu_memory_gb=8"], "cluster.trainer.gpu_memory_gb: must hold the 8.3 GB", "training.ranks=16"),
        (
            ["training.activation_checkpointing=false", "cluster.trainer.gpu_memory_gb=16"],
            "cluster.trainer.gpu_memory_gb: must hold the 23.9 GB",
            "training.activation_checkpointing=true",
        ),
        (
            ["training.micro_batch_tokens=81920", "cluster.trainer.gpu_memory_gb=16"],
            "cluster.trainer.gpu_memory_gb: must hold the",
            "training.micro_batch_tokens=5120",
        ),
        (["training.ranks=16"], "training.ranks: must be at most the 8 GPUs of cluster.trainer, got 16", "use 8"),
        (["rollout.replicas=2"], "rollout.replicas: must fit the 2 GPUs of cluster.rollout", "use 1"),
        (["rollout.tensor_parallel=4"], "rollout.replicas: must fit the 2 GPUs", "rollout.tensor_parallel=2"),
        (
            ["cluster.rollout.gpu_memory_gb=4.6"],
            "cluster.rollout.gpu_memory_gb: must leave a cache for one request",
            "larger GPUs",
        ),
        (["cluster.rollout.gpu_memory_gb=1"], "cluster.rollout.gpu_memory_gb: must leave a cache for one request", "larger GPUs"),
        (["rollout.max_model_len=4000"], "rollout.max_model_len: must hold the longest prompt", "remove it"),
        (["training.micro_batch_tokens=4096"], "training.micro_batch_tokens: must hold the longest", "raise it"),
        (["sampling.max_tokens=40960", "training.micro_batch_tokens=50000"], "sampling.max_tokens: must leave room", "lower it"),
        (["model.path=models/none"], "model.path: must hold a config.json", "config.json"),
        (["checkpoint.every=1", "checkpoint.keep=60", "rounds=60"], "run_dir: must have 1", "checkpoint.keep"),
    ],
)
def test_what_cannot_fit_is_refused(capsys: pytest.CaptureFixture[str], overrides: list[str], said: str, remedy: str) -> None:
    message = refused(capsys, *overrides)
    assert message.startswith(said) and remedy in message.rpartition("; ")[2]


def test_a_remedy_that_is_named_helps(capsys: pytest.CaptureFixture[str]) -> None:
    small = "cluster.trainer.gpu_memory_gb=16"
    assert "training.activation_checkpointing=true" in refused(capsys, small, "training.activation_checkpointing=false")
    assert cli.run(["train", str(LSAT), "--dry-run", small, "training.activation_checkpointing=true"]) == 0


def test_more_memory_is_needed_for_a_reference_and_for_kept_weights() -> None:
    plain = plan(LSAT)[0].trainer
    with_kl = plan(LSAT, "training.kl={coef: 0.001}")[0].trainer
    kept = plan(LSAT, "training.importance_cap=2", "training.keep_round_weights=true")[0].trainer
    assert with_kl.total - plain.total == kept.total - plain.total == plain.parts["parameters"]


def test_the_jax_trainer_is_planned_by_its_own_room() -> None:
    memory = plan(LSAT, "trainer=jax", "training.tensor_parallel=2")[0]
    assert memory.trainer.parts["moments"] == 1_720_574_976 and memory.trainer.total < 24e9


# --- what is at hand


def test_a_config_json_is_enough_and_wins_over_the_name(elsewhere: Path) -> None:
    model = elsewhere / "models" / "Qwen3-1.7B"
    model.mkdir(parents=True)
    shape = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    data = {**shape, "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 8192, "tie_word_embeddings": True}
    (model / "config.json").write_text(json.dumps(data))
    given = of_names(load_config(LSAT), print)
    attention, mlp, norms = 4 * 64 * 64, 3 * 64 * 128, 2 * 64
    assert given.num_params == 2 * (attention + mlp + norms) + 64 + 1000 * 64 and given.workload is None


def journal_line(prompt: int, response: int) -> int:
    """Bytes that one sample takes in groups/, with log-probs of all digits and the text of English words."""
    request = Request(request_id="r3-g12-m7", group_id="r3-g12", order=12, member=7, prompt_ids=(151_643,) * prompt, seed=2**62)
    answer = Response(
        request_id="r3-g12-m7",
        token_ids=tuple(100_000 + index for index in range(response)),
        logprobs=tuple(-1 / (index + 3) for index in range(response)),
        finish_reason=FinishReason.LENGTH,
        version_start=3,
        version_end=3,
        times=Times(admitted_s=1.234567, finished_s=2.345678, scored_s=3.456789),
    )
    sample = Sample(
        request=request, response=answer, reward=1.0, status=Verdict.OK, advantage=0.123456789, text="word" * response
    )
    group = Group(group_id="r3-g12", order=12, weight_version=3, samples=(sample,), filtered=None)
    return len(json.dumps(group_to_json(group, "p" * 4 * prompt), separators=(",", ":")))


@pytest.mark.parametrize(("prompt", "response"), [(1024, 4096), (16, 256)])
def test_the_samples_of_a_round_take_what_is_planned(prompt: int, response: int) -> None:
    written = journal_line(prompt, response)
    assert written <= journal_bytes(1, prompt, response) <= 1.25 * written


def test_the_documented_room_on_disk_is_the_planned_one() -> None:
    disk = plan(LSAT)[2]
    total, checkpoint, model, spool = (f"{part / 1e9:.1f}" for part in (disk.total, disk.checkpoint, disk.model, disk.spool))
    samples = f"samples at most {disk.journal_round / 1e9:.2f} a round for {disk.journal_rounds} rounds"
    row = f"| disk | {total} GB: a checkpoint {checkpoint}, the final model {model}, the spool {spool}, {samples} |"
    assert row in (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
