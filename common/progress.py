"""What a run is doing now, kept up to date from its events: the state behind the live display and the watchdog's words.

Events of intervals come at their end, so the trainer's present state is inferred: with complete groups in hand it works,
with none (or, under `serial`, before the rollout is done) it waits. Pure: no clock, no drawing.
"""

from dataclasses import dataclass, field

from common.timeline import Event, group_number

_KEPT_NOTES = 4
_KEPT_REWARDS = 40


@dataclass(slots=True)
class RoundProgress:
    """Counts of the open round."""

    number: int
    start_s: float
    num_groups: int
    num_responses: int = 0
    num_complete: int = 0  # filtered ones included
    num_filtered: int = 0
    num_dropped: int = 0
    num_trained: int = 0
    num_retries: int = 0
    tokens_out: int = 0  # sampled
    tokens_in: int = 0  # trained
    compute_s: float = 0.0
    wait_s: float = 0.0
    rollout_done_s: float | None = None
    num_updates: int = 0
    in_update: int = 0  # groups accumulated in the open update
    reward_sum: float = 0.0
    num_rewards: int = 0
    logprob_gap: float | None = None
    last_publish: str | None = None
    num_eval: int = 0  # responses of the evaluation that goes on
    group_tokens: dict[str, int] = field(default_factory=dict)
    in_flight: dict[str, tuple[str, str, float]] = field(default_factory=dict)  # request: group, replica, since; oldest first

    @property
    def reward(self) -> float | None:
        """Mean over the responses scored so far."""
        return self.reward_sum / self.num_rewards if self.num_rewards else None

    @property
    def backlog(self) -> int:
        """Complete trainable groups that the trainer has not finished."""
        return self.num_complete - self.num_filtered - self.num_trained

    @property
    def is_trained(self) -> bool:
        """Every group has met its end and the last update was made."""
        return self.num_trained + self.num_filtered + self.num_dropped >= self.num_groups and self.in_update == 0


def _lasting(seconds: float) -> str:
    """Said once it is worth saying."""
    return f", {seconds:.0f} s so far" if seconds >= 3 else ""


