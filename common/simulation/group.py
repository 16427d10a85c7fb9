"""What the queue carries in a simulated round."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class SimulatedGroup:
    """The K responses of one prompt, on their way."""

    group_id: str
    order: int
    weight_version: int
    num_missing: int  # members not yet scored
    num_tokens: int = 0  # of the scored members
