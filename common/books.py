"""Rule 3: at the end of a round every group and every request is accounted for exactly once."""

from dataclasses import asdict, dataclass

from common.errors import BooksError


@dataclass(slots=True, kw_only=True)
class Books:
    """Counts of one round, kept by the round."""

    groups: int = 0  # R
    refilled: int = 0
    trained: int = 0
    filtered: int = 0
    dropped: int = 0
    requests: int = 0
    finished: int = 0
    failed: int = 0  # beyond their retries
    cancelled: int = 0  # with their group
    retried: int = 0  # dispatched again, whatever the cause
    rejected: int = 0  # of those, responses of another weight version (rule 1)
    broken: int = 0  # responses with missing or NaN log-probs
    unscored: int = 0  # members whose verifier failed (rule 9)

    def check(self) -> None:
        """Raises BooksError that gives both sides."""
        groups_in, groups_out = self.groups + self.refilled, self.trained + self.filtered + self.dropped
        if groups_in != groups_out:
            raise BooksError(f"groups do not balance: {groups_in} in, {groups_out} out ({self.as_dict()})")
        requests_out = self.finished + self.failed + self.cancelled
        if self.requests != requests_out:
            raise BooksError(f"requests do not balance: {self.requests} in, {requests_out} out ({self.as_dict()})")

    def as_dict(self) -> dict[str, int]:
        """Plain values, for the timeline."""
        return asdict(self)
