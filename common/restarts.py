"""How often a part of the run may be started again, and after which pause: a fault that repeats itself ends the run."""

from collections import defaultdict, deque

from common.config_cluster import SupervisionConfig
from common.errors import RunError

_LONGEST_PAUSE_S = 60.0


class RestartBudget:
    """Counts the restarts of each part (`engine-1`, `trainer`) within a sliding window. Times are of the caller's clock."""

    def __init__(self, settings: SupervisionConfig) -> None:
        self._settings = settings
        self._restarts: defaultdict[str, deque[float]] = defaultdict(deque)

    def spend(self, part: str, now_s: float, cause: object, *, since_s: float | None = None) -> float:
        """Seconds to wait before this restart of `part`. Raises RunError with the cause where it was its last.

        Restarts after `since_s` count also where that is further back than the window: a fault that takes long to be
        noticed, or to be mended, would repeat itself for ever.
        """
        limit, window_s, restarts = self._settings.max_restarts, self._settings.window_s, self._restarts[part]
        start_s = now_s - window_s if since_s is None else min(now_s - window_s, since_s)
        while restarts and restarts[0] <= start_s:
            restarts.popleft()
        if len(restarts) >= limit:
            times = f" {len(restarts) + 1} times within {max(window_s, now_s - restarts[0]):.6g} s" if restarts else ""
            text = f"{part} died{times}, and is not started again (supervision.max_restarts {limit})"
            raise RunError(f"{text}: {' '.join(str(cause).split())}")
        restarts.append(now_s)
        return float(min(self._settings.pause_s * 2 ** (len(restarts) - 1), _LONGEST_PAUSE_S))
