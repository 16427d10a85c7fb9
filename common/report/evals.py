"""The evaluations of a run, from its timeline: table and curve of the report."""

from collections.abc import Callable, Iterable

from common.figures import number, percent, seconds
from common.timeline import Event

Column = tuple[str, str, Callable[[Event], str]]

COLUMNS: tuple[Column, ...] = (
    ("Version", "weight version", lambda e: str(e["version"])),
    ("Round", "in whose tail it took place", lambda e: str(e["round"]) if "round" in e else "after the last"),
    ("Accuracy", "mean over problems of the share of right samples", lambda e: percent(e["accuracy"])),
    ("95 % interval", "by problems", lambda e: f"{percent(e['low'])} to {percent(e['high'])}"),
    ("pass@k", "chance that one of k samples is right", lambda e: _pass_at(e["pass_at"])),
    ("Problems", "asked", lambda e: str(e["problems"])),
    ("Samples", "asked", lambda e: str(e["samples"])),
    ("Length mean", "response tokens", lambda e: number(e["length_mean"])),
    ("Cut off", "responses that ran into the token limit", lambda e: percent(e["cut_off_share"])),
    ("No answer", "of scored samples", lambda e: percent(e["no_answer_share"])),
    ("Time-outs", "of the verifier; wrong", lambda e: str(e["timeouts"])),
    ("Errors", "no verdict; left out", lambda e: str(e["errors"])),
    ("Took", "start to end", lambda e: seconds(e["t"] - e["start"])),
    ("Held up", "the publish waited for its end", lambda e: seconds(e["wait"])),
)


def evaluations(events: Iterable[Event]) -> list[Event]:
    """The `eval` events by version; of a repeated one (after a resume) the last."""
    found = {event["version"]: event for event in events if event["kind"] == "eval"}
    return [found[version] for version in sorted(found)]


def _pass_at(values: dict[str, float | None]) -> str:
    return ", ".join(f"@{k} {percent(value)}" for k, value in values.items() if k != "1") or "–"
