"""Whatever a reward function returns or raises becomes a verdict in one line that names it. Through the real pool."""

import asyncio
import re

import pytest

from common.config_rewards import RewardConfig
from common.errors import ConfigError
from common.protocols import Score
from common.records import Verdict
from common.rewards.functions import load_function
from common.rewards.verifier import make_verifier
from tests.unit.common.rewards.planted_functions import RESULTS

NAME = "planted_functions:obey"
ACCEPTED = {"float": 0.5, "whole": 1.0, "pair": 0.25, "numpy": 0.5, "numpy pair": 1.0}
REFUSED = {
    "true": "returned True where a number is due; return 1.0 or 0.0",
    "numpy true": "returned np.True_ (bool) where a finite number is due",
    "true pair": "returned False where a number is due; return 1.0 or 0.0",
    "none": "returned None (NoneType) where a finite number is due",
    "text": "returned '1.0' (str) where a finite number is due",
    "nan": "returned nan (float) where a finite number is due",
    "inf": "returned -inf (float) where a finite number is due",
    "numpy nan": "returned np.float64(nan) (float64) where a finite number is due",
    "huge": "returned 1000",
    "array": "returned array([1.]) (ndarray) where a finite number is due",
    "complex": "returned 1j (complex) where a finite number is due",
    "one": "returned (1.0,) (tuple) where (number, reason in words) is due",
    "three": "returned (1.0, 'a', 'b') (tuple) where (number, reason in words) is due",
    "no words": "returned (1.0, 2.0) (tuple) where (number, reason in words) is due",
    "turned": "returned ('why', 1.0) (tuple) where (number, reason in words) is due",
    "list": "returned [1.0, 'why'] (list) where a finite number is due",
    "rude": "returned a value (Rude) where a finite number is due",
    "long": "returned 'xxx",
    "raise": "raised KeyError: 'two\\nlines'",
    "exit": "raised SystemExit: 3",
    "deep": "raised RecursionError",
}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Score]:
    """Of every planted result, one after the other on one worker, and of a call that never returns."""

    async def run() -> dict[str, Score]:
        verifier = make_verifier(RewardConfig(function=NAME, timeout_s=1.0))
        try:
            await verifier.start()
            names = [*RESULTS, "raise", "exit", "deep", "forever", "float"]
            return {name: await asyncio.wait_for(verifier.score({}, name), 30) for name in names}
        finally:
            await verifier.close()

    return asyncio.run(run())


def test_every_planted_result_has_an_expectation() -> None:
    assert {*ACCEPTED, *REFUSED} == {*RESULTS, "raise", "exit", "deep"}


@pytest.mark.parametrize("name", ACCEPTED)
def test_numbers_are_kept(verdicts: dict[str, Score], name: str) -> None:
    found = verdicts[name]
    assert (found.reward, type(found.reward)) == (ACCEPTED[name], float)
    assert found.status is (Verdict.OK if ACCEPTED[name] >= 1 else Verdict.WRONG)


def test_the_reason_is_one_line(verdicts: dict[str, Score]) -> None:
    assert verdicts["pair"].reason == "some reason"


@pytest.mark.parametrize("name", REFUSED)
def test_anything_else_is_an_error_that_names_function_and_result(verdicts: dict[str, Score], name: str) -> None:
    found = verdicts[name]
    assert (found.reward, found.status) == (None, Verdict.ERROR)
    assert found.reason.startswith(f"{NAME} {REFUSED[name]}")
    assert "\n" not in found.reason and len(found.reason) <= 300


def test_a_call_that_never_returns_is_a_timeout(verdicts: dict[str, Score]) -> None:
    found = verdicts["forever"]
    assert (found.reward, found.status) == (0.0, Verdict.TIMEOUT)
    assert "1 s" in found.reason


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("generator", "replace `yield` by `return`"),
        ("async_generator", "replace `async def` by `def`"),
        ("async_object", "replace `async def` by `def`"),
    ],
)
def test_what_returns_no_value_is_refused_when_loaded(name: str, remedy: str) -> None:
    path = f"planted_functions:{name}"
    with pytest.raises(ConfigError, match=re.escape(f"rewards.function: must be a plain function, got '{path}'; {remedy}")):
        load_function(path)
