"""examples/gate_openai_server.py without vLLM: order, books and failures. With the real server: test_pool_engine.py."""

import asyncio
import json
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from common.policies import FifoAdmission
from common.queue import CompleteGroupQueue
from common.records import Request
from common.waiting_queue import WaitingQueue
from examples.gate_openai_server import VERSION, GatedRollout, train

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "gate_openai_server.py"


class Lab:
    """A round against a server that is a function; a response takes some turns of the event loop."""

    def __init__(
        self, *, groups: int, group_size: int, slots: int, seed: int = 0, failures: dict[str, int] | None = None
    ) -> None:
        core = CompleteGroupQueue(groups_per_round=groups, groups_per_update=min(2, groups), weight_version=VERSION)
        self.queue = WaitingQueue(core)
        self.rng = random.Random(seed)
        self.failures = failures or {}  # how often each request fails first
        self.broken: str | None = None
        self.endless: str | None = None
        self.started: list[Request] = []
        self.now = self.most = self.cancelled = 0
        self.taken: list[Any] = []
        prompts = [f"prompt {group}" for group in range(groups)]
        self.rollout = GatedRollout(prompts, self.sample, self.queue, group_size=group_size, slots=slots)

    async def sample(self, prompt: str, request: Request) -> str | None:
        name = str(request.request_id)
        self.started.append(request)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(self.rng.randrange(1, 30)):
                await asyncio.sleep(0)
            if name == self.endless:
                await asyncio.Event().wait()
            if name == self.broken:
                raise RuntimeError("planted")
            if self.failures.get(name, 0) > 0:
                self.failures[name] -= 1
                return None
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1
        return f"{prompt}, member {request.member}"

    async def run(self) -> None:
        async with asyncio.timeout(30), asyncio.TaskGroup() as both:
            both.create_task(self.rollout.run())
            both.create_task(train(self.queue, lambda dispatch: self.taken.extend(dispatch.groups)))


def test_every_group_arrives_whole_and_the_slots_are_full_and_never_overfull() -> None:
    lab = Lab(groups=7, group_size=3, slots=4)
    asyncio.run(lab.run())
    assert lab.most == 4
    assert sorted(group.group_id for group in lab.taken) == list(range(7))
    for group in lab.taken:
        assert group.responses == [f"prompt {group.group_id}, member {member}" for member in range(3)]


def test_requests_start_by_group_and_would_not_without_the_policy() -> None:
    by_group = [group for group in range(6) for _ in range(4)]
    lab = Lab(groups=6, group_size=4, slots=3)
    asyncio.run(lab.run())
    assert [request.order for request in lab.started] == by_group
    planted = Lab(groups=6, group_size=4, slots=3)
    planted.rollout.policy = FifoAdmission()  # type: ignore[assignment]
    asyncio.run(planted.run())
    assert [request.order for request in planted.started] != by_group


def test_a_request_that_fails_is_sampled_again_before_later_groups() -> None:
    lab = Lab(groups=5, group_size=2, slots=1, failures={"r0/g1/m0": 2})
    asyncio.run(lab.run())
    orders = [request.order for request in lab.started]
    assert orders == sorted(orders)
    assert Counter(orders) == {0: 2, 1: 4, 2: 2, 3: 2, 4: 2}
    assert len(lab.taken) == 5


def test_a_request_that_keeps_failing_takes_its_group_out_and_frees_its_slots() -> None:
    lab = Lab(groups=5, group_size=4, slots=4, failures={"r0/g1/m0": 3, "r0/g3/m2": 99, "r0/g3/m3": 99})
    asyncio.run(lab.run())
    assert sorted(group.group_id for group in lab.taken) == [0, 2, 4]
    counts = lab.queue.snapshot()
    assert (counts.num_taken, counts.num_dropped, counts.num_missing) == (3, 2, 0)
    assert lab.now == 0


def test_what_still_runs_of_a_dropped_group_is_cancelled() -> None:
    async def run() -> None:
        lab = Lab(groups=4, group_size=3, slots=3, failures={"r0/g1/m0": 3})
        lab.endless = "r0/g1/m2"
        await lab.run()
        await asyncio.sleep(0)
        assert (len(lab.taken), lab.cancelled, lab.now) == (3, 1, 0)

    asyncio.run(run())