class Progress:
    """Feed it every event through `listen`."""

    def __init__(self) -> None:
        self.name = self.schedule = ""
        self.num_rounds: int | None = None
        self.groups_per_update: int | None = None
        self.responses_per_group: int | None = None
        self.gap_limit: float | None = None
        self.phases: list[tuple[str, float, float | None]] = []  # name, start, end; of the start of the run or a pause
        self.round: RoundProgress | None = None
        self.num_finished = 0
        self.rewards: list[float] = []  # of finished rounds
        self.optimizer_step = 0
        self.accuracy: float | None = None  # of the last evaluation
        self.notes: list[str] = []  # stalls and drops, newest last
        self.last_s = 0.0
        self.trainer_since_s = 0.0  # when the trainer last ended something
        self.status: str | None = None  # of run_end

    def listen(self, event: Event) -> None:
        """Take the next event."""
        self.last_s = event["t"]
        handler = getattr(self, f"_on_{event['kind']}", None)
        if handler is not None:
            handler(event)
        elif self.round is not None:
            inner = getattr(self, f"_in_{event['kind']}", None)
            if inner is not None:
                inner(self.round, event)

    def _on_run_start(self, event: Event) -> None:
        self.name, self.schedule = event.get("name", ""), event.get("schedule", "")
        self.num_rounds = event.get("rounds")
        updates = event.get("groups_per_update")
        self.groups_per_update = updates if isinstance(updates, int) else event.get("groups_per_round")
        self.responses_per_group = event.get("responses_per_group")
        self.gap_limit = event.get("max_logprob_gap")

    def _on_run_end(self, event: Event) -> None:
        self.status = event.get("status")

    def _on_phase(self, event: Event) -> None:
        self._end_phase(event["t"])
        self.phases.append((event["name"], event["t"], None))

    def _end_phase(self, now_s: float) -> None:
        if self.phases and self.phases[-1][2] is None:
            name, start, _ = self.phases[-1]
            self.phases[-1] = (name, start, now_s)

    def _on_round_start(self, event: Event) -> None:
        self._end_phase(event["t"])
        self.round = RoundProgress(event["round"], event["t"], event["num_groups"])
        self.trainer_since_s = event["t"]

    def _on_round_end(self, event: Event) -> None:
        if self.round is not None and self.round.reward is not None:
            self.rewards = [*self.rewards, self.round.reward][-_KEPT_REWARDS:]
        self.num_finished += 1

    def _on_eval(self, event: Event) -> None:
        self.accuracy = event["accuracy"]
        if self.round is not None:
            self.round.num_eval = 0

    def _on_stall(self, event: Event) -> None:
        self._note(f"stall: {event.get('message', '')}")

    def _on_fault(self, event: Event) -> None:
        self._note(f"fault of {event['part']}: {event.get('detail', '')}")

    def _on_recovered(self, event: Event) -> None:
        self._note(f"{event['part']} is back after {event['t'] - event['start']:.1f} s: {event.get('detail', '')}")

    def _on_recorded(self, event: Event) -> None:
        self._note(f"{event['groups']} groups of round {event['round']} are on disk: not sampled again")

    def _on_left_out(self, event: Event) -> None:
        self._note(f"left out: {event['message']}")

    def _note(self, text: str) -> None:
        self.notes = [*self.notes, text][-_KEPT_NOTES:]

    def _in_dispatch(self, current: RoundProgress, event: Event) -> None:
        current.num_groups = max(current.num_groups, group_number(event["group"]) + 1)  # refills
        current.in_flight[event["request"]] = (event["group"], str(event["replica"]), event["t"])

    def _in_response(self, current: RoundProgress, event: Event) -> None:
        current.in_flight.pop(event["request"], None)
        current.num_responses += event["finish_reason"] != "abort"
        current.tokens_out += event["tokens"]

    def _in_eval_response(self, current: RoundProgress, event: Event) -> None:
        current.num_eval += 1

    def _in_retry(self, current: RoundProgress, event: Event) -> None:
        if current.in_flight.pop(event["request"], None) is None:
            current.num_responses = max(0, current.num_responses - 1)  # its response came, and was rejected
        current.num_retries += 1

    def _in_verify(self, current: RoundProgress, event: Event) -> None:
        if event.get("reward") is not None:
            current.reward_sum += event["reward"]
            current.num_rewards += 1

    def _in_group_complete(self, current: RoundProgress, event: Event) -> None:
        current.num_complete += 1
        current.num_filtered += bool(event.get("filtered"))
        current.group_tokens[event["group"]] = event["tokens"]

    def _in_group_drop(self, current: RoundProgress, event: Event) -> None:
        for request in [name for name, (group, _, _) in current.in_flight.items() if group == event["group"]]:
            del current.in_flight[request]
        if event.get("reason") != "filtered":
            current.num_dropped += 1
            self._note(f"dropped {event['group']}: {event.get('reason')}. {event.get('detail') or ''}".strip())

    def _in_rollout_done(self, current: RoundProgress, event: Event) -> None:
        current.rollout_done_s = event["t"]

    def _in_wait(self, current: RoundProgress, event: Event) -> None:
        current.wait_s += event["t"] - event["start"]

    def _in_compute(self, current: RoundProgress, event: Event) -> None:
        self.trainer_since_s = event["t"]
        current.compute_s += event["t"] - event["start"]
        if event["phase"] == "accumulate":
            current.num_trained += 1
            current.in_update += 1
            current.tokens_in += current.group_tokens.get(event["group"], 0)

    def _in_update(self, current: RoundProgress, event: Event) -> None:
        current.num_updates, current.in_update = current.num_updates + 1, 0
        self.optimizer_step = event["optimizer_step"]
        self.trainer_since_s = event["t"]
        if event["update"] == 0:
            current.logprob_gap = (event.get("metrics") or {}).get("logprob_gap_max")

    def _in_publish(self, current: RoundProgress, event: Event) -> None:
        current.last_publish = event["phase"]

    def who_waits(self, now_s: float) -> str:
        """One sentence: what goes on, and who waits for whom."""
        if self.status is not None:
            return f"run {self.status}"
        if self.phases and self.phases[-1][2] is None:
            name, start, _ = self.phases[-1]
            return f"{name}{_lasting(now_s - start)}"
        current = self.round
        if current is None:
            return "starting"
        if current.is_trained and current.num_eval:
            return f"publish waits for the evaluation ({current.num_eval} responses){_lasting(now_s - self.trainer_since_s)}"
        if current.is_trained:
            last = f" ({current.last_publish} done)" if current.last_publish else ""
            return f"publishing{last}{_lasting(now_s - self.trainer_since_s)}"
        return self._in_round(current, now_s)

    def _in_round(self, current: RoundProgress, now_s: float) -> str:
        since = now_s - self.trainer_since_s
        update = f"update {current.num_updates + 1}"
        if self.schedule == "serial" and current.rollout_done_s is None:
            reported = current.num_complete + current.num_dropped
            return (
                f"trainer waits for the rollout's end: {current.num_groups - reported} groups to go{self._oldest(current, now_s)}"
            )
        if self.groups_per_update and current.in_update >= self.groups_per_update:
            return f"trainer makes the step of {update}{_lasting(since)}"
        if current.backlog > 0:
            behind = f", {current.backlog - 1} complete groups behind it" if current.backlog > 1 else ""
            return f"trainer works on a group of {update}{_lasting(since)}{behind}"
        missing = (self.groups_per_update or current.num_groups) - current.in_update
        still = current.num_groups - current.num_complete - current.num_dropped
        count = min(missing, still)
        if count <= 0:
            return f"trainer makes the step of {update}{_lasting(since)}"
        return f"trainer waits for {count} group{'s' if count > 1 else ''} of {update}{self._oldest(current, now_s)}"

    def _oldest(self, current: RoundProgress, now_s: float) -> str:
        if not current.in_flight:
            return ", no request is in flight: verifiers are at work"
        request, (_, replica, since) = next(iter(current.in_flight.items()))
        return f", oldest request {request} on {replica} for {now_s - since:.0f} s"
