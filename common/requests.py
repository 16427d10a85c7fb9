"""From prompts to requests: ids, seeds and the order in which they reach the policy."""

import hashlib
import random
from collections.abc import Sequence

from common.records import Request


def derive_seed(seed: int, round_index: int, order: int, member: int) -> int:
    """A sampling seed of its own for each (seed, round, group, member), the same on every machine; 62 bits."""
    text = f"{seed}/{round_index}/{order}/{member}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 2


def group_name(round_index: int, order: int) -> str:
    """`r3/g17`."""
    return f"r{round_index}/g{order}"


def group_requests(round_index: int, order: int, prompt_ids: tuple[int, ...], num_members: int, seed: int) -> list[Request]:
    """The K requests of one group, ids `r3/g17/m0` ..."""
    group_id = group_name(round_index, order)
    return [
        Request(
            request_id=f"{group_id}/m{member}",
            group_id=group_id,
            order=order,
            member=member,
            prompt_ids=prompt_ids,
            seed=derive_seed(seed, round_index, order, member),
        )
        for member in range(num_members)
    ]


def arrange(groups: Sequence[Sequence[Request]], request_order: str, seed: int) -> list[Request]:
    """All requests in the order in which they arrive at the policy: `grouped`, `interleaved` or `shuffled` (by `seed`)."""
    requests = [request for group in groups for request in group]
    if request_order == "interleaved":
        return sorted(requests, key=lambda request: (request.member, request.order))
    if request_order == "shuffled":
        random.Random(seed).shuffle(requests)
    return requests
