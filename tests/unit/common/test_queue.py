"""The complete-group queue, one claim of the design (section 5; rules 1, 3, 5, 7 and 10) a test."""

import traceback
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import DuplicateGroupError, QueueClosedError, RoundFinished, StaleGroupError, UsageError
from common.queue import CompleteGroupQueue
from common.records import Reason

VERSION = 7


def group(name: str, version: int = VERSION) -> Any:
    """Group a has order 0, b 1, c 2 ..."""
    return SimpleNamespace(group_id=name, order=ord(name) - ord("a"), weight_version=version)


def make(num_groups: int, per_update: int = 2, order: str = "arrival") -> CompleteGroupQueue:
    return CompleteGroupQueue(
        groups_per_round=num_groups,
        groups_per_update=per_update,
        weight_version=VERSION,
        order=order,  # type: ignore[arg-type]
    )


def taken(queue: CompleteGroupQueue) -> str | None:
    """`a0`: group a in update 0; `b0.` ends update 0; `0.`: an empty dispatch that ends it; `end`: the round is over."""
    try:
        dispatch = queue.take_nowait()
    except RoundFinished:
        return "end"
    if dispatch is None:
        return None
    names = "".join(group.group_id for group in dispatch.groups)
    return f"{names}{dispatch.update_index}{'.' if dispatch.is_last_of_update else ''}"


def all_taken(queue: CompleteGroupQueue) -> list[str | None]:
    seen = [taken(queue)]
    while seen[-1] not in (None, "end"):
        seen.append(taken(queue))
    return seen


def put(queue: CompleteGroupQueue, names: str) -> None:
    for name in names:
        queue.put(group(name))


# --- updates


def test_groups_come_out_one_by_one_in_updates_of_u() -> None:
    queue = make(4)
    put(queue, "badc")
    assert all_taken(queue) == ["b0", "a0.", "d1", "c1.", "end"]


def test_a_group_comes_out_as_soon_as_it_is_in() -> None:
    queue = make(3)
    assert taken(queue) is None
    put(queue, "c")
    assert taken(queue) == "c0"
    assert taken(queue) is None


def test_the_last_update_of_a_round_may_be_short_and_says_so() -> None:
    queue = make(3)
    put(queue, "abc")
    assert all_taken(queue) == ["a0", "b0.", "c1.", "end"]


def test_one_update_a_round() -> None:
    queue = make(3, per_update=3)
    put(queue, "abc")
    assert all_taken(queue) == ["a0", "b0", "c0.", "end"]


def test_updates_of_one_group() -> None:
    queue = make(2, per_update=1)
    put(queue, "ab")
    assert all_taken(queue) == ["a0.", "b1.", "end"]


def test_dropped_groups_do_not_count_towards_an_update() -> None:
    queue = make(4)
    put(queue, "a")
    queue.drop("b", Reason.FILTERED)
    put(queue, "cd")
    assert all_taken(queue) == ["a0", "c0.", "d1.", "end"]


def test_the_last_group_to_come_closes_the_update_that_fell_short() -> None:
    queue = make(3)
    queue.drop("a", Reason.FAILED)
    queue.drop("b", Reason.FAILED)
    put(queue, "c")
    assert all_taken(queue) == ["c0.", "end"]


def test_an_empty_dispatch_closes_an_update_whose_other_groups_were_dropped_later() -> None:
    queue = make(3)
    put(queue, "a")
    assert taken(queue) == "a0"
    queue.drop("b", Reason.TIMED_OUT)
    assert taken(queue) is None
    queue.drop("c", Reason.CANCELLED)
    assert all_taken(queue) == ["0.", "end"]


def test_a_round_whose_groups_were_all_dropped_has_no_update() -> None:
    queue = make(2)
    queue.drop("a", Reason.FILTERED)
    queue.drop("b", Reason.FILTERED)
    assert all_taken(queue) == ["end"]


def test_round_finished_is_raised_at_each_later_call() -> None:
    queue = make(1, per_update=1)
    put(queue, "a")
    assert [taken(queue) for _ in range(4)] == ["a0.", "end", "end", "end"]


# --- submission order


def test_submission_order_does_not_depend_on_the_timing() -> None:
    queue = make(4, order="submission")
    put(queue, "cb")
    assert taken(queue) is None
    put(queue, "a")
    assert all_taken(queue) == ["a0", "b0.", "c1", None]
    put(queue, "d")
    assert all_taken(queue) == ["d1.", "end"]


