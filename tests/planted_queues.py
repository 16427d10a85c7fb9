"""Queues with a bug each, which the machine of the queue alone must find, and so must the one of whole rounds."""

from typing import Any

from common.queue import CompleteGroupQueue


class LetsAnyVersionThrough(CompleteGroupQueue):
    """Groups of other weight versions are taken for the round's."""

    def put(self, group: Any) -> None:
        self._version = group.weight_version
        super().put(group)


class ClosesEarly(CompleteGroupQueue):
    """Updates of U - 1 groups."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._per_update = max(1, self._per_update - 1)


class ClosesLate(CompleteGroupQueue):
    """Updates of U + 1 groups."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._per_update += 1
