"""What the pages say in words and figures: configuration, tiles, columns, incidents."""

import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

from common.figures import DASH, number, percent, seconds, small
from common.metrics import RoundMetrics
from common.report.rundir import RunInfo, nested, plain
from common.round_events import mean
from common.timeline import Event

Column = tuple[str, str, Callable[[RoundMetrics], str]]

COLUMNS: tuple[Column, ...] = (
    ("Round", "round", lambda m: str(m.round)),
    ("Reward", "mean over all scored responses", lambda m: number(m.reward_mean, 3)),
    ("To train end", "round start to the end of the last update", lambda m: seconds(m.r2t_end_s)),
    ("Rollout", "round start to the last group", lambda m: seconds(m.rollout_s)),
    ("First group", "first group handed to the trainer", lambda m: seconds(m.first_group_s)),
    ("First dispatch", "first update's last group handed to the trainer", lambda m: seconds(m.first_dispatch_s)),
    ("Waiting ratio", "trainer wait / (wait + compute)", lambda m: percent(m.waiting_ratio)),
    ("Wait", "trainer waits", lambda m: seconds(m.trainer_wait_s)),
    ("Compute", "trainer computes", lambda m: seconds(m.trainer_compute_s)),
    ("Publish", "new weights to every engine", lambda m: seconds(m.publish_s)),
    ("Tokens/s out", "sampled tokens per second of rollout", lambda m: number(m.rollout_tokens_per_s)),
    ("Tokens/s in", "trained tokens per second of compute", lambda m: number(m.train_tokens_per_s)),
    ("Length mean", "response tokens", lambda m: number(m.length_mean)),
    ("p90", "response tokens", lambda m: number(m.length_p90)),
    ("Cut off", "responses that ran into the token limit", lambda m: percent(m.cut_off_share)),
    ("No answer", "verdicts: no answer found", lambda m: percent(m.no_answer_share)),
    ("Verify max", "longest verifier call", lambda m: seconds(m.verify_s_max)),
    ("Timeouts", "verifier calls ended at their limit: reward 0", lambda m: str(m.verifier_timeouts)),
    ("Errors", "verifier calls that failed: no reward", lambda m: str(m.verifier_errors)),
    ("Trained", "groups", lambda m: str(m.groups_trained)),
    ("Filtered", "groups", lambda m: str(m.groups_filtered)),
    ("Dropped", "groups", lambda m: str(m.groups_dropped)),
    ("Retries", "requests sampled again", lambda m: str(m.retries)),
    ("Log-prob gap", "largest, on the first update", lambda m: small(m.logprob_gap_max)),
    ("Loss", "mean over updates", lambda m: small(m.loss_mean)),
    ("Grad norm", "mean over updates", lambda m: small(m.grad_norm_mean)),
    ("Step", "optimizer steps so far", lambda m: DASH if m.optimizer_step is None else str(m.optimizer_step)),
)

_OF_ANSWERS = frozenset(
    {"Reward", "No answer", "Verify max", "Timeouts", "Errors", "Retries", "Log-prob gap", "Loss", "Grad norm"}
)  # titles of columns and tiles

_SETTINGS = (
    ("Model", "model.path"),
    ("Model", "model.recipe"),
    ("Workload", "workload.name"),
    ("Groups a round (R)", "groups_per_round"),
    ("Responses a group (K)", "responses_per_group"),
    ("Groups an update (U)", "groups_per_update"),
    ("Requests arrive", "request_order"),
    ("Engines", "rollout.replicas"),
    ("Slots an engine", "rollout.capacity"),
    ("Engines", "engine.replicas"),
    ("Slots an engine", "engine.capacity"),
    ("Key-value tokens an engine", "engine.kv_tokens"),
    ("Contention", "contention"),
    ("Trainer", "trainer"),
    ("Trainer ranks", "training.ranks"),
    ("Loss", "training.loss"),
    ("Learning rate", "training.lr"),
    ("Temperature", "sampling.temperature"),
    ("Tokens at most", "sampling.max_tokens"),
    ("Zero-spread groups", "filter"),
    ("Seed", "seed"),
)


def settings(info: RunInfo) -> list[tuple[str, str]]:
    """The configuration in a few words."""
    found = ((label, nested(info.config, path)) for label, path in _SETTINGS)
    return [(label, plain(value)) for label, value in found if value is not None and not isinstance(value, dict)]