def test_under_submission_a_dropped_group_is_not_waited_for() -> None:
    queue = make(3, order="submission")
    put(queue, "c")
    queue.drop("a", Reason.FAILED, order=0)
    assert taken(queue) is None
    queue.drop("b", Reason.FAILED, order=1)
    assert all_taken(queue) == ["c0.", "end"]


def test_under_submission_the_order_of_a_drop_is_known_from_put_or_given() -> None:
    queue = make(3, order="submission")
    put(queue, "b")
    queue.drop("b", Reason.CANCELLED)
    with pytest.raises(UsageError, match=r"^order: must be known .*\(group 'c'\), got None; .* or pass order= to drop"):
        queue.drop("c", Reason.CANCELLED)
    assert queue.snapshot().num_dropped == 1
    put(queue, "ac")
    assert all_taken(queue) == ["a0", "c0.", "end"]


def test_under_submission_refills_go_on_from_r() -> None:
    queue = make(2, order="submission")
    with pytest.raises(UsageError, match=r"^order: must be below 2, the number of groups"):
        put(queue, "c")
    queue.extend(1)
    put(queue, "c")
    queue.drop("a", Reason.FILTERED, order=0)
    put(queue, "b")
    assert all_taken(queue) == ["b0", "c0.", "end"]


@pytest.mark.parametrize(
    ("order", "rule"),
    [(-1, "must be 0 or more"), (3, "must be below 3"), (0, "must be one group's alone"), (1, "must be one group's alone")],
)
def test_under_submission_orders_have_no_holes_and_no_doubles(order: int, rule: str) -> None:
    queue = make(3, order="submission")
    put(queue, "ab")
    assert taken(queue) == "a0"
    other = SimpleNamespace(group_id="x", order=order, weight_version=VERSION)
    with pytest.raises(UsageError, match=rf"^order: {rule}.*got {order}; .*number the groups of a round from 0 without holes"):
        queue.put(other)
    assert queue.snapshot().num_missing == 1


@pytest.mark.parametrize("order", [1.5, "1", float("nan")])
def test_under_submission_an_order_is_a_whole_number(order: object) -> None:
    queue = make(3, order="submission")
    with pytest.raises(UsageError, match=r"^order: must be a whole number"):
        queue.drop("b", Reason.FAILED, order=order)  # type: ignore[arg-type]
    assert queue.snapshot().num_missing == 3


def test_under_arrival_a_group_needs_no_order() -> None:
    queue = make(1, per_update=1)
    queue.put(SimpleNamespace(group_id="a", weight_version=VERSION))
    assert taken(queue) == "a0."


# --- put, drop, extend


def test_a_group_of_another_version_is_refused() -> None:
    queue = make(2)
    with pytest.raises(StaleGroupError, match=r"^weight_version: must be the round's version 7 \(group 'a'\), got 6; sample"):
        queue.put(group("a", version=6))
    assert queue.snapshot().num_missing == 2
    put(queue, "a")


def test_a_second_report_of_a_group_is_a_duplicate() -> None:
    queue = make(5)
    put(queue, "ab")
    assert taken(queue) == "a0"
    queue.drop("c", Reason.FAILED)
    queue.drop("b", Reason.CANCELLED)  # put and not yet taken: its one report is the drop now
    before = queue.snapshot()
    for name in "abc":
        with pytest.raises(DuplicateGroupError, match=rf"^group_id: must be reported once, by put or drop, got '{name}'; report"):
            queue.put(group(name))
        with pytest.raises(DuplicateGroupError):
            queue.drop(name, Reason.FAILED)
    assert queue.snapshot() == before


def test_a_group_put_and_not_yet_taken_may_be_dropped() -> None:
    queue = make(3)
    put(queue, "ab")
    queue.drop("a", Reason.CANCELLED)
    assert all_taken(queue) == ["b0", None]
    put(queue, "c")
    assert all_taken(queue) == ["c0.", "end"]


def test_more_groups_than_expected_are_refused() -> None:
    queue = make(2)
    put(queue, "ab")
    for report in (lambda: put(queue, "c"), lambda: queue.drop("c", Reason.FAILED)):
        with pytest.raises(UsageError, match=r"^group_id: must be one of the 2 groups .* got 'c'; call extend first"):
            report()


def test_a_refill_is_one_more_group_of_the_round() -> None:
    queue = make(2)
    put(queue, "a")
    queue.extend(1)
    queue.drop("b", Reason.FILTERED)
    put(queue, "c")
    assert all_taken(queue) == ["a0", "c0.", "end"]
    assert queue.snapshot().num_expected == 3


