"""Stored groups come back exactly, whatever is in them, and a killed writer costs one line."""

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import DataError
from common.records import FinishReason, Group, Reason, Request, Response, Sample, Times, Verdict
from common.report.groups import GroupWriter, read_groups, round_path

ids = st.text(min_size=1, max_size=8) | st.integers()
numbers = st.floats(allow_nan=True, allow_infinity=True)
times = st.floats(min_value=0, max_value=1e6)


@st.composite
def samples(draw) -> Sample:
    request_id, tokens = draw(ids), draw(st.lists(st.tuples(st.integers(0, 2**31), numbers), max_size=5))
    request = Request(
        request_id=request_id,
        group_id=draw(ids),
        order=draw(st.integers(0, 99)),
        member=draw(st.integers(0, 9)),
        prompt_ids=tuple(draw(st.lists(st.integers(0, 2**31), max_size=4))),
        seed=draw(st.integers(0, 2**63)),
    )
    response = Response(
        request_id=request_id,
        token_ids=tuple(token for token, _ in tokens),
        logprobs=tuple(logprob for _, logprob in tokens),
        finish_reason=draw(st.sampled_from(FinishReason)),
        version_start=draw(st.integers(0, 9)),
        version_end=draw(st.integers(0, 9)),
        times=Times(admitted_s=draw(times), finished_s=draw(times), scored_s=draw(times)),
    )
    return Sample(
        request=request,
        response=response,
        reward=draw(st.none() | numbers),
        status=draw(st.sampled_from(Verdict)),
        advantage=draw(numbers),
        text=draw(st.text(st.characters(exclude_categories=()), max_size=30)),
        reason=draw(st.text(max_size=10)),
        extracted=draw(st.text(max_size=10)),
        parts=draw(st.lists(st.tuples(st.text(max_size=5), numbers), max_size=3).map(tuple)),
    )


groups = st.builds(
    Group,
    group_id=ids,
    order=st.integers(0, 99),
    weight_version=st.integers(0, 9),
    samples=st.lists(samples(), max_size=3).map(tuple),
    filtered=st.none() | st.sampled_from(Reason),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.lists(st.tuples(groups, st.text(max_size=20)), min_size=1, max_size=3))
def test_groups_come_back_exactly(tmp_path, written) -> None:
    path = round_path(tmp_path, 3)
    path.unlink(missing_ok=True)
    with GroupWriter(tmp_path) as writer:
        for group, prompt in written:
            writer.write(3, group, prompt=prompt)
    found = [(stored.group, stored.prompt) for stored in read_groups(path)]
    assert repr(found) == repr(written)  # repr: NaN equals itself there


def make_group(order: int = 0, logprob: float = -0.5) -> Group:
    request = Request(request_id=f"r0/g{order}/m0", group_id=f"r0/g{order}", order=order)
    response = Response(
        request_id=request.request_id,
        token_ids=(5,),
        logprobs=(logprob,),
        finish_reason=FinishReason.STOP,
        version_start=0,
        version_end=0,
    )
    sample = Sample(request=request, response=response, reward=1.0, status=Verdict.OK, text="4\n</script>")
    return Group(group_id=f"r0/g{order}", order=order, weight_version=0, samples=(sample,))


def test_nan_logprobs_are_null_in_the_file(tmp_path) -> None:
    with GroupWriter(tmp_path) as writer:
        writer.write(0, make_group(logprob=math.nan), prompt="2 + 2")
    assert '"logprobs":[null]' in round_path(tmp_path, 0).read_text()
    assert round_path(tmp_path, 0).name == "round-00000.jsonl"


def test_each_group_is_on_disk_once_written(tmp_path) -> None:
    writer = GroupWriter(tmp_path)
    writer.write(0, make_group(0), prompt="")
    assert len(list(read_groups(round_path(tmp_path, 0)))) == 1
    writer.write(1, make_group(0), prompt="")
    assert len(list(read_groups(round_path(tmp_path, 1)))) == 1
    writer.close()
    writer.close()


def test_a_torn_last_line_is_skipped_and_a_resumed_writer_starts_a_new_one(tmp_path) -> None:
    path = round_path(tmp_path, 0)
    with GroupWriter(tmp_path) as writer:
        writer.write(0, make_group(0), prompt="")
        writer.write(0, make_group(1), prompt="")
    path.write_bytes(path.read_bytes()[:-40])
    assert [stored.group.order for stored in read_groups(path)] == [0]
    with GroupWriter(tmp_path) as writer:
        writer.write(0, make_group(2), prompt="")
    assert [stored.group.order for stored in read_groups(path)] == [0, 2]


def test_a_line_of_another_schema_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "round-00000.jsonl"
    path.write_text('{"group": "r0/g0"}\n')
    with pytest.raises(DataError, match=r"line 1 must hold a group .*; delete the line"):
        list(read_groups(path))
