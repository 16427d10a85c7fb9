"""Whether a recorded group is the one that the round would make itself: its problem, its requests, advantages of its rewards."""

from collections.abc import Sequence
from dataclasses import replace

from common.config import Config
from common.grpo import StdKind
from common.journal_lines import Complete, Entry
from common.materialize import materialize
from common.protocols import Problem
from common.records import Request


def misfit(entry: Entry, problem: Problem, requests: Sequence[Request], version: int, config: Config) -> str:
    """Why it is not; empty where it is. `requests` are those of the group in the round."""
    if not isinstance(entry, Complete):
        return ""
    if entry.problem != problem.problem_id:
        return "answers another problem than the round asks there"
    group = entry.group
    if [sample.request for sample in group.samples] != list(requests):
        return "was not asked as the round asks it"
    is_batch = config.advantage_std == "batch"
    if is_batch and group.filtered is None:
        return ""  # scaled by what the other groups of the round got
    std: StdKind = "none" if is_batch else config.advantage_std
    bare = [replace(sample, advantage=0.0) for sample in group.samples]
    same = materialize(str(group.group_id), group.order, version, bare, std=std, keep_flat=config.filter == "keep")
    return "" if same == group else "has other advantages than its rewards give"