def test_the_books_balance_at_every_moment() -> None:
    queue = make(4)
    put(queue, "ab")
    queue.take_nowait()
    queue.extend(1)
    queue.drop("c", Reason.FILTERED)
    queue.drop("b", Reason.CANCELLED)
    seen = queue.snapshot()
    assert (seen.num_expected, seen.num_waiting, seen.num_taken, seen.num_dropped, seen.num_missing) == (5, 0, 1, 2, 2)
    assert seen.dropped == {Reason.FILTERED: 1, Reason.CANCELLED: 1}
    assert (seen.update_index, seen.is_closed) == (0, False)


def test_an_unknown_reason_is_refused() -> None:
    queue = make(2)
    put(queue, "a")
    with pytest.raises(UsageError, match=r"^reason: must be one of filtered, failed, timed_out, cancelled, got 'bored'; use"):
        queue.drop("a", "bored")  # type: ignore[arg-type]
    assert taken(queue) == "a0"


# --- the end, and failure


def test_after_the_end_nothing_may_be_put() -> None:
    queue = make(1, per_update=1)
    put(queue, "a")
    taken(queue)
    for call in (lambda: put(queue, "b"), lambda: queue.drop("b", Reason.FAILED), lambda: queue.extend(1)):
        with pytest.raises(QueueClosedError, match="the round has ended; start a new round"):
            call()
    with pytest.raises(DuplicateGroupError):
        put(queue, "a")


def test_the_last_drop_ends_the_round_whether_or_not_anybody_looks() -> None:
    looked, not_looked = make(1, per_update=1), make(1, per_update=1)
    for queue in (looked, not_looked):
        queue.drop("a", Reason.FAILED)
        assert queue.snapshot().is_closed
    assert taken(looked) == "end"
    for queue in (looked, not_looked):
        with pytest.raises(QueueClosedError, match=r"^extend: the round has ended"):
            queue.extend(1)


def test_after_a_failure_every_take_raises_it_and_nothing_may_be_put() -> None:
    queue = make(3)
    put(queue, "a")
    cause = OSError("engine 1 died")
    queue.fail(cause)
    queue.fail(ValueError("a later one"))
    for _ in range(3):
        with pytest.raises(OSError, match="engine 1 died") as caught:
            queue.take_nowait()
        assert caught.value is cause
    for call in (lambda: put(queue, "b"), lambda: queue.drop("a", Reason.FAILED), lambda: queue.extend(1)):
        with pytest.raises(QueueClosedError, match=r"the queue has failed \(OSError\('engine 1 died'\)\); start a new round"):
            call()
    assert queue.snapshot().is_closed


def test_a_failure_keeps_the_producers_traceback_and_does_not_grow() -> None:
    def producer() -> None:
        raise OSError("lost")

    queue = make(1, per_update=1)
    try:
        producer()
    except OSError as error:
        queue.fail(error)
    lengths = []
    for _ in range(3):
        with pytest.raises(OSError) as caught:
            queue.take_nowait()
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert "producer" in [frame.name for frame in frames]
        lengths.append(len(frames))
    assert len(set(lengths)) == 1


def test_a_failure_is_an_exception() -> None:
    with pytest.raises(UsageError, match=r"^error: must be an exception, got 'lost'; pass the producer's exception itself"):
        make(1, per_update=1).fail("lost")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups_per_round": 0}, "^groups_per_round: must be 1 or more, got 0; raise it"),
        ({"groups_per_update": 0}, "^groups_per_update: must be 1 or more, got 0; raise it"),
        ({"groups_per_update": 5}, r"^groups_per_update: must be at most groups_per_round \(4\), got 5; change one of the two"),
        ({"groups_per_update": 1.5}, "^groups_per_update: must be a whole number, got 1.5"),
        ({"order": "random"}, "^order: must be arrival or submission, got 'random'; use arrival"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CompleteGroupQueue(**{"groups_per_round": 4, "groups_per_update": 2, "weight_version": 0, **settings})


@pytest.mark.parametrize("num_groups", [0, -1, 1.5])
def test_a_refill_is_at_least_one_group(num_groups: object) -> None:
    queue = make(2)
    with pytest.raises(UsageError, match=r"^num_groups: must be .*; call extend only for a refill"):
        queue.extend(num_groups)  # type: ignore[arg-type]
    assert queue.snapshot().num_expected == 2
