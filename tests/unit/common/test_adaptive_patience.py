"""Adaptive frontier dispatch: nobody starves, whatever keeps coming."""

import random
from collections.abc import Callable

import pytest
from adaptive_lab import SIZE, first_seen, group, groups, informed, plant, state

from common._admission import WaitingGroup
from common._patience import Patience
from common.lengths import Expected
from common.policies import AdaptiveFrontierDispatch
from common.records import Request


def overtaken_too_often(policy: AdaptiveFrontierDispatch, seed: int) -> list[int]:
    """Orders of groups before which more than twice the groups open at their arrival began that came later.

    Groups come one or several at a time, most of them just as old ones end."""
    rng = random.Random(seed)
    limits: dict[int, int] = {}
    began: list[int] = []
    running: list[Request] = []
    for now in range(400):
        if rng.random() < 0.6:
            new = list(range(len(limits), len(limits) + rng.choice([1, 1, 1, 2, 12])))
            policy.submit(groups(new))
            limits |= dict.fromkeys(new, 2 * policy.snapshot().num_groups)
        policy.observe(state(float(now), capacity=8, token_s=0.01))
        admitted = policy.admit(8 - len(running))
        running += admitted
        began += [order for order in first_seen(admitted) if order not in began]
        rng.shuffle(running)
        for _ in range(min(rng.randrange(8), len(running))):
            policy.finish(running.pop().request_id, 20)
    before = {order: began[:place] for place, order in enumerate(began)}
    return [order for order, limit in limits.items() if sum(other > order for other in before.get(order, began)) > limit]


def shorter_and_shorter(request: Request) -> Expected:
    return Expected(tokens=1e6 * 0.97**request.order, error=0.0)


@pytest.mark.parametrize("seed", range(6))
def test_no_group_is_overtaken_too_often(seed: int) -> None:
    policy = informed(expect=shorter_and_shorter)
    assert overtaken_too_often(policy, seed) == []
    assert policy.plan is not None


def test_lower_orders_that_keep_coming_do_not_starve_a_group() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups([1000]))
    policy.submit(groups([900]))
    began = []
    for order in range(899, 880, -1):
        policy.submit(group(order))
        admitted = policy.admit(SIZE)
        assert admitted == group(admitted[0].order), "members of a group are apart"
        began.append(admitted[0].order)
        for request in admitted:
            policy.finish(request.request_id)
    assert began[:6] == [899, 898, 1000, 896, 900, 894]


def test_a_group_that_comes_when_few_are_open_does_not_wait_for_the_patience_of_an_older_one() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups([1000, *range(49)]))  # 1000 may be overtaken by 100
    for request in policy.admit(49 * SIZE):
        policy.finish(request.request_id)
    policy.submit(groups([900]))  # and this one by 4
    began = []
    for order in range(899, 880, -1):
        policy.submit(group(order))
        admitted = policy.admit(SIZE)
        began.append(admitted[0].order)
        for request in admitted:
            policy.finish(request.request_id)
    assert began[:6] == [899, 898, 897, 896, 900, 894]


@pytest.mark.parametrize("known", [False, True])
def test_the_rest_of_a_group_that_has_begun_does_not_starve(known: bool) -> None:
    """One slot, groups of two; lower orders keep coming once its first member is in. One is open at its turn: 2 may pass."""
    policy = informed(expect=shorter_and_shorter) if known else AdaptiveFrontierDispatch()
    policy.submit(group(1000, 2))
    (running,) = policy.admit(1)
    admitted = []
    for order in range(30):
        policy.submit(group(order, 2))
        policy.observe(state(float(order)))
        policy.finish(running.request_id, 20)
        (running,) = policy.admit(1)
        admitted.append(running.request_id)
    assert "1000/1" in admitted[:5]


@pytest.mark.parametrize("known", [False, True])
def test_a_group_that_gets_new_members_for_ever_starves_nobody(known: bool) -> None:
    """Two are open when the fresh one comes: 4 turns may pass, each of one member here."""
    policy = informed(expect=shorter_and_shorter) if known else AdaptiveFrontierDispatch()
    policy.submit([*group(0, 1), *group(1, 1)])
    (running,) = policy.admit(1)
    admitted = []
    for member in range(1, 30):
        policy.submit([Request(request_id=f"0/{member}", group_id=0, order=0, member=member)])
        policy.observe(state(float(member)))
        policy.finish(running.request_id, 20)
        (running,) = policy.admit(1)
        admitted.append(running.request_id)
    assert "1/0" in admitted[:4]


# --- planted bugs


class NeverPatient(Patience):
    def first(self) -> WaitingGroup | None:
        return None


class OldestOnly(Patience):
    """Looks at the oldest group alone; the limit of a later one may be lower."""

    def first(self) -> WaitingGroup | None:
        oldest = min(self._waits, key=self._waits.__getitem__)
        late = super().first()
        return late if late is oldest else None


class PatientWithFreshOnly(AdaptiveFrontierDispatch):
    """Once something of a group was admitted, nobody looks after the rest."""

    def _start_turn(self, first: WaitingGroup) -> WaitingGroup:
        group = super()._start_turn(first)
        self._patience.forget(group)
        return group


class NewMembersGoOn(AdaptiveFrontierDispatch):
    """A turn lasts as long as anything of the group waits."""

    def _next(self) -> WaitingGroup | None:
        if self._turn is not None and self._turn.next_waiting():
            return self._turn
        return super()._next()


class OneMemberOnly(AdaptiveFrontierDispatch):
    """A group whose patience has ended has one member admitted, and waits again."""

    def _next(self) -> WaitingGroup | None:
        self._is_late = False
        return super()._next()


PLANTED: list[tuple[type, Callable[[], object]]] = [
    (NeverPatient, test_lower_orders_that_keep_coming_do_not_starve_a_group),
    (OldestOnly, test_a_group_that_comes_when_few_are_open_does_not_wait_for_the_patience_of_an_older_one),
    (PatientWithFreshOnly, lambda: test_the_rest_of_a_group_that_has_begun_does_not_starve(False)),
    (NewMembersGoOn, lambda: test_a_group_that_gets_new_members_for_ever_starves_nobody(False)),
    (OneMemberOnly, test_lower_orders_that_keep_coming_do_not_starve_a_group),
]


@pytest.mark.parametrize(("bug", "test"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_is_found(bug: type, test: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(bug, globals(), monkeypatch)
    with pytest.raises(AssertionError):
        test()