def columns(info: RunInfo) -> tuple[Column, ...]:
    """Those of the table of rounds; a simulation has no answers, so no rewards, losses or gaps."""
    return tuple(column for column in COLUMNS if not info.is_simulated or column[0] not in _OF_ANSWERS)


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _mean(values: list[float | None]) -> float | None:
    return mean([value for value in values if value is not None])


def gap_limit(info: RunInfo) -> float | None:
    """The largest log-prob gap that the run allowed."""
    limit = nested(info.config, "limits.max_logprob_gap")
    return float(limit) if limit is not None else None


def tiles(info: RunInfo, rounds: list[RoundMetrics]) -> list[dict[str, str]]:
    """The figures on top of the page: label, value, note, role."""
    finished = [metrics for metrics in rounds if metrics.is_finished]
    rounds = finished or rounds  # half a round would distort means and medians
    first, last = (_mean([m.reward_mean for m in part]) for part in (rounds[:2], rounds[-2:]))
    gap = max((m.logprob_gap_max for m in rounds if m.logprob_gap_max is not None), default=None)
    limit = gap_limit(info)
    wait = _median([m.waiting_ratio for m in rounds])
    r2t = _median([m.r2t_end_s for m in rounds])
    out, into = (_median([getattr(m, name) for m in rounds]) for name in ("rollout_tokens_per_s", "train_tokens_per_s"))
    planned = f"of {info.num_planned_rounds} planned" if info.num_planned_rounds else "finished"
    is_over = gap is not None and limit is not None and gap > limit
    rows = (
        ("Rounds", str(len(finished)), planned, "plain"),
        ("Reward", f"{number(first, 2)} → {number(last, 2)}", "mean of the first and the last two rounds", "reward"),
        ("Trainer waits", percent(wait), "wait / (wait + compute), median round", "wait"),
        ("Round time", seconds(r2t), "rollout to train end, median round", "plain"),
        ("Rollout tokens/s", number(out), "sampled, median round", "rollout"),
        ("Training tokens/s", number(into), "of compute, median round", "train"),
        ("Log-prob gap", small(gap), f"largest; limit {small(limit) if limit else 'not set'}", "bad" if is_over else "plain"),
    )
    shown = [row for row in rows if not info.is_simulated or row[0] not in _OF_ANSWERS]
    return [dict(zip(("label", "value", "note", "role"), row, strict=True)) for row in shown]


def books_rows(rounds: list[RoundMetrics]) -> list[dict[str, Any]]:
    """Rule 3, round by round; `groups_ok` and `requests_ok` say whether the counts balance."""
    rows = []
    for metrics in rounds:
        books = metrics.books
        if books:
            groups = books.get("groups", 0) + books.get("refilled", 0)
            ends = sum(books.get(name, 0) for name in ("trained", "filtered", "dropped"))
            fates = sum(books.get(name, 0) for name in ("finished", "failed", "cancelled"))
            checks = {"groups_ok": groups == ends, "requests_ok": books.get("requests", fates) == fates}
            rows.append({"round": metrics.round, **books, **checks})
    return rows


def incidents(events: list[Event], limit: int = 200) -> tuple[list[dict[str, str]], int]:
    """Stalls, faults, dropped groups and retries as lines, at most `limit`; and how many there were."""
    lines: list[dict[str, str]] = []
    retries: Counter[tuple[int, str]] = Counter()
    for event in events:
        if event["kind"] in ("stall", "left_out"):
            lines.append(_line(event, event["kind"].replace("_", " "), str(event.get("message", ""))))
        elif event["kind"] in ("fault", "recovered"):
            after = f" after {event['t'] - event['start']:.1f} s" if "start" in event else ""
            lines.append(_line(event, event["kind"], f"{event['part']}{after}: {event.get('detail') or ''}"))
        elif event["kind"] == "recorded":
            lines.append(_line(event, "resumed", f"{event['groups']} groups were on disk, and not sampled again"))
        elif event["kind"] == "group_drop" and event.get("reason") != "filtered":
            lines.append(_line(event, "dropped", f"{event['group']}: {event.get('reason')}. {event.get('detail') or ''}"))
        elif event["kind"] == "retry":
            retries[event["round"], str(event.get("reason"))] += 1
    for (round_number, reason), count in sorted(retries.items()):
        lines.append({"kind": "retries", "where": f"round {round_number}", "text": f"{count} × {reason}"})
    return lines[:limit], len(lines)


def _line(event: Event, kind: str, text: str) -> dict[str, str]:
    where = f"round {event['round']}, {event['t']:.1f} s" if "round" in event else f"{event['t']:.1f} s"
    return {"kind": kind, "where": where, "text": text.strip()}
