"""A verifier behind HTTP: `rewards.remote`.

    POST url   {"task": {...}, "response": "..."}   as a reward function gets them
    200        {"reward": 0.5}                      a finite number; with status `error` null or left out
      optional: "status"      ok, wrong, no_answer, timeout (with reward 0) or error; by default ok from 1.0 on, else wrong
                "extracted"   text: the answer that was found; 200 characters of it are kept
                "reason"      text: why, in one line; 300 characters of it are kept
                "parts"       {name: number}: what the reward is made of, for the records
      other fields are passed over; a key that stands twice is a fault

No connection, 429 and 5xx are tried again, after growing waits; `timeout_s` ends all tries of a response together. Any failure
is an ERROR without reward (rule 9) and never an exception: nobody can say whose doing it was. Redirects are not followed, and
proxies, .netrc and certificates named by environment variables are not used: task and token go where the settings say, only.
"""

import asyncio
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

from common.config_rewards import RemoteConfig
from common.errors import ConfigError, RunError, explain, is_finite
from common.protocols import Score
from common.records import Verdict

FIELD = "rewards.remote"
_CONNECT_S = 5.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 8.0
_LONGEST_EXTRACTED, _LONGEST_REASON = 200, 300  # characters
_FACTS = {"num_tokens": 0, "finish_reason": "stop"}  # of the empty response that the probe asks about


class _Fault(Exception):
    """No verdict; the message says why."""


class _Passing(_Fault):
    """The same, and the next try may succeed."""


class RemoteVerifier:
    """Asks the service, `max_in_flight` calls at a time. One event loop."""

    def __init__(self, config: RemoteConfig, *, examples: Iterable[dict[str, Any]] = ()) -> None:
        """`examples`: tasks of the run; `start` asks about the first, with an empty response."""
        self._config = config
        self._example = next(iter(examples), None)
        self._slots = asyncio.Semaphore(config.max_in_flight)
        self._client: httpx.AsyncClient | None = None
        self._is_closed = False

    async def start(self, deadline_s: float = 60.0) -> None:
        """Raises ConfigError where the token is missing, or the service does not answer or breaks the contract."""
        try:
            async with asyncio.timeout(deadline_s):
                if self._example is None:
                    await self._retried("HEAD", b"")
                else:
                    _read_reply(await self._retried("POST", _body({**self._example, **_FACTS}, "")))
        except (_Fault, TimeoutError) as error:
            remedy = f"start the service, or check address and token ({error or f'no answer within {deadline_s:g} s'})"
            raise ConfigError(explain(f"{FIELD}.url", "must be a verifier that answers", self._config.url, remedy)) from error

    async def score(self, task: dict[str, Any], response: str) -> Score:
        """The service's verdict, or ERROR. RunError once it is closed."""
        if self._is_closed:
            raise RunError("verifier: it is closed")
        async with self._slots:
            start = time.monotonic()
            try:
                fields = _read_reply(await self._retried("POST", _body(task, response)))
            except _Fault as error:
                fields = {"reward": None, "status": Verdict.ERROR, "reason": str(error)}
            except Exception as error:  # whatever else fails on this path is no response's doing either
                fields = {"reward": None, "status": Verdict.ERROR, "reason": _line(f"{type(error).__name__}: {error}")}
            return Score(**fields, duration_s=time.monotonic() - start)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        self._is_closed = True
        if self._client is not None:
            await self._client.aclose()

    async def _retried(self, method: str, body: bytes) -> bytes:
        """The reply's content; _Fault where no try brought one."""
        cause = ""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                for wait_s in (0.0, *_waits(self._config.retries, body)):
                    await asyncio.sleep(wait_s)
                    try:
                        return await self._send(method, body)
                    except _Passing as error:
                        cause = str(error)
        except TimeoutError:
            cause = f"no verdict within {self._config.timeout_s:g} s" + (f", before that: {cause}" if cause else "")
        raise _Fault(cause)

    async def _send(self, method: str, body: bytes) -> bytes:
        client = self._client = self._client or _client(self._config)
        try:
            async with client.stream(method, self._config.url, content=body) as reply:
                content = await self._content(reply)
        except httpx.TransportError as error:
            raise _Passing(_line(f"{type(error).__name__}: {error}")) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _Fault(_line(f"{type(error).__name__}: {error}")) from error
        if reply.is_success or (method == "HEAD" and reply.status_code not in (401, 403)):
            return content
        kind = _Passing if reply.status_code == 429 or reply.status_code >= 500 else _Fault
        raise kind(_line(f"the service answered {reply.status_code} {content[:100].decode(errors='replace')}"))

    async def _content(self, reply: httpx.Response) -> bytes:
        """As it came over the wire, so that the limit holds for what is kept."""
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise _Fault("the reply is compressed, although only identity was asked for")
        content = bytearray()
        async for piece in reply.aiter_raw():
            content += piece
            if len(content) > self._config.max_reply_kb * 1024:
                raise _Fault(f"the reply is larger than {FIELD}.max_reply_kb ({self._config.max_reply_kb})")
        return bytes(content)


