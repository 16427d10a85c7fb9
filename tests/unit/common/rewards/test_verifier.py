"""Which verifier the settings ask for, and weighted parts on top of it."""

import asyncio
from typing import Any

import pytest

from common.config_rewards import RewardConfig
from common.errors import ConfigError
from common.protocols import Score, Verifier
from common.records import Verdict
from common.rewards.pool import VerifierPool
from common.rewards.remote import RemoteVerifier
from common.rewards.verifier import SummedVerifier, make_verifier

LENGTH = {"length": {"limit": 10, "buffer": 4}, "weights": {"length": 0.5}}


class Planted:
    """An answer's verifier that says what it is told."""

    def __init__(self, score: Score) -> None:
        self.given, self.calls, self.is_closed = score, 0, False

    async def start(self, deadline_s: float = 60.0) -> None:
        pass

    async def score(self, task: dict[str, Any], response: str) -> Score:
        self.calls += 1
        return self.given

    async def close(self) -> None:
        self.is_closed = True


def summed(settings: dict[str, Any], answer: Score, response: str = "", task: dict[str, Any] | None = None) -> Score:
    async def run() -> Score:
        verifier = SummedVerifier(RewardConfig(**settings), Planted(answer))
        try:
            await verifier.start()
            return await asyncio.wait_for(verifier.score(task or {}, response), 30)
        finally:
            await verifier.close()

    return asyncio.run(run())


RIGHT = Score(reward=1.0, status=Verdict.OK, extracted="4", reason="equal")


def test_the_settings_choose_the_verifier() -> None:
    alone = make_verifier(RewardConfig())
    remote = make_verifier(RewardConfig(remote={"url": "http://127.0.0.1:1/score"}))
    together = make_verifier(RewardConfig(weights={"format": 0.1}))
    assert type(alone) is VerifierPool and type(remote) is RemoteVerifier and type(together) is SummedVerifier
    assert all(isinstance(verifier, Verifier) for verifier in (alone, remote, together))


def test_format_and_length_are_added() -> None:
    settings = {"length": LENGTH["length"], "weights": {"format": 0.25, "length": 0.5}}
    found = summed(settings, RIGHT, r"\boxed{4}", {"num_tokens": 8})
    assert (found.reward, found.status) == (1.0 + 0.25 - 0.25, Verdict.OK)
    assert found.parts == (("answer", 1.0), ("format", 1.0), ("length", -0.5))


def test_parts_without_a_weight_are_left_out() -> None:
    assert summed({"weights": {"answer": 2.0}}, RIGHT).parts == (("answer", 1.0),)
    assert summed({"weights": {"answer": 2.0}}, RIGHT).reward == 2.0


def test_a_missing_length_is_an_error_before_anything_is_asked() -> None:
    found = summed(LENGTH, RIGHT, "", {})
    assert (found.reward, found.status) == (None, Verdict.ERROR)
    assert found.reason.startswith("task.num_tokens: must be the response's number of tokens")


def test_a_pattern_replaces_the_default_format() -> None:
    settings = {"weights": {"format": 0.5}, "format_pattern": r"<a>.*</a>"}
    assert summed(settings, RIGHT, "<a>4\n</a>").reward == 1.5
    assert summed(settings, RIGHT, r"\boxed{4}").reward == 1.0


def test_a_pattern_that_runs_forever_is_killed_and_a_timeout() -> None:
    settings = {"weights": {"format": 0.5}, "format_pattern": r"(a+)+b", "timeout_s": 0.5}
    found = summed(settings, RIGHT, "a" * 60)
    assert (found.reward, found.status) == (0.0, Verdict.TIMEOUT)
    assert found.reason == "format_pattern: no verdict within 0.5 s"


@pytest.mark.parametrize("given", [Score(reward=0.0, status=Verdict.TIMEOUT), Score(reward=None, status=Verdict.ERROR)])
def test_a_verdict_without_an_answers_reward_stays(given: Score) -> None:
    assert summed({"weights": {"format": 0.5}}, given, r"\boxed{4}") == given


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": {"length": 0.5}}, "weights.length and length are set together"),
        ({"length": {"limit": 4, "buffer": 2}}, "weights.length and length are set together"),
        ({"weights": {"length": 1.0}, "length": {"limit": 4, "buffer": 5}}, r"rewards\.length\.buffer: must be at most"),
        ({"remote": {"url": "ftp://here"}}, r"rewards\.remote\.url: must be an http or https address"),
        ({"remote": {"url": "http://host:99999/"}}, r"rewards\.remote\.url: must be an http or https address"),
        ({"remote": {"url": "http://[::1/"}}, r"rewards\.remote\.url: must be an http or https address"),
        ({"remote": {"url": "http://me:secret@host/"}}, r"must hold no name or password, got 'http://\.\.\./'"),
        ({"remote": {"url": "http://h/"}, "function": "a:b"}, "function and remote exclude each other"),
        ({"format_pattern": "("}, r"rewards\.format_pattern: must be a regular expression"),
    ],
)
def test_settings_that_contradict_each_other_are_one_line(settings: dict[str, Any], message: str) -> None:
    from common.config_errors import validate

    with pytest.raises(ConfigError, match=message) as caught:
        validate(RewardConfig, settings)
    assert "\n" not in str(caught.value)
