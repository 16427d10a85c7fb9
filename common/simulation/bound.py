"""A time from the start of a round to the end of its training that no schedule of whole groups can beat.

docs/grid.md has the proof. In short, with N replicas of capacity C, step time a + b n and phi(n) = n / (a + b n):

1.  Any k requests decode together at most f(k) tokens a second, f(k) = the best split of min(k, N C) requests over the replicas.
    So a set of k requests with W tokens is not decoded before W / f(k). And the replica of its longest response, L tokens, needs
    at least L steps: (a L + b W') seconds if W' of the tokens are decoded there, the others on N - 1 replicas.
2.  Hence j complete groups are not there before A_j, whichever they are: for each r, the r longest members of each of j groups
    have at least the sum of the j smallest such sums. And a group g alone is not complete before e_g.
3.  Training work that can have been done by a time t belongs to groups that are complete by then: at most V(t). What is left is
    done after t by one trainer, so T >= t + (all training work) - V(t), for each t.

The supremum over t is taken exactly: V grows in jumps and is concave between them, so only the moments before a jump count.
Valid for every admission order, width, group order, placement and for `serial`; contention, memory limits and the wait for an
update's groups can only add to it.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError, explain
from common.simulation.lengths import Lengths
from common.simulation.models import EngineModel, Scenario

Seconds = NDArray[np.float64]

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9)  # of verifier times at which the bound is taken
_ROUNDING = 1e-9  # by which sums of floats may be off, as a share


def lower_bound(scenario: Scenario, lengths: Lengths, verify_s: Seconds | None = None) -> float:
    """Seconds from the start of the round to the end of its last update, at least, whatever the schedule.

    lengths: (R, K) tokens; verify_s: (R, K) seconds of the verifier, None: it takes no time. Raises DataError for other shapes.
    """
    verify_s = np.zeros(lengths.shape) if verify_s is None else verify_s
    _check_shapes(scenario, lengths, verify_s)
    work = _Work(scenario, lengths, float(np.min(verify_s)))
    counts_s = count_bounds(scenario, lengths, verify_s)
    alone_s = group_bounds(scenario, lengths, verify_s)
    counts_s = np.maximum.accumulate(np.maximum(counts_s, np.sort(alone_s)))
    moments = np.unique(np.concatenate([counts_s, alone_s]))
    left_s = work.all_s - work.done_before(moments, counts_s, alone_s)
    return float(np.max(moments + left_s)) * (1 - _ROUNDING)


def rollout_bound(scenario: Scenario, lengths: Lengths) -> float:
    """Seconds to decode all responses, at least: the most that any k longest responses need, each k."""
    tokens = np.cumsum(-np.sort(-lengths, axis=None))
    set_s = np.max(set_bounds(scenario.engine, tokens, np.arange(1, lengths.size + 1), np.max(lengths)))
    return float(max(set_s, _replica_seconds(scenario, tokens[-1], lengths.size))) * (1 - _ROUNDING)


def set_bounds(engine: EngineModel, tokens: Any, num_requests: Any, longest: Any) -> Seconds:
    """Seconds before which sets of requests are not decoded; element by element: their tokens, how many they are, the longest."""
    rates = best_rates(engine, int(np.max(num_requests)))
    others = _rates_of_others(engine, num_requests)
    return np.maximum(
        tokens / rates[num_requests - 1],
        (engine.step_s * longest + engine.step_per_request_s * tokens) / (1 + engine.step_per_request_s * others),
    )


def best_rates(engine: EngineModel, num_requests: int) -> Seconds:
    """f(1) .. f(num_requests): tokens a second of k requests together, at most."""
    placed = np.minimum(np.arange(1, num_requests + 1), engine.replicas * engine.capacity)
    each, over = np.divmod(placed, engine.replicas)
    return (engine.replicas - over) * _rate(engine, each) + over * _rate(engine, each + 1)


def _rates_of_others(engine: EngineModel, num_requests: Any) -> Any:
    """Tokens a second of such sets less one request, on the replicas that this one does not run on, at most."""
    if engine.replicas == 1:
        return np.zeros(np.shape(num_requests))
    rates = best_rates(replace(engine, replicas=engine.replicas - 1), int(np.max(num_requests)))
    return np.concatenate([[0.0], rates])[num_requests - 1]


def count_bounds(scenario: Scenario, lengths: Lengths, verify_s: Seconds) -> Seconds:
    """A_1 .. A_R: seconds before which no j groups are complete."""
    num_groups, num_members = lengths.shape
    counts = np.arange(1, num_groups + 1)
    bounds = np.zeros(num_groups)
    for threshold in np.unique(np.quantile(verify_s, _QUANTILES, method="lower")):
        # Members that the verifier takes at least this long for are decoded that much earlier.
        slow = np.where(verify_s >= threshold, lengths, 0)
        sums = np.cumsum(-np.sort(-slow, axis=1), axis=1)
        longest = np.sort(sums[:, 0])
        for num_longest in range(1, num_members + 1):
            tokens = np.cumsum(np.sort(sums[:, num_longest - 1]))
            ends_s = threshold + set_bounds(scenario.engine, tokens, counts * num_longest, longest)
            bounds = np.maximum(bounds, np.where(tokens > 0, ends_s, 0.0))  # 0: groups without such a member might be first
        tokens = np.cumsum(-np.sort(-slow, axis=None))
        all_s = set_bounds(scenario.engine, tokens, np.arange(1, lengths.size + 1), longest[-1])
        bounds[-1] = max(bounds[-1], threshold + np.max(all_s))
    smallest = np.cumsum(np.sort(lengths.sum(axis=1)))
    return np.maximum(bounds, np.min(verify_s) + _replica_seconds(scenario, smallest, counts * num_members))


def group_bounds(scenario: Scenario, lengths: Lengths, verify_s: Seconds) -> Seconds:
    """e_1 .. e_R: seconds before which a group is not complete, though it were alone."""
    engine = scenario.engine
    tokens = np.cumsum(-np.sort(-lengths, axis=1), axis=1)
    together = set_bounds(engine, tokens, np.arange(1, lengths.shape[1] + 1), tokens[:, :1])
    alone = scenario.prompt_tokens * engine.prefill_s_per_token + lengths / engine.tokens_per_s(1) + verify_s
    return np.maximum(np.max(together, axis=1) + np.min(verify_s, axis=1), np.max(alone, axis=1))


@dataclass(frozen=True, slots=True)
class _Work:
    """The training of a round."""

    scenario: Scenario
    lengths: Lengths
    verify_s: float  # of the fastest verdict

    @property
    def all_s(self) -> float:
        """Seconds of all groups and updates."""
        trainer, num_groups = self.scenario.trainer, len(self.lengths)
        num_updates = -(-num_groups // self.scenario.groups_per_update)
        return trainer.group_s * num_groups + trainer.token_s * float(self.lengths.sum()) + trainer.update_s * num_updates

    def done_before(self, moments: Seconds, counts_s: Seconds, alone_s: Seconds) -> Seconds:
        """V: seconds of training of groups that can be complete before each moment, at most."""
        scenario = self.scenario
        trainer, per_update = scenario.trainer, scenario.groups_per_update
        counts = np.searchsorted(counts_s, moments, side="left")  # groups complete before, at most
        num_updates = counts // per_update
        if trainer.starts_at == "last":
            counts = num_updates * per_update  # others wait; a short last update is never complete before the last moment
        groups_s = trainer.group_s * counts + trainer.token_s * self._tokens(moments, counts, alone_s)
        return groups_s + trainer.update_s * num_updates

    def _tokens(self, moments: Seconds, counts: NDArray[np.intp], alone_s: Seconds) -> Seconds:
        """Of so many whole groups complete before each moment, at most."""
        tokens = self.lengths.sum(axis=1)
        largest = _sums(-np.sort(-tokens))[counts]
        by_end = np.argsort(alone_s, kind="stable")
        ended = _sums(tokens[by_end])[np.searchsorted(alone_s[by_end], moments, side="left")]
        decoded = self._decoded(np.maximum(moments - self.verify_s, 0.0), counts)
        return np.where(counts > 0, np.minimum(np.minimum(largest, ended), decoded), 0.0)

    def _decoded(self, moments: Seconds, counts: NDArray[np.intp]) -> Seconds:
        """Tokens of so many groups decoded by each moment, at most: `set_bounds` the other way round."""
        engine = self.scenario.engine
        num_requests = np.maximum(counts, 1) * self.lengths.shape[1]
        decoded = best_rates(engine, self.lengths.size)[num_requests - 1] * moments
        if not engine.step_per_request_s:
            return decoded
        longest = np.sort(self.lengths.max(axis=1))[np.maximum(counts, 1) - 1]
        beside_it = (moments - engine.step_s * longest) / engine.step_per_request_s
        return np.minimum(decoded, np.maximum(beside_it + _rates_of_others(engine, num_requests) * moments, 0.0))


def _sums(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of the first 0, 1, 2 ... values."""
    return np.concatenate([[0], np.cumsum(values)])


def _rate(engine: EngineModel, running: NDArray[np.int64]) -> Seconds:
    return running / (engine.step_s + engine.step_per_request_s * running)


def _replica_seconds(scenario: Scenario, tokens: Any, num_requests: Any) -> Any:
    """Seconds of full replicas, all at work: nothing is decoded on one that computes a prompt."""
    engine = scenario.engine
    prefill_s = num_requests * scenario.prompt_tokens * engine.prefill_s_per_token
    return (tokens / engine.tokens_per_s(engine.capacity) + prefill_s) / engine.replicas


def _check_shapes(scenario: Scenario, lengths: Lengths, verify_s: Seconds) -> None:
    shape = (scenario.groups_per_round, scenario.responses_per_group)
    for field, value in (("lengths", lengths), ("verify_s", verify_s)):
        if value.shape != shape:
            raise DataError(explain(field, f"must have the scenario's shape {shape}", value.shape, "pass a whole round"))
