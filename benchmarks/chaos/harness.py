"""One run under fire: starts the driver, strikes, resumes, and asks the judge."""

import json
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from safetensors.numpy import save_file

from chaos import journals, judge, moments
from chaos.arithmetic import LAYOUT, Weights
from chaos.processes import ROOT, Home, Watcher, dump_stacks
from chaos.scenario import Scenario

LIFE_S, REAL_LIFE_S = 300.0, 600.0  # of one start of the driver
MAX_STARTS = 8


@dataclass(slots=True)
class Outcome:
    """Of one seed."""

    scenario: Scenario
    findings: list[str] = field(default_factory=list)
    num_starts: int = 0
    seconds: float = 0.0
    compared: str = ""  # with what the final weights were compared, bit for bit
    strikes: list[dict[str, Any]] = field(default_factory=list)


class RunUnderFire:
    """`go()` once."""

    def __init__(self, scenario: Scenario, path: Path, *, compares: bool = True) -> None:
        self.scenario, self.home, self._compares = scenario, Home(path, scenario), compares
        self.outcome = Outcome(scenario)
        self._cluster: subprocess.Popen[bytes] | None = None
        self._num_trained = 0  # lines of trained.jsonl that were looked at
        self._known: dict[str, int] = {}  # groups that were on disk when the driver died: number of its start

    def go(self) -> Outcome:
        """The whole run, with its comparison."""
        start_s = time.monotonic()
        try:
            self._write_config()
            if self.scenario.has_nodes:
                self._start_cluster()
            if self._run_to_the_end():
                self._judge()
        finally:
            self._end()
            self.outcome.seconds = time.monotonic() - start_s
            self.outcome.strikes = read_lines(self.home.path / "strikes.jsonl")
        return self.outcome

    def _find(self, *lines: str) -> None:
        self.outcome.findings += lines

    def _write_config(self) -> None:
        if self.scenario.is_real:
            settings = {**yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text()), **self.scenario.settings}
        else:
            settings = {**self.scenario.settings, "model": {"path": str(write_model(self.home.path / "model"))}}
        settings["run_dir"] = str(self.home.run_dir)
        (self.home.path / "config.yaml").write_text(yaml.safe_dump(settings))

    def _start_cluster(self) -> None:
        output = self.home.path / "cluster.json"
        self._cluster = self.home.start(["chaos.cluster", str(output)], self.home.path / "cluster.log")
        deadline = time.monotonic() + 60
        while not output.exists():
            if time.monotonic() > deadline or self._cluster.poll() is not None:
                raise RuntimeError(f"no cluster: {(self.home.path / 'cluster.log').read_text()[-500:]}")
            time.sleep(0.1)

    def _run_to_the_end(self) -> bool:
        watcher = Watcher(self.home, self._strike_node)
        while self.outcome.num_starts < MAX_STARTS:
            output = self.home.path / f"driver-{self.outcome.num_starts}.log"
            self.outcome.num_starts += 1
            code = self._live(watcher, output)
            self._check_order()
            if code == 0:
                besides = (self._cluster.pid,) if self._cluster is not None else ()
                left = [] if self._cluster is not None else self.home.wait_for_none(besides)
                self._find(*(f"left behind at the end: {process}" for process in left))
                return True
            if code != -signal.SIGKILL or not self._was_struck():
                self._find(f"the driver ended with {code}: {output.read_text()[-600:].strip()}")
                return False
            if self._cluster is None:
                self._find(*(f"left behind by a killed driver: {process}" for process in self.home.wait_for_none()))
            self._note_known()
            self._edit()
        self._find(f"still not finished after {MAX_STARTS} starts")
        return False

    def _live(self, watcher: Watcher, output: Path) -> int:
        """One start of the driver; its exit code."""
        is_begun = (self.home.run_dir / "config.yaml").exists()
        words = ["--resume", str(self.home.run_dir)] if is_begun else [str(self.home.path / "config.yaml")]
        if self._cluster is not None:
            words.append(f"cluster.address={json.loads((self.home.path / 'cluster.json').read_text())['address']}")
        moments.append(self.home.path / "starts.jsonl", {"wall_s": time.time()})
        process = self.home.start(["chaos.driver", "train", *words], output)
        life_s = REAL_LIFE_S if self.scenario.is_real else LIFE_S
        deadline = time.monotonic() + life_s
        while (code := process.poll()) is None:
            watcher.look()
            if time.monotonic() > deadline:
                dump_stacks(process)
                process.kill()
                process.wait()
                self._find(f"hung: no end within {life_s:g} s")
                return -1
            time.sleep(0.005)
        return code

    def _was_struck(self) -> bool:
        strikes = read_lines(self.home.path / "strikes.jsonl")
        return sum(strike["target"] == "driver" for strike in strikes) >= self.outcome.num_starts

    def _strike_node(self, strike: dict[str, Any]) -> None:
        assert self._cluster is not None and self._cluster.stdin is not None
        kind = strike["target"].removesuffix("-node")
        moments.append(self.home.path / "strikes.jsonl", {**strike, "wall_s": time.time()})
        self._cluster.stdin.write(f"kill {kind}\n".encode())
        self._cluster.stdin.flush()

    def _check_order(self) -> None:
        """What ranks have seen was on disk before: else a resume would not know of it."""
        if self.scenario.is_real:
            return
        on_disk = journals.digests_on_disk(self.home.run_dir)
        seen = read_lines(self.home.path / "trained.jsonl")[self._num_trained :]
        self._num_trained += len(seen)
        unknown = [row for row in seen if row["group"] not in on_disk]
        if unknown:
            self._find(f"{len(unknown)} groups were trained, but are not in the journal")

    def _note_known(self) -> None:
        for found in journals.read_all(self.home.run_dir).values():
            self._known.update({str(row["group"]): self.outcome.num_starts for row in found.groups})

    def _edit(self) -> None:
        """Of the last strike at the driver: tear or change the oldest journal that the resume will read."""
        last = [strike for strike in read_lines(self.home.path / "strikes.jsonl") if strike["target"] == "driver"][-1]
        if not last["edit"]:
            return
        saved = max((int(p.parent.name.split("-")[1]) for p in self.home.run_dir.glob("checkpoints/*/state.json")), default=0)
        path = self.home.run_dir / "groups" / f"round-{saved:05d}.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if len(lines) < 2:
            return
        self._known = {}
        if last["edit"] == "tear":
            lines[-1] = lines[-1][: len(lines[-1]) // 2]
        else:
            line = bytearray(lines[len(lines) // 2])  # a digit of it is another one now
            place = next(index for index in range(len(line) // 2, len(line)) if chr(line[index]).isdigit())
            line[place] = ord("1") if line[place] == ord("2") else ord("2")
            lines[len(lines) // 2] = bytes(line)
        path.write_bytes(b"".join(lines))

    def _judge(self) -> None:
        run_dir = self.home.run_dir
        self._find(*judge.Judge(run_dir, is_fake=not self.scenario.is_real).findings(), *self._sampled_again())
        if not self._compares:
            return
        if self.scenario.is_real:
            self._compare_real()
            return
        is_repeatable = self.scenario.settings["group_order"] == "submission" and not judge.has_unscored(run_dir)
        self.outcome.compared = "undisturbed" if is_repeatable else "replay"
        other = self._undisturbed() if is_repeatable else self._replay()
        if other is not None and other != judge.final_weights(run_dir):
            self._find(f"the final weights differ from those of the {self.outcome.compared} run")

    def _compare_real(self) -> None:
        """A replay must come out the same; of an undisturbed run, whose engine batched otherwise, it is said."""
        weights = judge.final_weights(self.home.run_dir)
        if (other := self._replay()) is not None and other != weights:
            self._find("the final weights differ from those of the replay run")
        undisturbed = self._undisturbed()
        self.outcome.compared = f"replay; an undisturbed run's are {'the same' if undisturbed == weights else 'others'}"

    def _sampled_again(self) -> list[str]:
        """Groups that were on disk when the driver died, and were asked of an engine after it."""
        rejected = self.home.run_dir / "groups" / "rejected.txt"
        if rejected.exists():
            return []
        again = set()
        events, num_start = judge.read_events(self.home.run_dir), 0
        for event in events:
            num_start += event["kind"] == "run_start"
            if event["kind"] == "dispatch" and self._known.get(event["group"], MAX_STARTS) < num_start:
                again.add(event["group"])
        return [f"{group} was on disk, and was sampled again" for group in sorted(again)]

    def _undisturbed(self) -> str | None:
        scenario = replace(self.scenario, strikes=(), plant="", has_nodes=False)
        return self._other(scenario, "undisturbed")

    def _replay(self) -> str | None:
        """The journals from the start, in a directory of their own: all is read, nothing is sampled."""
        scenario = replace(self.scenario, strikes=(), plant="", has_nodes=False)

        def copy(run_dir: Path) -> None:
            run_dir.mkdir()
            for name in ("config.yaml", "start.json"):
                shutil.copy(self.home.run_dir / name, run_dir / name)
            text = (run_dir / "config.yaml").read_text()
            (run_dir / "config.yaml").write_text(text.replace(str(self.home.run_dir), str(run_dir)))
            shutil.copytree(self.home.run_dir / "groups", run_dir / "groups")

        return self._other(scenario, "replay", copy)

    def _other(self, scenario: Scenario, name: str, before: Any = None) -> str | None:
        other = RunUnderFire(scenario, self.home.path / name)
        settings = {key: value for key, value in scenario.settings.items() if key != "cluster"}
        other.scenario = replace(scenario, settings=settings)
        try:
            other._write_config()
            if before is not None:
                before(other.home.run_dir)
            if not other._run_to_the_end():
                self._find(*(f"{name} run: {line}" for line in other.outcome.findings))
                return None
            if before is not None and any(event["kind"] == "dispatch" for event in judge.read_events(other.home.run_dir)):
                self._find("the replay sampled something")
            self._find(
                *(f"{name} run: {line}" for line in judge.Judge(other.home.run_dir, is_fake=not scenario.is_real).findings())
            )
            return judge.final_weights(other.home.run_dir)
        finally:
            other._end()

    def _end(self) -> None:
        if self._cluster is not None:
            assert self._cluster.stdin is not None
            self._cluster.stdin.close()
            try:
                self._cluster.wait(30)
            except subprocess.TimeoutExpired:
                self._find("the cluster did not end")
            self._cluster = None
        self.home.kill_left()


def write_model(directory: Path) -> Path:
    """The starting weights of the fakes, as a model directory."""
    import numpy as np

    directory.mkdir()
    tensors = Weights().tensors()
    arrays = {name: np.frombuffer(data, np.float32).reshape(LAYOUT[name].shape) for name, data in tensors.items()}
    save_file(arrays, str(directory / "model.safetensors"))
    (directory / "config.json").write_text(json.dumps({"max_position_embeddings": 512, "eos_token_id": 1}))
    return directory


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole JSON lines; none where there is no file."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
