"""The configuration of a run: YAML file plus `key=value` overrides, validated once, then frozen.

Few numbers are set; the rest are derived properties. Rules that span settings are checked in `Config`, so
nothing downstream checks again. `None` means off. Messages: field as typed, rule, value, remedy
(`common.config_errors` turns pydantic's into ours).
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from common.config_cluster import ClusterConfig, RetentionConfig, SupervisionConfig
from common.config_eval import EvalConfig
from common.config_rewards import RewardConfig
from common.config_section import Section
from common.config_workload import WorkloadConfig
from common.errors import ConfigError, explain
from common.records import Sampling

Schedule = Literal["serial", "cgp", "fgd", "fgd-strict", "adaptive"]
RequestOrder = Literal["grouped", "interleaved", "shuffled"]
GroupOrder = Literal["arrival", "submission"]
Loss = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"]
DType = Literal["float32", "bfloat16"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class ModelConfig(Section):
    """The policy's starting weights: exactly one of `path` and `recipe`."""

    path: str | None = None  # a Hugging Face model directory: config.json, tokenizer, safetensors
    recipe: Literal["quickstart", "long_sums", "smollm2"] | None = None  # made once, then cached: warmed up here, or fetched
    recipe_options: dict[str, Any] = {}  # overrides of the recipe's settings


class SamplingConfig(Section):
    """As `common.records.Sampling`."""

    temperature: float = 1.0
    max_tokens: int = 256
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()

    def build(self) -> Sampling:
        """The record; raises ConfigError where a rule is broken."""
        return Sampling(**self.model_dump())

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.build()
        return self


class RolloutConfig(Section):
    """The pool of engines."""

    replicas: int = Field(1, ge=1, le=100_000)
    min_replicas: int = Field(1, ge=1)  # a run starts, and goes on, with so many; the others join when there is room for them
    capacity: int = Field(64, ge=1)  # requests in flight on one replica (vLLM max_num_seqs)
    dtype: DType = "float32"
    max_model_len: int | None = Field(None, ge=2)  # prompt and response tokens; None: the longest prompt plus max_tokens
    threads: int = Field(1, ge=1)  # CPU threads of one replica
    kv_cache_gb: int = Field(1, ge=1)  # CPU only
    tensor_parallel: int = Field(1, ge=1)
    engine_options: dict[str, Any] = {}  # further vLLM AsyncEngineArgs


class KlConfig(Section):
    """Penalty against the frozen starting weights."""

    coef: float = Field(gt=0)
    kind: Literal["k1", "k2", "k3"] = "k3"  # k2, k3 in the loss; k1 in the reward (as a loss its mean gradient is zero)