def _client(config: RemoteConfig) -> httpx.AsyncClient:
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if config.token_variable is not None:
        headers["Authorization"] = f"Bearer {_token(config.token_variable)}"
    return httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(config.timeout_s, connect=min(_CONNECT_S, config.timeout_s)),
        limits=httpx.Limits(max_connections=config.max_in_flight, max_keepalive_connections=config.max_in_flight),
        trust_env=False,
        follow_redirects=False,
    )


def _token(variable: str) -> str:
    token = os.environ.get(variable, "").strip()
    if not (token and token.isascii() and token.isprintable()):
        rule = "must name an environment variable that holds a token in plain letters"
        raise ConfigError(explain(f"{FIELD}.token_variable", rule, variable, f"export {variable}=..."))
    return token


def _body(task: dict[str, Any], response: str) -> bytes:
    try:
        return json.dumps({"task": task, "response": response}, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _Fault(_line(f"the task is no plain JSON ({error})")) from error


def _waits(retries: int, body: bytes) -> Iterator[float]:
    """Doubling seconds, up to twice as long by chance that the content fixes: calls that failed together come back apart."""
    spread = 1 + zlib.crc32(body) / 2**32
    return (min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**index) * spread for index in range(retries))


def _read_reply(content: bytes) -> dict[str, Any]:
    """Fields of a Score; _Fault, naming the field, where the contract is broken."""
    try:
        reply = json.loads(content, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _Fault(_line(f"the reply is no JSON ({error}): {content[:100].decode(errors='replace')}")) from error
    if not isinstance(reply, dict):
        raise _Fault(f"the reply must be a JSON object, got {type(reply).__name__}")
    status, reward = _verdict(reply.get("status"), reply.get("reward"))
    return {
        "reward": reward,
        "status": status,
        "extracted": _text(reply, "extracted")[:_LONGEST_EXTRACTED],
        "reason": _line(_text(reply, "reason")),
        "parts": _parts(reply.get("parts")),
    }


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two rewards, one would be passed over in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)} stands twice")
    return found


def _verdict(status: Any, reward: Any) -> tuple[Verdict, float | None]:
    if status not in (None, *Verdict):
        raise _broken("status", f"must be one of {', '.join(Verdict)}", status)
    if status == Verdict.ERROR and reward is None:
        return Verdict.ERROR, None
    if not _is_number(reward):
        raise _broken("reward", "must be a finite number", reward)
    if status == Verdict.TIMEOUT and reward != 0:
        raise _broken("reward", "must be 0 with status timeout", reward)
    if status == Verdict.ERROR:
        raise _broken("reward", "must be null with status error", reward)
    default = Verdict.OK if reward >= 1.0 else Verdict.WRONG
    return Verdict(status or default), float(reward)


def _text(reply: dict[str, Any], field: str) -> str:
    text = reply.get(field)
    if not isinstance(text, str | None):
        raise _broken(field, "must be text", text)
    return text or ""


def _parts(given: Any) -> tuple[tuple[str, float], ...]:
    if given is None:
        return ()
    if not (isinstance(given, dict) and all(map(_is_number, given.values()))):
        raise _broken("parts", "must map names to finite numbers", given)
    return tuple((name, float(value)) for name, value in given.items())


def _is_number(value: object) -> bool:
    return is_finite(value) and not isinstance(value, bool)


def _broken(field: str, rule: str, value: object) -> _Fault:
    return _Fault(_line(f"reply.{field}: {rule}, got {value!r}"))


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_REASON]
