"""The consuming side of a simulated round: waits for groups, accumulates them, steps. Events are those of `common.train_side`."""

from collections.abc import Callable

from common.errors import RoundFinished
from common.queue import CompleteGroupQueue
from common.records import Dispatch
from common.simulation.agenda import Agenda
from common.simulation.group import SimulatedGroup
from common.simulation.models import TrainerModel
from common.timeline import Timeline


class TrainerSide:
    """`wake()` whenever the queue may have something; `on_end()` is called when the round has been trained."""

    def __init__(
        self,
        model: TrainerModel,
        *,
        index: int,
        groups_per_update: int,
        queue: CompleteGroupQueue,
        agenda: Agenda,
        timeline: Timeline,
        is_open: bool,
        num_steps: int,
        on_busy: Callable[[bool], None],
        on_end: Callable[[], None],
    ) -> None:
        self._model, self._index, self._per_update = model, index, groups_per_update
        self._queue, self._agenda, self._timeline = queue, agenda, timeline
        self._on_busy, self._on_end = on_busy, on_end
        self.is_open = is_open
        self.compute_s = self._accumulate_s = 0.0
        self._tokens = self._num_updates = 0
        self.num_steps = num_steps  # optimizer steps since the start of training
        self._speed = 1.0
        self._is_busy = self._has_ended = False
        self._waits_since = agenda.now_s
        self._taken: list[SimulatedGroup] = []  # of the open update, not yet accumulated
        self._in_update: list[SimulatedGroup] = []  # accumulated
        self._closes = False  # the open update has all its groups
        self._update = 0
        self._job: tuple[str, SimulatedGroup | None, float] = ("", None, 0.0)  # phase, group, start
        self._left_s = self._updated_s = 0.0
        self._plan = 0

    @property
    def tokens_per_s(self) -> float:
        """Of the time spent accumulating; 0.0 while unknown."""
        return self._tokens / self._accumulate_s if self._accumulate_s > 0 else 0.0

    @property
    def mean_update_s(self) -> float:
        """Seconds of a step; 0.0 while unknown."""
        return (self.compute_s - self._accumulate_s) / self._num_updates if self._num_updates else 0.0

    def open(self) -> None:
        """The serial schedule: the rollout is done."""
        self.is_open = True
        self.wake()

    def wake(self) -> None:
        """Take what the queue has, unless something is being computed."""
        while not self._is_busy and self.is_open and not self._has_ended:
            try:
                dispatch: Dispatch | None = self._queue.take_nowait()
            except RoundFinished:
                self._end_wait()
                self._has_ended = True
                self._on_end()
                return
            if dispatch is None:
                return
            self._taken += dispatch.groups
            self._closes, self._update = dispatch.is_last_of_update, dispatch.update_index
            if self._closes or self._model.starts_at == "first":
                self._end_wait()
                self._next()

    def set_speed(self, speed: float) -> None:
        """Below 1 while something else takes the machine."""
        self._progress()
        self._speed = speed
        if self._is_busy:
            self._plan_end()

    def _next(self) -> None:
        """Accumulate the next group, step, or wait again."""
        if self._taken:
            group = self._taken.pop(0)
            self._compute("accumulate", group, self._model.group_s + self._model.token_s * group.num_tokens)
        elif self._closes:
            self._compute("finish", None, self._model.update_s)
        else:
            self._set_busy(False)
            self._waits_since = self._agenda.now_s
            self.wake()

    def _compute(self, phase: str, group: SimulatedGroup | None, seconds: float) -> None:
        self._set_busy(True)
        self._job = (phase, group, self._agenda.now_s)
        self._left_s, self._updated_s = seconds, self._agenda.now_s
        self._plan_end()

    def _progress(self) -> None:
        self._left_s -= (self._agenda.now_s - self._updated_s) * self._speed
        self._updated_s = self._agenda.now_s

    def _plan_end(self) -> None:
        self._plan += 1
        plan = self._plan
        self._agenda.after(max(self._left_s, 0.0) / self._speed, lambda: self._computed(plan))

    def _computed(self, plan: int) -> None:
        if plan != self._plan:
            return
        phase, group, start = self._job
        self.compute_s += self._agenda.now_s - start
        name = group.group_id if group else None
        self._timeline.emit("compute", round=self._index, start=start, phase=phase, update=self._update, group=name)
        if group is not None:
            self._in_update.append(group)
            self._tokens += group.num_tokens
            self._accumulate_s += self._agenda.now_s - start
        else:
            self._num_updates += 1
            self._stepped()
        self._next()

    def _stepped(self) -> None:
        groups, self._in_update, self._closes = self._in_update, [], False
        self.num_steps += 1
        self._timeline.emit(
            "update",
            round=self._index,
            update=self._update,
            optimizer_step=self.num_steps,
            loss=0.0,
            grad_norm=0.0,
            groups=len(groups),
            tokens=sum(group.num_tokens for group in groups),
            is_short=len(groups) < self._per_update,
            metrics={},
        )

    def _end_wait(self) -> None:
        self._timeline.emit("wait", round=self._index, start=self._waits_since, on="group")

    def _set_busy(self, is_busy: bool) -> None:
        if is_busy != self._is_busy:
            self._is_busy = is_busy
            self._on_busy(is_busy)
