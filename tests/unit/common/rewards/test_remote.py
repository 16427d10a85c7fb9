"""A remote verifier against a real server on the loopback device that does whatever the test plans."""

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from common.config_rewards import RemoteConfig
from common.errors import ConfigError, RunError
from common.protocols import Score
from common.records import Verdict
from common.rewards.remote import RemoteVerifier, _waits

TASK = {"workload": "jsonl", "gold": "4", "num_tokens": 3, "finish_reason": "stop"}


class Server(ThreadingHTTPServer):
    """`replies`: what to do with the calls, in order; the last goes on."""

    daemon_threads = True
    replies: list[Callable[[BaseHTTPRequestHandler], None]]
    bodies: list[dict[str, Any]]
    headers: list[dict[str, str]]
    most_at_once = 0
    now = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with LOCK:
            server.bodies.append(body)
            server.headers.append(dict(self.headers))
            server.now += 1
            server.most_at_once = max(server.most_at_once, server.now)
            reply = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
        try:
            reply(self)
        finally:
            with LOCK:
                server.now -= 1

    def do_HEAD(self) -> None:
        self.send_response(405)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


LOCK = threading.Lock()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.bodies, server.headers = [], []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


def raw(content: bytes, status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    return reply


def says(value: Any) -> Callable[[BaseHTTPRequestHandler], None]:
    return raw(json.dumps(value).encode())


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.close()


def slow(seconds: float) -> Callable[[BaseHTTPRequestHandler], None]:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(seconds)
        says({"reward": 1.0})(handler)

    return reply


def endless(handler: BaseHTTPRequestHandler) -> None:
    """A reply of no stated length that never ends."""
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" " * 65536)
    except OSError:
        handler.close_connection = True


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then: no single read takes long."""
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    try:
        for _ in range(200):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)
    except OSError:
        handler.close_connection = True


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/score"


def ask(server: Server, *replies: Any, num_calls: int = 1, response: str = "four", **settings: Any) -> list[Score]:
    """Verdicts of calls made at one time."""
    server.replies = list(replies)

    async def run() -> list[Score]:
        verifier = RemoteVerifier(RemoteConfig(**{"url": address(server), "timeout_s": 5, "retries": 2, **settings}))
        try:
            calls = (verifier.score(TASK, response) for _ in range(num_calls))
            return await asyncio.wait_for(asyncio.gather(*calls), 30)
        finally:
            await verifier.close()

    return asyncio.run(run())


def test_the_service_gets_task_and_response_and_its_verdict_is_kept(server: Server) -> None:
    reply = {"reward": 0.5, "status": "wrong", "extracted": "4.1", "reason": "two\nlines", "parts": {"style": 1}, "more": [1]}
    [score] = ask(server, says(reply), response="four \ud800 ٤")
    assert server.bodies == [{"task": TASK, "response": "four \ud800 ٤"}]
    assert (score.reward, score.status, score.extracted, score.reason) == (0.5, Verdict.WRONG, "4.1", "two lines")
    assert score.parts == (("style", 1.0),)


@pytest.mark.parametrize(
    ("reply", "reward", "status"),
    [
        ({"reward": 1}, 1.0, Verdict.OK),
        ({"reward": 0.99}, 0.99, Verdict.WRONG),
        ({"reward": 0, "status": "no_answer"}, 0.0, Verdict.NO_ANSWER),
        ({"reward": 0, "status": "timeout"}, 0.0, Verdict.TIMEOUT),
        ({"reward": 0.5, "status": "ok"}, 0.5, Verdict.OK),
        ({"status": "error", "reason": "no interpreter"}, None, Verdict.ERROR),
        ({"reward": 1, "reason": None, "parts": None}, 1.0, Verdict.OK),
    ],
)
def test_statuses(server: Server, reply: dict[str, Any], reward: float | None, status: Verdict) -> None:
    [score] = ask(server, says(reply))
    assert (score.reward, score.status) == (reward, status)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html>", "the reply is no JSON"),
        (b"\xff\xfe{", "the reply is no JSON"),
        (b"[" * 100_000, "the reply is no JSON"),
        (b"[1]", "the reply must be a JSON object, got list"),
        (b"{}", "reply.reward: must be a finite number, got None"),
        (b'{"reward": NaN}', "reply.reward: must be a finite number, got nan"),
        (b'{"reward": 1e999}', "reply.reward: must be a finite number, got inf"),
        (b'{"reward": "1.0"}', "reply.reward: must be a finite number, got '1.0'"),
        (b'{"reward": true}', "reply.reward: must be a finite number, got True"),
        (b'{"reward": 1, "status": "fine"}', "reply.status: must be one of ok, wrong, no_answer, timeout, error, got 'fine'"),
        (b'{"reward": 1, "status": []}', "reply.status: must be one of ok, wrong, no_answer, timeout, error, got []"),
        (b'{"reward": 1, "status": "timeout"}', "reply.reward: must be 0 with status timeout, got 1"),
        (b'{"reward": 1, "status": "error"}', "reply.reward: must be null with status error, got 1"),
        (b'{"reward": 1, "extracted": 4}', "reply.extracted: must be text, got 4"),
        (b'{"reward": 1, "reason": []}', "reply.reason: must be text, got []"),
        (b'{"reward": 1, "parts": [1]}', "reply.parts: must map names to finite numbers, got [1]"),
        (b'{"reward": 0, "reward": 1}', "the reply is no JSON (the key reward stands twice)"),
        (b'{"reward": 0, "parts": {"a": 1, "a": 2}}', "the reply is no JSON (the key a stands twice)"),
        (b'{"reward": 1, "parts": {"a": NaN}}', "reply.parts: must map names to finite numbers, got {'a': nan}"),
    ],
)
def test_a_broken_contract_is_an_error_that_names_the_field(server: Server, content: bytes, reason: str) -> None:
    [score] = ask(server, raw(content))
    assert (score.reward, score.status) == (None, Verdict.ERROR)
    assert score.reason.startswith(reason) and "\n" not in score.reason
    assert len(server.bodies) == 1, "asking again would not help"


def test_long_texts_are_cut_like_those_of_the_checkers(server: Server) -> None:
    [score] = ask(server, says({"reward": 1, "extracted": "x" * 500, "reason": "y" * 500}))
    assert (score.extracted, score.reason) == ("x" * 200, "y" * 300)


@pytest.mark.parametrize("fault", [raw(b"busy", 500), raw(b"", 503), raw(b"", 429), hang_up])
def test_passing_faults_are_tried_again(server: Server, fault: Any) -> None:
    [score] = ask(server, fault, fault, says({"reward": 1.0}))
    assert score.status is Verdict.OK
    assert len(server.bodies) == 3


def test_the_tries_end_and_the_last_cause_is_told(server: Server) -> None:
    [score] = ask(server, raw(b"out of\nmemory", 500), retries=1)
    assert (score.reward, score.status) == (None, Verdict.ERROR)
    assert score.reason == "the service answered 500 out of memory"
    assert len(server.bodies) == 2


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_not_tried_again(server: Server, status: int) -> None:
    [score] = ask(server, raw(b"no", status))
    assert score.reason == f"the service answered {status} no"
    assert len(server.bodies) == 1


def test_redirects_are_not_followed(server: Server) -> None:
    [score] = ask(server, raw(b"", 307, Location=address(server)), says({"reward": 1.0}))
    assert score.reason.startswith("the service answered 307")
    assert len(server.bodies) == 1


@pytest.mark.parametrize("reply", [slow(3), drip], ids=["late", "drop by drop"])
def test_all_tries_together_end_in_time(server: Server, reply: Any) -> None:
    start_s = time.monotonic()
    [score] = ask(server, reply, timeout_s=0.3)
    assert time.monotonic() - start_s < 2.5
    assert (score.reward, score.status, score.reason) == (None, Verdict.ERROR, "no verdict within 0.3 s")


@pytest.mark.parametrize("reply", [endless, raw(b'{"reward": 1, "reason": "' + b"x" * 3000 + b'"}')])
def test_a_huge_reply_is_not_kept(server: Server, reply: Any) -> None:
    [score] = ask(server, reply, max_reply_kb=2)
    assert score.reason == "the reply is larger than rewards.remote.max_reply_kb (2)"


def test_a_reply_that_would_swell_is_not_unpacked(server: Server) -> None:
    [score] = ask(server, raw(gzip.compress(b'{"reward": 1}'), Content_Encoding="gzip"))
    assert score.status is Verdict.ERROR and "compressed" in score.reason


def test_so_many_calls_at_one_time_and_no_more(server: Server) -> None:
    scores = ask(server, slow(0.05), num_calls=20, max_in_flight=3)
    assert all(score.status is Verdict.OK for score in scores)
    assert server.most_at_once <= 3


def test_waiting_for_a_turn_is_not_counted(server: Server) -> None:
    scores = ask(server, slow(0.2), num_calls=6, max_in_flight=1, timeout_s=0.6)
    assert all(score.status is Verdict.OK for score in scores)


def test_waits_grow_and_differ_between_calls() -> None:
    first, second = list(_waits(8, b"one")), list(_waits(8, b"two"))
    assert first == sorted(first) and first[0] < first[1] and first == list(_waits(8, b"one"))
    assert first != second
    assert max(first + second) <= 16.0


def test_the_token_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_TOKEN", "abc123")
    ask(server, says({"reward": 1.0}), token_variable="PLANTED_TOKEN")
    assert server.headers[0]["Authorization"] == "Bearer abc123"


def test_proxies_of_the_environment_are_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert ask(server, says({"reward": 1.0}))[0].status is Verdict.OK


def test_a_task_that_is_no_json_is_an_error(server: Server) -> None:
    async def run() -> Score:
        verifier = RemoteVerifier(RemoteConfig(url=address(server)))
        return await verifier.score({"entry": {1, 2}}, "")

    assert "the task is no plain JSON" in asyncio.run(run()).reason


def test_it_is_closed_for_good(server: Server) -> None:
    async def run() -> None:
        verifier = RemoteVerifier(RemoteConfig(url=address(server)))
        await verifier.close()
        await verifier.close()
        await verifier.score(TASK, "")

    with pytest.raises(RunError, match="closed"):
        asyncio.run(run())


def start(url: str, examples: tuple[dict[str, Any], ...] = (), **settings: Any) -> None:
    async def run() -> None:
        verifier = RemoteVerifier(RemoteConfig(**{"url": url, "retries": 0, "timeout_s": 2, **settings}), examples=examples)
        try:
            await verifier.start(10)
        finally:
            await verifier.close()

    asyncio.run(run())


def test_the_start_asks_about_an_example(server: Server) -> None:
    server.replies = [says({"reward": 0.0})]
    start(address(server), ({"workload": "jsonl", "gold": "4"},))
    expected = {"workload": "jsonl", "gold": "4", "num_tokens": 0, "finish_reason": "stop"}
    assert server.bodies == [{"task": expected, "response": ""}]


def test_without_an_example_any_answer_will_do(server: Server) -> None:
    start(address(server))  # it says 405 to HEAD
    assert server.bodies == []


def test_a_service_that_breaks_the_contract_is_refused_at_the_start(server: Server) -> None:
    server.replies = [says({"score": 1})]
    with pytest.raises(ConfigError, match=r"^rewards\.remote\.url: .*reply\.reward: must be a finite number, got None\)$"):
        start(address(server), ({"workload": "jsonl"},))


def test_a_service_that_is_not_there_is_refused_at_the_start() -> None:
    port = _free_port()
    with pytest.raises(
        ConfigError, match=r"^rewards\.remote\.url: must be a verifier that answers, got .*ConnectError"
    ) as caught:
        start(f"http://127.0.0.1:{port}/")
    assert "\n" not in str(caught.value)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("value", [None, "", "two\nlines", "naïve"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("PLANTED_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("PLANTED_TOKEN", value)
    with pytest.raises(ConfigError, match=r"^rewards\.remote\.token_variable: .*got 'PLANTED_TOKEN'") as caught:
        start(address(server), token_variable="PLANTED_TOKEN")
    assert not value or value not in str(caught.value)
