"""What was seen of one round, event by event, and its figures: the inside of `common.metrics`."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from common.records import Verdict
from common.timeline import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMetrics:
    """Figures of one round; `to_json` gives plain JSON values."""

    round: int
    version: int  # weight version that the round sampled from
    schedule: str
    is_finished: bool  # its round_end was seen
    r2t_end_s: float | None = None  # round start to the end of the last update
    first_group_s: float | None = None  # the first group handed to the trainer
    first_dispatch_s: float | None = None
    rollout_s: float | None = None
    trainer_wait_s: float = 0.0
    trainer_compute_s: float = 0.0
    trainer_cpu_s: float | None = None  # CPU seconds of all trainer ranks
    compilations: float | None = None  # programs that the trainer compiled; the start's are in the first round
    waiting_ratio: float | None = None
    waiting_ratio_first: float | None = None
    publish_s: float = 0.0
    tokens: int = 0  # response tokens of trained groups
    tokens_generated: int = 0  # response tokens sampled, retries and untrained groups included
    rollout_tokens_per_s: float | None = None
    train_tokens_per_s: float | None = None  # of compute time
    reward_mean: float | None = None  # over all scored responses
    reward_trained_p25: float | None = None  # quartiles of the mean rewards of trained groups
    reward_trained_p75: float | None = None
    groups_trained: int = 0
    groups_filtered: int = 0
    groups_dropped: int = 0
    length_mean: float | None = None  # of responses, in tokens
    length_median: float | None = None
    length_p90: float | None = None
    length_max: int | None = None
    cut_off_share: float | None = None  # of responses that ran into max_tokens
    verify_s_mean: float | None = None  # of a verifier call, from when a worker took it; older timelines do not have it
    verify_s_max: float | None = None
    no_answer_share: float | None = None  # of verdicts: no answer found
    verifier_timeouts: int = 0  # verdicts
    verifier_errors: int = 0
    retries: int = 0
    logprob_gap_max: float | None = None  # on the first update, before any step
    loss_mean: float | None = None
    grad_norm_mean: float | None = None
    updates: int = 0
    optimizer_step: int | None = None  # after the round's last update
    groups_recorded: int = 0  # of a resumed round: found on disk, so not sampled in this try
    books: Mapping[str, int] = field(default_factory=dict)  # of round_end (rule 3)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; NaN and infinity become None."""
        return {name: finite(value) for name, value in asdict(self).items()}


