"""A remote verifier that gives no verdicts is refused before any engine starts: `train --dry-run` and `eval`."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from common import cli
from tests.integration.tiny_models import sums_model

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
Serve = Callable[[int, bytes], str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums_model(tmp_path_factory.mktemp("models") / "start", steps=1)


class Server(ThreadingHTTPServer):
    """The same reply to each POST; HEAD is not known."""

    daemon_threads = True
    status, content = 200, b""
    bodies: list[bytes]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content)

    def do_HEAD(self) -> None:
        self.send_response(405)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.bodies = []
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def run(server: Server, model: Path, command: str, *words: str) -> int:
    url = f"http://127.0.0.1:{server.server_address[1]}/score"
    settings = ["model.recipe=null", f"model.path={model}", f"rewards.remote={{url: '{url}', retries: 0, timeout_s: 5}}"]
    return cli.run([command, str(QUICKSTART), *settings, *words])


BROKEN = [
    (401, b"no", "answered 401"),
    (403, b"no", "answered 403"),
    (404, b"no", "answered 404"),
    (405, b"no", "answered 405"),
    (500, b"oh", "answered 500"),
    (200, b'{"reward": NaN}', "reply.reward: must be a finite number, got nan"),
    (200, b"<html>", "the reply is no JSON"),
]


@pytest.mark.parametrize(("status", "content", "cause"), BROKEN)
def test_a_dry_run_asks_for_a_verdict(
    server: Server, model: Path, status: int, content: bytes, cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.status, server.content = status, content
    assert run(server, model, "train", "--dry-run") == 2
    error = capsys.readouterr().err
    assert error.startswith("rolloutpipe: rewards.remote.url: must be a verifier that answers") and error.count("\n") == 1
    assert cause in error and len(server.bodies) == 1
    assert b'"dataset": "chain_sum"' in server.bodies[0]


def test_a_dry_run_takes_one_that_gives_verdicts(server: Server, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.content = b'{"reward": 0}'
    assert run(server, model, "train", "--dry-run") == 0, capsys.readouterr().err


def test_an_evaluation_asks_before_it_starts_anything(
    server: Server, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.status = 404
    assert run(server, model, "eval", "--out", str(tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert error.startswith("rolloutpipe: rewards.remote.url: ") and "answered 404" in error
    assert len(server.bodies) == 1 and not (tmp_path / "out").exists()
