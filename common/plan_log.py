"""What an adaptive policy decides, as `plan` events of the timeline; of other policies nothing."""

import math

from common.policies import AdmissionPolicy
from common.timeline import Timeline


class PlanLog:
    """Call `note` after each admission."""

    def __init__(self, policy: AdmissionPolicy, timeline: Timeline, index: int) -> None:
        """`index`: of the round."""
        self._policy, self._timeline, self._index = policy, timeline, index
        self._last: object = None

    def note(self) -> None:
        """Record the latest plan, if it is new."""
        plan = getattr(self._policy, "plan", None)
        if plan is None or plan is self._last:
            return
        self._last = plan
        first, rest, num_first = plan.width
        width = {"first": round(first), "rest": round(rest), "num_first": num_first}
        end_s = None if math.isnan(plan.end_s) else round(plan.end_s, 3)
        self._timeline.emit("plan", round=self._index, waiting=len(plan.order), order=plan.name, width=width, end_s=end_s)