def finite(value: Any) -> Any:
    """None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def percentile(values: list[float] | list[int], share: float) -> float | None:
    """The `share` quantile (0..1) of sorted values, linear between neighbours."""
    if not values:
        return None
    place = share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def mean(values: list[float] | list[int]) -> float | None:
    """Of infinities of both signs NaN, as sums of floats have it."""
    try:
        return statistics.fmean(values) if values else None
    except ValueError:
        return math.nan


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


Interval = tuple[float, float]


def _overlap(intervals: list[Interval], start: float, end: float) -> float:
    """Seconds of the intervals within [start, end]."""
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in intervals)


class RoundEvents:
    """What was seen of one round."""

    def __init__(self, event: Event, schedule: str) -> None:
        self.round: int = event["round"]
        self.version: int = event.get("version", 0)
        self.schedule = schedule
        self.start_s: float = event["t"]
        self.last_s: float = event["t"]  # of any event
        self.rollout_done_s: float | None = None
        self.last_update_s: float | None = None
        self.waits: list[Interval] = []
        self.computes: list[Interval] = []
        self.accumulates: list[tuple[int, float, str]] = []  # update, start, group
        self.publish_s = 0.0
        self.lengths: list[int] = []
        self.num_cut_off = 0
        self.tokens_generated = 0
        self.rewards: list[float] = []
        self.verdicts: Counter[str] = Counter()
        self.verify_s: list[float] = []  # of calls
        self.group_rewards: dict[str, float] = {}
        self.group_tokens: dict[str, int] = {}
        self.num_filtered = self.num_dropped = self.retries = 0
        self.groups_recorded = 0
        self.is_replay = False  # trained from disk alone: its times say nothing of a round
        self.updates: list[Event] = []
        self.books: dict[str, int] = {}
        self.is_finished = False

    def add(self, event: Event) -> None:
        """Take one event of the round."""
        self.last_s = event["t"]
        if handler := getattr(self, f"_on_{event['kind']}", None):
            handler(event)

    def _on_response(self, event: Event) -> None:
        self.tokens_generated += event["tokens"]
        if event["finish_reason"] != "abort":
            self.lengths.append(event["tokens"])
            self.num_cut_off += event["finish_reason"] == "length"

    def _on_recorded(self, event: Event) -> None:
        self.groups_recorded = event["groups"]
        self.is_replay = event["is_whole"]

    def _on_group_recorded(self, event: Event) -> None:
        self.lengths += event["lengths"]
        self.num_cut_off += event["cut_off"]
        self.rewards += [reward for reward in event["rewards"] if reward is not None]
        self.verdicts.update(map(str, event["statuses"]))

    def _on_retry(self, event: Event) -> None:
        self.retries += 1

    def _on_verify(self, event: Event) -> None:
        self.verdicts[str(event.get("status", ""))] += 1
        if event.get("seconds") is not None:
            self.verify_s.append(event["seconds"])
        if event.get("reward") is not None:
            self.rewards.append(event["reward"])

    def _on_group_complete(self, event: Event) -> None:
        self.group_tokens[event["group"]] = event["tokens"]
        if event.get("reward_mean") is not None:
            self.group_rewards[event["group"]] = event["reward_mean"]
        self.num_filtered += bool(event.get("filtered"))

    def _on_group_drop(self, event: Event) -> None:
        self.num_dropped += event.get("reason") != "filtered"

    def _on_rollout_done(self, event: Event) -> None:
        self.rollout_done_s = event["t"]

    def _on_wait(self, event: Event) -> None:
        self.waits.append((event["start"], event["t"]))

    def _on_compute(self, event: Event) -> None:
        self.computes.append((event["start"], event["t"]))
        if event["phase"] == "accumulate":
            self.accumulates.append((event["update"], event["start"], event["group"]))

    def _on_update(self, event: Event) -> None:
        self.last_update_s = event["t"]
        self.updates.append(event)

    def _on_publish(self, event: Event) -> None:
        self.publish_s += event["t"] - event["start"]

    def _on_round_end(self, event: Event) -> None:
        self.books = dict(event.get("books") or {})
        self.is_finished = True

    def metrics(self) -> RoundMetrics:
        """The figures so far."""
        names = ("round", "version", "schedule", "is_finished", "retries", "publish_s", "books", "groups_recorded")
        same = {name: getattr(self, name) for name in names}
        return RoundMetrics(**same, **self._times(), **self._groups(), **self._lengths(), **self._verifier(), **self._updates())

    def _since_start(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self.start_s

    def _times(self) -> dict[str, Any]:
        end = self.last_s if self.last_update_s is None else self.last_update_s
        wait, compute = (_overlap(intervals, self.start_s, end) for intervals in (self.waits, self.computes))
        first_update = [start for update, start, _ in self.accumulates if update == 0]
        last = max(first_update, default=None)
        handed = [moment for _, moment in self.waits if last is not None and moment <= last]
        first_dispatch = self._since_start(max(handed, default=last))
        r2t_end, rollout = self._since_start(self.last_update_s), self._since_start(self.rollout_done_s)
        return {
            "r2t_end_s": r2t_end,
            "first_group_s": self._since_start(min((start for _, start, _ in self.accumulates), default=None)),
            "first_dispatch_s": first_dispatch,
            "rollout_s": rollout,
            "trainer_wait_s": wait,
            "trainer_compute_s": compute,
            "waiting_ratio": _ratio(wait, wait + compute),
            "waiting_ratio_first": _ratio(first_dispatch, r2t_end),
            "rollout_tokens_per_s": _ratio(self.tokens_generated or None, rollout),
            "train_tokens_per_s": _ratio(self._tokens(), compute),
        }

    def _tokens(self) -> int:
        return sum(self.group_tokens.get(group, 0) for _, _, group in self.accumulates)

    def _groups(self) -> dict[str, Any]:
        trained = sorted(self.group_rewards[group] for _, _, group in self.accumulates if group in self.group_rewards)
        return {
            "tokens": self._tokens(),
            "tokens_generated": self.tokens_generated,
            "reward_mean": mean(self.rewards),
            "reward_trained_p25": percentile(trained, 0.25),
            "reward_trained_p75": percentile(trained, 0.75),
            "groups_trained": self.books.get("trained", len(self.accumulates)),
            "groups_filtered": self.books.get("filtered", self.num_filtered),
            "groups_dropped": self.books.get("dropped", self.num_dropped),
        }

    def _lengths(self) -> dict[str, Any]:
        lengths = sorted(self.lengths)
        return {
            "length_mean": mean(lengths),
            "length_median": percentile(lengths, 0.5),
            "length_p90": percentile(lengths, 0.9),
            "length_max": lengths[-1] if lengths else None,
            "cut_off_share": _ratio(self.num_cut_off, len(lengths)),
        }

    def _verifier(self) -> dict[str, Any]:
        return {
            "verify_s_mean": mean(self.verify_s),
            "verify_s_max": max(self.verify_s, default=None),
            "no_answer_share": _ratio(self.verdicts[Verdict.NO_ANSWER], self.verdicts.total()),
            "verifier_timeouts": self.verdicts[Verdict.TIMEOUT],
            "verifier_errors": self.verdicts[Verdict.ERROR],
        }

    def _updates(self) -> dict[str, Any]:
        first = next((update for update in self.updates if update["update"] == 0), {})
        return {
            "logprob_gap_max": (first.get("metrics") or {}).get("logprob_gap_max"),
            "loss_mean": mean([update["loss"] for update in self.updates]),
            "grad_norm_mean": mean([update["grad_norm"] for update in self.updates]),
            "trainer_cpu_s": self._sum_of("cpu_s"),
            "compilations": self._sum_of("compilations"),
            "updates": len(self.updates),
            "optimizer_step": self.updates[-1]["optimizer_step"] if self.updates else None,
        }

    def _sum_of(self, metric: str) -> float | None:
        """Over the round's updates; None where none has it."""
        values = [update["metrics"][metric] for update in self.updates if metric in (update.get("metrics") or {})]
        return sum(values) if values else None
