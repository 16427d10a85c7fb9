"""What must hold of a run that has ended, whatever was killed: read from its directory, computed anew, compared."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from safetensors.numpy import load_file

from chaos import journals
from chaos.arithmetic import LAYOUT, Weights, answer, logprob
from common import spool
from common.spool import SpoolWriter

Event = dict[str, Any]


class Judge:
    """`findings()` of one run directory: none where all is well. `is_fake`: weights can be computed from the journals."""

    def __init__(self, run_dir: Path, *, is_fake: bool = True) -> None:
        self._run_dir, self._is_fake = run_dir, is_fake
        self._config = yaml.safe_load((run_dir / "config.yaml").read_text())
        self._journals = journals.read_all(run_dir)
        self._events = read_events(run_dir)

    def findings(self) -> list[str]:
        """One line each."""
        return [line for check in (self._rounds, self._groups, self._books, self._updates, self._weights) for line in check()]

    def _rounds(self) -> Iterator[str]:
        """Each round has a whole journal, of its own version, and no problem is used twice."""
        rounds = list(range(self._config["rounds"]))
        if list(self._journals) != rounds:
            yield f"journals of rounds {list(self._journals)}, not of {rounds}"
        for number, found in self._journals.items():
            if found.num_broken or not found.is_ended or not found.head:
                yield f"round {number}: {found.num_broken} broken lines, ended: {found.is_ended}, head: {bool(found.head)}"
            if (found.head.get("round"), found.head.get("version")) != (number, number):
                yield f"round {number}: its head says {found.head}"
        problems = Counter(row["problem"] for found in self._journals.values() for row in found.groups)
        yield from (f"problem {name} was used {count} times" for name, count in problems.items() if count > 1)

    def _groups(self) -> Iterator[str]:
        """Rules 1 and 2: whole groups of the round's version, each reported once."""
        for number, found in self._journals.items():
            orders = sorted(row["order"] for row in found.reports)
            if orders != list(range(len(orders))) or len(orders) < self._config["groups_per_round"]:
                yield f"round {number}: reports of groups {orders}"
            for row in found.groups:
                if [sample["member"] for sample in row["samples"]] != list(range(self._config["responses_per_group"])):
                    yield f"{row['group']}: members {[sample['member'] for sample in row['samples']]}"
                versions = {row["weight_version"], *(v for sample in row["samples"] for v in sample["versions"])}
                if versions != {number}:
                    yield f"{row['group']}: versions {sorted(versions)} in round {number}"

    def _books(self) -> Iterator[str]:
        """Rule 3, in the last try of each round, against the journal."""
        for number, found in self._journals.items():
            ends = [event for event in self._events if event["kind"] == "round_end" and event["round"] == number]
            if not ends:
                yield f"round {number}: no end in the timeline"
                continue
            books = ends[-1]["books"]
            counted = {
                "trained": len(found.trained("arrival")),
                "dropped": sum("samples" not in row or row["filtered"] == "failed" for row in found.reports),
                "filtered": sum(row.get("filtered") not in (None, "failed") for row in found.groups),
            }
            if any(books[name] != count for name, count in counted.items()):
                yield f"round {number}: books {books}, but its journal holds {counted}"
            if books["groups"] + books["refilled"] != sum(counted.values()):
                yield f"round {number}: books do not balance: {books}"
            if books["requests"] != books["finished"] + books["failed"] + books["cancelled"]:
                yield f"round {number}: requests do not balance: {books}"

    def _updates(self) -> Iterator[str]:
        """Each group that is to be trained is, once, in the last try of its round; updates hold U of them."""
        for number, found in self._journals.items():
            wanted = [row["group"] for row in found.trained(self._config["group_order"])]
            start = max((i for i, e in enumerate(self._events) if e["kind"] == "round_start" and e["round"] == number), default=0)
            mine = [event for event in self._events[start:] if event.get("round") == number]
            trained = [event["group"] for event in mine if event["kind"] == "compute" and event["phase"] == "accumulate"]
            if trained != wanted:
                yield f"round {number}: trained {trained}, its journal asks for {wanted}"
            sizes = [event["groups"] for event in mine if event["kind"] == "update"]
            per_update = update_size(self._config)
            if sum(sizes) != len(wanted) or any(size != per_update for size in sizes[:-1]):
                yield f"round {number}: updates of {sizes} groups, U is {per_update}"
            gaps = [event["metrics"]["logprob_gap_max"] for event in mine if event["kind"] == "update" and event["update"] == 0]
            if gaps and max(gaps) > 1e-4:
                yield f"round {number}: sampler and trainer differ by {max(gaps):.3g} before the first step"

    def _weights(self) -> Iterator[str]:
        """The chain of fingerprints, answers and log-probs by the weights of their round, and the final weights."""
        if not self._is_fake:
            return
        weights = Weights()
        for number, found in self._journals.items():
            if found.head.get("weights") != _fingerprint(weights):
                yield f"round {number}: its journal is of weights {found.head.get('weights')}, not of {_fingerprint(weights)}"
            yield from self._of_other_weights(found, weights.served)
            weights = after_round(found, self._config, weights)
        final = self._run_dir / "model" / "model.safetensors"
        if not final.exists():
            yield "no final weights"
        elif {name: array.tobytes() for name, array in load_file(str(final)).items()} != weights.tensors():
            yield "the final weights are not those of the journals, trained once from the start"

    def _of_other_weights(self, found: journals.Found, weight: float) -> Iterator[str]:
        for row in found.groups:
            for sample in row["samples"]:
                tokens = answer(sample["seed"], weight, self._config["sampling"]["max_tokens"])
                if tuple(sample["token_ids"]) != tokens or sample["logprobs"] != [logprob(weight, token) for token in tokens]:
                    yield f"{sample['request']}: sampled from other weights than those of its round"
                    break


def update_size(config: dict[str, Any]) -> int:
    """U."""
    size = config["groups_per_update"]
    return int(config["groups_per_round"] if size == "round" else size)


def after_round(found: journals.Found, config: dict[str, Any], weights: Weights) -> Weights:
    """U groups an update, in order, the last one perhaps short."""
    digests = [journals.digest(row) for row in found.trained(config["group_order"])]
    size = update_size(config)
    for start in range(0, len(digests), size):
        weights = weights.after(digests[start : start + size])
    return weights


def _fingerprint(weights: Weights) -> str:
    with TemporaryDirectory() as directory:
        with SpoolWriter(Path(directory), 0) as writer:
            for name, data in weights.tensors().items():
                writer.add(name, LAYOUT[name].dtype, LAYOUT[name].shape, data)
        return str(spool.fingerprint(Path(directory)))


def read_events(run_dir: Path) -> list[Event]:
    """Whole lines of the timeline."""
    path = run_dir / "timeline.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def has_unscored(run_dir: Path) -> bool:
    """A verifier that was killed has left a member without a reward: no other run can come out the same."""
    return any(
        sample["reward"] is None or not sample["has_reward"]
        for found in journals.read_all(run_dir).values()
        for row in found.groups
        for sample in row["samples"]
    ) or any("samples" not in row for found in journals.read_all(run_dir).values() for row in found.reports)


def final_weights(run_dir: Path) -> str:
    """sha256 of the weights that a run has ended with."""
    return str(json.loads((run_dir / "result.json").read_text())["final_weights_sha256"])
