"""`rolloutpipe score` as people use it: files good and bad, a pipe that is typed into, a reader that leaves, Ctrl-C."""

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from common import cli
from common.commands import score_lines as lines
from common.commands.score import _read

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "common.cli", "score")
END_S = 60.0  # only so that what hangs fails
FUNCTIONS = """
import time
def score(task, response):
    if response == "hang":
        time.sleep(1000)
    return (1.0 if response == task["gold"] else 0.0), f"{task.get('num_tokens')}"
"""


def rows_of(count: int) -> list[dict[str, Any]]:
    """Every second answer is right; every tenth is missing."""
    rows = []
    for number in range(count):
        answer = number if number % 2 else number + 1
        text = "I give up" if number % 10 == 9 else rf"So it is \boxed{{{answer:,}}}."
        rows.append({"workload": "gsm8k", "gold": f"{number}", "response": text, "id": number})
    return rows


def lines_of(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def score(*words: object, text: str | bytes | None = None) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, lines on stdout, stderr."""
    given = text.encode() if isinstance(text, str) else text
    done = subprocess.run([*COMMAND, *map(str, words)], input=given, capture_output=True, timeout=END_S, cwd=ROOT)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Commands that are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start(running: list[subprocess.Popen[bytes]], *words: object, **options: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # which would hide a missing flush
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)],
        cwd=ROOT,
        env=env,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it, and its children
        **{**pipes, **options},
    )
    running.append(process)
    return process


def test_ten_thousand_lines_in_order_around_a_broken_one(tmp_path: Path) -> None:
    rows = rows_of(10_000)
    lines = [json.dumps(row) for row in rows]
    lines[4_999] = lines[4_999][:-1]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    code, out, err = score(tmp_path / "rows.jsonl", "--json", tmp_path / "summary.json", "rewards.timeout_s=20")
    assert code == 1
    assert len(out) == 10_000
    assert out[4_999]["line"] == 5_000 and out[4_999]["error"].startswith("line: must be one JSON object")
    assert [line for line in err.splitlines() if line.startswith("line ")] == [f"line 5000: {out[4_999]['error'][6:]}"]
    for row, scored in zip(rows, out, strict=True):
        if row["id"] == 4_999:
            continue
        number = row["id"]
        expected = "no_answer" if number % 10 == 9 else "ok" if number % 2 else "wrong"
        assert {name: scored[name] for name in row} == row
        assert (scored["status"], scored["reward"]) == (expected, float(expected == "ok"))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["statuses"] == {"no_answer": 999, "ok": 4_000, "wrong": 5_000}
    assert (summary["lines"], summary["scored"], summary["broken"]) == (10_000, 9_999, 1)
    assert summary["mean_reward"] == pytest.approx(4_000 / 9_999)
    assert "9,999 scored in " in err and "1 broken line" in err


def test_a_line_is_answered_before_the_next_is_there(running: list[subprocess.Popen[bytes]]) -> None:
    process = start(running, "-", "--workers", "1", "rewards.timeout_s=20")
    assert process.stdin is not None and process.stdout is not None
    for row in rows_of(3):
        process.stdin.write(lines_of([row]).encode())
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 30)[0], "no verdict while the input is open"
        assert json.loads(process.stdout.readline())["id"] == row["id"]
    process.stdin.close()
    assert process.stdout.read() == b""
    assert process.wait(END_S) == 0


def test_verdicts_flow_and_memory_stays_while_a_stream_is_read(running: list[subprocess.Popen[bytes]]) -> None:
    """100 MB pass through; the window holds 64 lines of 100 kB a worker."""
    process = start(running, "-", "--workers", "1", "rewards.timeout_s=20", stderr=subprocess.DEVNULL)
    assert process.stdin is not None and process.stdout is not None
    row = {"workload": "gsm8k", "gold": "1", "response": "x" * 100_000 + r"\boxed{1}"}
    line, peak_mb = lines_of([row]).encode(), []
    for number in range(1_000):
        process.stdin.write(line)
        process.stdin.flush()
        if number >= 50:  # some are on their way all the time
            process.stdout.readline()
        if number in (300, 999):
            peak_mb.append(psutil.Process(process.pid).memory_info().rss / 2**20)
    process.stdin.close()
    assert sum(1 for _ in process.stdout) == 50
    assert process.wait(END_S) == 0
    assert peak_mb[1] - peak_mb[0] < 20


def test_a_reader_that_does_not_read_stops_the_reading(running: list[subprocess.Popen[bytes]]) -> None:
    """Nobody takes the verdicts: no more than a window of lines is taken in."""
    process = start(running, "-", "--workers", "1", "rewards.timeout_s=20", stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    line = lines_of([{"workload": "gsm8k", "gold": "1", "response": "x" * 100_000}]).encode()
    taken: list[float] = []  # when each line was

    def write(pipe: IO[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError):
            while len(taken) < 400:
                os.write(pipe.fileno(), line)  # a blocking pipe takes all of it
                taken.append(time.monotonic())

    threading.Thread(target=write, args=(process.stdin,), daemon=True).start()
    deadline_s = time.monotonic() + END_S
    while not taken or time.monotonic() - taken[-1] < 3:
        assert time.monotonic() < deadline_s, "it never stops reading"
        time.sleep(0.1)
    assert 10 < len(taken) < 80


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path, running: list[subprocess.Popen[bytes]]) -> None:
    (tmp_path / "rows.jsonl").write_text(lines_of(rows_of(20_000)))
    process = start(running, tmp_path / "rows.jsonl", stdin=subprocess.DEVNULL)
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())["id"] == 0
    process.stdout.close()
    assert process.wait(END_S) == 1, "not all was scored"
    assert process.stderr.read() == b""


def test_a_reader_that_leaves_ends_it_also_while_more_may_come(running: list[subprocess.Popen[bytes]]) -> None:
    process = start(running, "-", "--workers", "1")
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(lines_of(rows_of(1)).encode())
    process.stdin.flush()
    process.stdout.readline()
    process.stdout.close()
    process.stdin.write(lines_of(rows_of(1)).encode())
    process.stdin.flush()  # and stays open
    assert process.wait(20) == 1
    assert process.stderr.read() == b""


@pytest.mark.parametrize("source", ["stdin", "file"])
def test_ctrl_c_ends_it_while_it_waits_and_while_it_works(
    tmp_path: Path, running: list[subprocess.Popen[bytes]], source: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(lines_of(rows_of(200_000)))
    process = start(running, "-" if source == "stdin" else tmp_path / "rows.jsonl")
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(lines_of(rows_of(1)).encode())
    process.stdin.flush()
    process.stdout.readline()
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(10) == 130
    assert process.stderr.read().decode().splitlines()[-1] == "rolloutpipe: interrupted; what was scored is on stdout"
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_an_interrupted_command_whose_reader_is_gone_is_an_interrupted_command() -> None:
    """A line was written, and not yet flushed, when both happened."""
    code = (
        "import os, sys; from common import cli\n"
        "reader, writer = os.pipe(); os.dup2(writer, 1); os.close(writer); os.close(reader)\n"
        "sys.stdout = open(1, 'w'); sys.stdout.write('a line'); cli.run = lambda arguments: 130; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_hang_does_not_hold_up_more_than_its_window(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    rows = [{"response": "hang" if number in (3, 40) else "a", "gold": "a", "num_tokens": number} for number in range(80)]
    text = lines_of(rows)
    done = subprocess.run(
        [*COMMAND, "-", "--workers", "2", "--timeout", "1", "rewards.function=mine:score"],
        input=text.encode(),
        capture_output=True,
        timeout=END_S,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, "a timeout is a verdict"
    assert [row["status"] for row in out] == ["timeout" if number in (3, 40) else "ok" for number in range(80)]
    assert [row["reason"] for row in out if row["status"] == "ok"] == [str(n) for n in range(80) if n not in (3, 40)]


def test_parts_are_shown_where_they_are_summed() -> None:
    row = {"workload": "gsm8k", "gold": "1", "response": r"\boxed{1}", "num_tokens": 8}
    settings = ["rewards.weights={format: 0.25, length: 0.5}", "rewards.length={limit: 10, buffer: 4}", "rewards.timeout_s=20"]
    code, [scored, broken], _ = score("-", *settings, text=lines_of([row, {**row, "num_tokens": None}]))
    assert code == 1
    assert scored["parts"] == {"answer": 1.0, "format": 1.0, "length": -0.5}
    assert (scored["reward"], scored["status"]) == (1.0, "ok")
    assert broken["error"].startswith("num_tokens: must be the response's number of tokens")


def test_blank_lines_marks_and_line_ends_pass() -> None:
    first, second = (lines_of([row]).strip() for row in rows_of(2))
    text = b"\xef\xbb\xbf" + first.encode() + b"\r\n\r\n   \n" + b"\xff\xfe\n" + second.encode()
    code, out, err = score("-", "rewards.timeout_s=20", text=text)
    assert code == 1
    assert [row.get("id", row.get("line")) for row in out] == [0, 4, 1]
    assert "line 4: must be UTF-8 (byte 1 is not)" in err


def test_reasoning_gym_lines_are_scored_beside_others(tmp_path: Path) -> None:
    entry = {"question": "1 + 1", "answer": "2", "metadata": {}}
    gym = {"workload": "reasoning_gym", "dataset": "chain_sum", "entry": entry, "response": "<answer>2</answer>"}
    code, out, err = score("-", "rewards.timeout_s=20", text=lines_of([*rows_of(2), gym, {**gym, "dataset": "no_such_set"}]))
    assert [row["status"] for row in out[:3]] == ["wrong", "ok", "ok"]
    assert out[3]["line"] == 4 and "no_such_set" in out[3]["error"]
    assert code == 1 and "line 4: " in err


def test_an_empty_input_is_scored() -> None:
    code, out, err = score("-", text="")
    assert (code, out) == (0, []) and "0 scored" in err


def test_many_faults_are_told_up_to_a_limit() -> None:
    code, out, err = score("-", text="[]\n" * 50)
    assert code == 1 and len(out) == 50
    assert err.count("line ") == 20 and "further faults are in the output alone" in err


@pytest.mark.parametrize("step", ["read_line", "write_line"])
@pytest.mark.parametrize("error", [ValueError("two\nlines"), RecursionError(), MemoryError(), KeyError("gold")])
def test_whatever_a_line_makes_the_command_raise_is_that_lines_fault(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, step: str, error: Exception
) -> None:
    real = getattr(lines, step)

    def fail(given: Any, other: Any) -> Any:
        if b"three" in (given if step == "read_line" else repr(given).encode()):
            raise error
        return real(given, other)

    monkeypatch.setattr(f"common.commands.score.{step}", fail)
    rows = [{"response": f"this is {name}"} for name in ("one", "two", "three", "four")]
    (tmp_path / "rows.jsonl").write_text(lines_of(rows))
    code = cli.run(["score", str(tmp_path / "rows.jsonl"), "--workers", "1", "rewards.function=operator:countOf"])
    out, err = capfdbinary.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 1 and [row.get("line") for row in found] == [None, None, 3, None]
    cause = " ".join(f"{type(error).__name__}: {error}".split())
    assert found[2]["error"].startswith("line: must be one that can be checked, got ") and f"({cause})" in found[2]["error"]
    assert b"line 3: must be one that can be checked" in err and b"Traceback" not in err


def test_a_closed_stdout_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(lines_of(rows_of(1)))
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, str(tmp_path / "rows.jsonl")]
    done = subprocess.run(shell, capture_output=True, timeout=END_S, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines() == [
        "rolloutpipe: stdout: must be open: the verdicts are written there, got None; redirect it to a file"
    ]


def test_a_line_beyond_the_limit_is_left_out_and_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Around the limit to the byte, with the line's end within and beyond it."""
    monkeypatch.setattr("common.commands.score.MAX_LINE_BYTES", 8)
    for length in range(5, 20):
        content, found = b"x" * length + b"\n" + b"next\n", []
        _read(io.BytesIO(content), threading.Semaphore(9), found.append)
        assert [(number, raw[:8].strip()) for number, raw in found[:-1]] == [(1, b"x" * min(length, 8)), (2, b"next")]
        assert found[-1] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["no_such_file.jsonl"],
            "FILE: must be a readable file of JSON lines, got 'no_such_file.jsonl'; check the path (No such",
        ),
        (["."], "FILE: must be a readable file of JSON lines, got '.'; check the path (Is a directory)"),
        (["-", "weights.format=1"], "weights: "),
        (["-", "rewards.weigths.format=1"], "rewards.weigths: "),
        (["-", "--timeout", "0"], "rewards.timeout_s: must be greater than 0"),
        (["-", "rewards=3"], "rewards: "),
        (["-", "--workers", "0"], "Invalid value for '--workers'"),
        (["-", "rewards.function=no_such_module:f"], "rewards.function: module no_such_module must be importable"),
        (["-", "rewards.weights.length=1"], "rewards: weights.length and length are set together"),
        (["-", "rewards.remote.url=http://127.0.0.1:9/", "rewards.remote.retries=0"], "rewards.remote.url: must be a verifier"),
        ([], "Missing argument 'FILE'"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(capfd: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    code = cli.run(["score", *words])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(f"rolloutpipe: {message}") and err.count("\n") == 1, err
