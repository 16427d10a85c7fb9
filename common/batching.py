"""What a trainer gets of a group, and the one place where micro-batches are planned.

    groups -> rows_of -> rows -> plan_micro_batches -> plan[rank][step] = indices into rows

The plan is made centrally because every rank must run the same number of forward passes: sharded weights are gathered by
all ranks together, and a rank that is one pass short hangs the others. An empty micro-batch is a pass of zero weight.
Pure: standard library only, a plan depends on nothing but its arguments.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.errors import ConfigError, UsageError, explain
from common.records import Group, Sample

Plan = list[list[list[int]]]


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence as plain values, ready to be sent to a rank."""

    prompt_ids: tuple[int, ...]  # at least one
    response_ids: tuple[int, ...]  # at least one
    sampler: tuple[float, ...]  # the sampler's log-prob of each response token
    advantage: float
    is_counted: bool  # False: no reward, nothing of it is trained
    has_spread: bool  # False: its group's advantages are all 0, nothing of it is trained but it counts in denominators

    @property
    def num_tokens(self) -> int:
        """Prompt and response tokens."""
        return len(self.prompt_ids) + len(self.response_ids)


def rows_of(group: Group, advantages: Sequence[float] | None = None) -> list[Row]:
    """Rows of a group's members in order, with `advantages` in place of theirs where given.

    Members without response tokens are legal and weigh nothing: they give no row. Raises UsageError for a prompt
    without tokens (nothing predicts the first response token) and for log-probs that do not match the tokens.
    """
    values = [sample.advantage for sample in group.samples] if advantages is None else list(advantages)
    spread = any(value != 0.0 for value in values)
    return [_row(sample, value, spread) for sample, value in zip(group.samples, values, strict=True) if sample.response.token_ids]


def _row(sample: Sample, advantage: float, spread: bool) -> Row:
    request, response = sample.request, sample.response
    if not request.prompt_ids:
        raise UsageError(
            explain("prompt_ids", "must hold at least one token", request.request_id, "start prompts with a BOS token")
        )
    if len(response.logprobs) != len(response.token_ids):
        rule = f"must have one value for each of the {len(response.token_ids)} response tokens"
        raise UsageError(explain("logprobs", rule, len(response.logprobs), f"drop the group of request {request.request_id}"))
    return Row(request.prompt_ids, response.token_ids, response.logprobs, advantage, sample.reward is not None, spread)


def plan_micro_batches(lengths: Sequence[int], budget: int, ranks: int) -> Plan:
    """Equal numbers of micro-batches for `ranks` ranks, each at most `budget` padded tokens (rows x longest).

    Sequences are sorted by length and cut into runs, which pads least. The number of runs is the smallest multiple of
    `ranks` that keeps the budget; among the cuts into that many, one with the smallest largest run is taken. Runs of like
    cost fall on the same step of different ranks, which wait for each other at every layer. O(n log budget).

    Raises ConfigError where one sequence is longer than the budget.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    if not order:
        return [[] for _ in range(ranks)]
    longest = lengths[order[0]]
    if longest > budget:
        rule = f"must hold the longest sequence ({longest} tokens, prompt included)"
        raise ConfigError(explain("training.micro_batch_tokens", rule, budget, "raise it, or lower sampling.max_tokens"))
    steps = -(-len(_cut(order, lengths, budget)) // ranks)
    low, high = longest, budget
    while low < high:
        middle = (low + high) // 2
        if len(_cut(order, lengths, middle)) <= steps * ranks:
            high = middle
        else:
            low = middle + 1
    runs = _cut(order, lengths, low)
    runs.sort(key=lambda run: -len(run) * lengths[run[0]])
    runs += [[] for _ in range(steps * ranks - len(runs))]
    return [runs[rank::ranks] for rank in range(ranks)]


def _cut(order: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Runs of `order` (longest first), each as long as its padded tokens allow."""
    runs: list[list[int]] = []
    for index in order:
        if runs and (len(runs[-1]) + 1) * lengths[runs[-1][0]] <= budget:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def padded_tokens(plan: Iterable[Iterable[Sequence[int]]], lengths: Sequence[int]) -> int:
    """Tokens that all ranks compute under `plan`, padding included."""
    return sum(len(run) * max(lengths[index] for index in run) for rank in plan for run in rank if run)