class TrainingConfig(Section):
    """The trainer."""

    ranks: int = Field(1, ge=1)  # processes (torch), or devices (jax)
    tensor_parallel: int = Field(1, ge=1)  # jax only: of the ranks, those that share heads; the rest share rows
    attention: Literal["xla", "splash"] | None = None  # jax only; None: splash on a TPU, else xla
    threads: int = Field(1, ge=1)  # CPU threads of one rank
    dtype: DType = "float32"  # compute; master weights and reductions stay float32
    loss: Loss = "grpo"
    clip_low: float = Field(0.2, gt=0)  # ratio is clipped to [1 - clip_low, 1 + clip_high]
    clip_high: float = Field(0.2, gt=0)
    kl: KlConfig | None = None
    importance_cap: float | None = Field(None, gt=0)  # truncated importance sampling against sampler mismatch; None: off
    keep_round_weights: bool = False  # a second copy of the weights, for `importance_cap` when U < R
    lr: float = Field(1e-6, gt=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float | None = Field(1.0, gt=0)
    micro_batch_tokens: int = Field(16384, ge=1)  # padded prompt and response tokens of one forward pass on one rank
    activation_checkpointing: bool = False  # jax keeps a layer's products with weights without it, and nothing with it


class LimitsConfig(Section):
    """Deadlines in seconds and rates at which a run stops (rule 7)."""

    request_timeout_s: float = Field(600, gt=0)
    group_timeout_s: float = Field(1800, gt=0)
    publish_timeout_s: float = Field(600, gt=0)
    update_timeout_s: float = Field(1800, gt=0)  # one trainer call
    start_timeout_s: float = Field(600, gt=0)
    stall_s: float = Field(30, gt=0)  # of silence, then at doubling intervals: the watchdog says who waits for whom
    max_retries: int = Field(2, ge=0)  # of one request
    max_logprob_gap: float | None = Field(None, gt=0)  # largest sampler-trainer gap on a round's first update; None: logged only
    max_probe_gap: float | None = Field(None, gt=0)  # of the probe after a publish; None: 1e-4 in float32, 0.3 in bfloat16
    close_timeout_s: float = Field(8, gt=0)  # at the end, and after Ctrl-C
    max_broken_share: float = Field(0.05, ge=0, le=1)  # of responses with missing or NaN log-probs in a round


class CheckpointConfig(Section):
    """Trainer state, at round boundaries."""

    every: int | None = Field(None, ge=1)  # rounds; None: the end of the run only
    keep: int = Field(2, ge=1)


class Config(Section):
    """A run."""

    name: str = Field("run", pattern=r"^[^/\x00]+$")  # part of a directory name
    run_dir: str | None = Field(None, min_length=1)  # None: runs/NAME-DATE-TIME
    seed: int = 0
    rounds: int = Field(1, ge=1, le=1_000_000)
    schedule: Schedule = "fgd"
    trainer: Literal["torch", "jax"] = "torch"
    groups_per_round: int = Field(32, ge=1, le=1_000_000)  # R
    responses_per_group: int = Field(8, ge=1, le=100_000)  # K
    groups_per_update: int | Literal["round"] = "round"  # U
    frontier_width: int | None = Field(None, ge=1)  # F_w; None: U
    request_order: RequestOrder = "grouped"
    group_order: GroupOrder = "arrival"
    filter: Literal["keep", "drop", "refill"] = "drop"  # groups of zero reward spread
    max_refills: int | None = Field(None, ge=0)  # refills of one round; None: R
    advantage_std: Literal["group", "batch", "none"] = "group"  # what (reward - group mean) is divided by
    model: ModelConfig
    workload: WorkloadConfig = WorkloadConfig()
    rewards: RewardConfig = RewardConfig()
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    training: TrainingConfig = TrainingConfig()
    limits: LimitsConfig = LimitsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    cluster: ClusterConfig = ClusterConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    retention: RetentionConfig = RetentionConfig()

    @property
    def update_groups(self) -> int:
        """U as a number."""
        return self.groups_per_round if self.groups_per_update == "round" else self.groups_per_update

    @property
    def updates_per_round(self) -> int:
        """Optimizer steps of a full round; the last may be short (rule 5)."""
        return -(-self.groups_per_round // self.update_groups)

    @property
    def total_updates(self) -> int:
        """Optimizer steps of the run, for the learning-rate schedule."""
        return self.rounds * self.updates_per_round

    @property
    def width(self) -> int:
        """F_w as a number; the paper sets it to U."""
        return self.frontier_width or self.update_groups

    @property
    def total_capacity(self) -> int:
        """Requests in flight over all replicas."""
        return self.rollout.replicas * self.rollout.capacity

    @model_validator(mode="after")
    def _check(self) -> Self:
        for check in (self._check_model, self._check_groups, self._check_advantage, self._check_training, self._check_rollout):
            check()
        return self

    def _check_model(self) -> None:
        if (self.model.path is None) == (self.model.recipe is None):
            given = {"path": self.model.path, "recipe": self.model.recipe}
            raise ConfigError(
                explain("model", "exactly one of path and recipe must be set", given, "set model.path to a model directory")
            )

    def _check_groups(self) -> None:
        updates, groups = self.groups_per_update, self.groups_per_round
        if updates != "round" and not 1 <= updates <= groups:
            rule = f"must be between 1 and groups_per_round ({groups}), or `round`"
            raise ConfigError(explain("groups_per_update", rule, updates, "lower it, or raise groups_per_round"))

    def _check_advantage(self) -> None:
        if self.responses_per_group < 2:
            rule = f"must be at least 2: the loss {self.training.loss!r} compares the members of a group"
            raise ConfigError(explain("responses_per_group", rule, self.responses_per_group, "use 8"))
        if self.advantage_std == "batch" and self.schedule != "serial":
            rule = f"must be `group` or `none` under schedule `{self.schedule}`, which trains before the batch is complete"
            raise ConfigError(explain("advantage_std", rule, "batch", "use advantage_std=group, or schedule=serial"))

    def _check_rollout(self) -> None:
        if self.rollout.min_replicas > self.rollout.replicas:
            rule = f"must be at most rollout.replicas ({self.rollout.replicas})"
            raise ConfigError(explain("rollout.min_replicas", rule, self.rollout.min_replicas, "lower it"))

    def _check_training(self) -> None:
        training = self.training
        self._check_mesh()
        one_update = self.update_groups >= self.groups_per_round
        if training.importance_cap is not None and not one_update and not training.keep_round_weights:
            rule = "needs the trainer's log-probs under the round's weights, which are gone after its first update"
            remedy = "set training.keep_round_weights=true (one more copy of the weights), or groups_per_update=round"
            raise ConfigError(explain("training.importance_cap", rule, training.importance_cap, remedy))
        if training.kl is not None and training.kl.kind == "k1" and self.filter != "keep":
            rule = "k1 changes rewards, so zero spread before it does not mean zero advantage"
            raise ConfigError(
                explain("filter", f"must be `keep` with training.kl.kind k1 ({rule})", self.filter, "set filter=keep")
            )
        longest = self.sampling.max_tokens + 1  # the shortest prompt has one token
        if training.micro_batch_tokens < longest:
            rule = f"must hold the longest allowed sample, prompt included (at least sampling.max_tokens + 1 = {longest})"
            remedy = "raise it, or lower sampling.max_tokens"
            raise ConfigError(explain("training.micro_batch_tokens", rule, training.micro_batch_tokens, remedy))

    def _check_mesh(self) -> None:
        training = self.training
        if self.trainer == "torch" and training.tensor_parallel != 1:
            rule = "must be 1 with trainer=torch"
            raise ConfigError(explain("training.tensor_parallel", rule, training.tensor_parallel, "use trainer=jax"))
        if self.trainer == "torch" and training.attention is not None:
            rule = "must be unset with trainer=torch"
            raise ConfigError(explain("training.attention", rule, training.attention, "remove it, or use trainer=jax"))
        if training.ranks % training.tensor_parallel:
            rule = f"must divide training.ranks ({training.ranks}), the devices of the mesh"
            raise ConfigError(explain("training.tensor_parallel", rule, training.tensor_parallel, "use a divisor of it"))


def load_config(path: Path, overrides: list[str] = ()) -> Config:  # type: ignore[assignment]
    """Read YAML, apply `a.b=value` overrides (values are YAML), validate.

    Raises ConfigError with one line for the first broken rule.
    """
    from common.config_errors import read_yaml, validate, with_overrides

    return validate(Config, with_overrides(read_yaml(path), overrides))
