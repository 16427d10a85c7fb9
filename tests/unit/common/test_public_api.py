"""The surface of the pure core (design section 5). A failing test here means a decision, not a fix."""

import dataclasses
import inspect
import pickle
from typing import Any, get_type_hints

import pytest

from common import errors, policies, queue, records
from common.records import FinishReason, Group, Request, Response, Sample, Verdict

SIGNATURES = {
    policies.AdmissionPolicy.submit: "(self, requests: collections.abc.Iterable[common.records.Request]) -> None",
    policies.AdmissionPolicy.admit: "(self, free_slots: int) -> list[common.records.Request]",
    policies.AdmissionPolicy.finish: "(self, request_id: collections.abc.Hashable, num_tokens: int | None = None) -> None",
    policies.AdmissionPolicy.requeue: "(self, request_id: collections.abc.Hashable) -> None",
    policies.AdmissionPolicy.cancel_group: "(self, group_id: collections.abc.Hashable) -> list[common.records.Request]",
    policies.AdmissionPolicy.observe: "(self, state: common.records.PipelineState) -> None",
    policies.AdmissionPolicy.snapshot: "(self) -> common.records.PolicySnapshot",
    policies.FifoAdmission.__init__: "(self) -> None",
    policies.FrontierGroupDispatch.__init__: "(self, frontier_width: int = 2, work_conserving: bool = True) -> None",
    queue.CompleteGroupQueue.__init__: (
        "(self, *, groups_per_round: int, groups_per_update: int, weight_version: int, "
        "order: Literal['arrival', 'submission'] = 'arrival') -> None"
    ),
    queue.CompleteGroupQueue.put: "(self, group: common.queue.QueuedGroup) -> None",
    queue.CompleteGroupQueue.drop: (
        "(self, group_id: collections.abc.Hashable, reason: common.records.Reason, *, order: int | None = None) -> None"
    ),
    queue.CompleteGroupQueue.extend: "(self, num_groups: int) -> None",
    queue.CompleteGroupQueue.fail: "(self, error: BaseException) -> None",
    queue.CompleteGroupQueue.take_nowait: "(self) -> common.records.Dispatch | None",
    queue.CompleteGroupQueue.snapshot: "(self) -> common.records.QueueSnapshot",
}
FIELDS = {
    records.Request: "request_id group_id order member prompt_ids seed",
    records.Response: "request_id token_ids logprobs finish_reason version_start version_end times",
    records.Sample: "request response reward status advantage text reason extracted parts",
    records.Group: "group_id order weight_version samples filtered",
    records.Dispatch: "groups update_index is_last_of_update",
    records.UpdateResult: "update_index optimizer_step loss grad_norm num_groups num_tokens metrics",
    records.PolicySnapshot: "frontier num_waiting num_in_flight num_groups",
    records.QueueSnapshot: "num_expected num_waiting num_taken num_dropped num_missing update_index is_closed dropped",
}
RECORDS = [value for value in vars(records).values() if isinstance(value, type) and dataclasses.is_dataclass(value)]
ERRORS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


@pytest.mark.parametrize("call", SIGNATURES, ids=lambda call: call.__qualname__)
def test_signatures_change_only_on_purpose(call: Any) -> None:
    assert str(inspect.signature(call)).replace("typing.", "") == SIGNATURES[call]


@pytest.mark.parametrize(
    "policy",
    [policies.FifoAdmission, policies.FrontierGroupDispatch, policies.AdaptiveFrontierDispatch],
    ids=lambda policy: policy.__name__,
)
def test_every_policy_has_the_calls_of_the_protocol_and_no_others(policy: type) -> None:
    calls = {name for name in vars(policies.AdmissionPolicy) if not name.startswith("_")}
    assert {name for name in dir(policy) if not name.startswith("_")} == calls
    for name in calls:
        protocol, own = (inspect.signature(getattr(owner, name)) for owner in (policies.AdmissionPolicy, policy))
        assert protocol == own


def test_the_queue_has_these_calls_and_no_others() -> None:
    names = {name for name in dir(queue.CompleteGroupQueue) if not name.startswith("_")}
    assert names == {"put", "drop", "extend", "fail", "take_nowait", "snapshot"}


@pytest.mark.parametrize("record", FIELDS, ids=lambda record: record.__name__)
def test_fields_change_only_on_purpose(record: Any) -> None:
    assert " ".join(field.name for field in dataclasses.fields(record)) == FIELDS[record]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_records_are_frozen_slotted_and_keyword_only(record: Any) -> None:
    assert record.__dataclass_params__.frozen
    assert "__slots__" in vars(record)
    assert all(field.kw_only for field in dataclasses.fields(record))
    assert get_type_hints(record)


def test_a_record_cannot_be_changed_nor_extended() -> None:
    request = Request(request_id="a/0", group_id="a", order=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.order = 1  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        request.note = "x"  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Request("a/0", "a", 0)  # type: ignore[misc]


def test_records_pickle() -> None:
    request = Request(request_id=("a", 0), group_id="a", order=0, prompt_ids=(1, 2))
    response = Response(
        request_id=("a", 0), token_ids=(3,), logprobs=(-0.5,), finish_reason=FinishReason.STOP, version_start=1, version_end=1
    )
    sample = Sample(request=request, response=response, reward=1.0, status=Verdict.OK)
    group = Group(group_id="a", order=0, weight_version=1, samples=(sample,))
    assert pickle.loads(pickle.dumps(group)) == group


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_errors_pickle_with_their_message(error: type[Exception]) -> None:
    again = pickle.loads(pickle.dumps(error("free_slots: must be 0 or more, got -1; remedy")))
    assert type(again) is error
    assert str(again) == "free_slots: must be 0 or more, got -1; remedy"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_one_base_and_a_builtin_one(error: type[Exception]) -> None:
    assert issubclass(error, errors.RolloutPipeError)
    if error not in (errors.RolloutPipeError, errors.RoundFinished):
        assert issubclass(error, ValueError) != issubclass(error, RuntimeError)


def test_reasons_are_strings_in_data_and_members_in_code() -> None:
    assert list(records.Reason) == ["filtered", "failed", "timed_out", "cancelled"]
    assert list(FinishReason) == ["stop", "length", "abort"]
    assert list(Verdict) == ["ok", "wrong", "no_answer", "timeout", "error"]