def test_an_unexpected_error_ends_the_round_and_leaves_nothing_running() -> None:
    lab = Lab(groups=5, group_size=4, slots=4)
    lab.broken = "r0/g2/m1"

    async def run() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await lab.run()
        assert [str(error) for error in caught.value.exceptions] == ["planted"]
        await asyncio.sleep(0)
        assert lab.now == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert lab.cancelled


@pytest.mark.parametrize("seed", range(30))
def test_whatever_fails_each_group_is_put_or_dropped_once(seed: int) -> None:
    rng = random.Random(seed)
    groups, group_size = rng.randrange(1, 9), rng.randrange(1, 5)
    names = [f"r0/g{group}/m{member}" for group in range(groups) for member in range(group_size)]
    failures = {name: rng.choice([1, 2, 3, 99]) for name in names if rng.random() < 0.3}
    dropped = {name.split("/")[1] for name, count in failures.items() if count >= 3}
    lab = Lab(groups=groups, group_size=group_size, slots=rng.randrange(1, 12), seed=seed, failures=dict(failures))
    asyncio.run(lab.run())
    assert {f"g{group.group_id}" for group in lab.taken} == {f"g{group}" for group in range(groups)} - dropped
    assert len(lab.taken) == groups - len(dropped)
    assert lab.now == 0


class Server(BaseHTTPRequestHandler):
    """What the example needs of one. Group 1 always fails, a request of group 2 fails once, one of group 3 is never answered."""

    seen: Counter[str]
    closing: threading.Event

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.headers["X-Request-Id"]
        self.seen[name] += 1
        if name == "r0/g3/m0":
            self.closing.wait()
        if name == "r0/g1/m1" or (name == "r0/g2/m0" and self.seen[name] == 1):
            return self.answer(500, {"error": {"message": "planted"}})
        choice = {"text": "x", "index": 0, "finish_reason": "length", "logprobs": None}
        usage = {"prompt_tokens": 1, "completion_tokens": body["max_tokens"], "total_tokens": 1 + body["max_tokens"]}
        answer = {
            "id": name,
            "object": "text_completion",
            "created": 0,
            "model": body["model"],
            "choices": [choice],
            "usage": usage,
        }
        return self.answer(200, answer)

    def answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Not into the tests' output."""


@pytest.fixture
def server() -> Iterator[tuple[str, Counter[str]]]:
    """Its address, and how often each request came."""
    handler = type("Handler", (Server,), {"seen": Counter(), "closing": threading.Event()})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", handler.seen
    handler.closing.set()
    http.shutdown()
    thread.join()
    http.server_close()


def run_script(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), address, "tiny", "--group-size=2", "--max-tokens=5", "--pause-s=0", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_http_errors_and_silence_cost_their_group_alone(server: tuple[str, Counter[str]]) -> None:
    address, seen = server
    done = run_script(address, "--groups=6", "--slots=6", "--limit-s=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "4 groups trained, 2 dropped, 2 updates"
    tries = Counter(re.match(r"(r0/g\d/m\d): (\w+)", line).groups() for line in done.stderr.splitlines())  # type: ignore[union-attr]
    error, silence = "InternalServerError", "TimeoutError"
    assert tries == {("r0/g1/m1", error): 3, ("r0/g2/m0", error): 1, ("r0/g3/m0", silence): 3}
    assert (seen["r0/g1/m1"], seen["r0/g2/m0"], seen["r0/g3/m0"], seen["r0/g5/m1"]) == (3, 2, 3, 1)
    assert "group 2, 2 responses, 10 tokens" in done.stdout


def test_without_a_server_it_ends_with_status_1() -> None:
    done = run_script("http://127.0.0.1:9", "--groups=3")
    assert done.returncode == 1
    assert done.stdout == "0 groups trained, 3 dropped, 0 updates\n"
    assert 9 <= done.stderr.count("APIConnectionError") <= 18  # three tries of a request of each group, of others up to three
