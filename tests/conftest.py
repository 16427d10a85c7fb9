"""Fixtures of all tests."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.grpo import group_advantages
from common.records import FinishReason, Group, Request, Response, Sample, Verdict
from tests.random_models import random_model

TINY_VOCAB = 45


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real data files: ROLLOUTPIPE_TEST_DATA, by default `../shared/data` beside the repository.

    Where it is absent the test is skipped, or fails when CI=true.
    """
    default = Path(__file__).parents[1] / ".." / "shared" / "data"
    folder = Path(os.environ.get("ROLLOUTPIPE_TEST_DATA") or default).resolve()
    if not folder.is_dir():
        reason = "real data files are absent; set ROLLOUTPIPE_TEST_DATA to their folder"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def ray_runtime() -> Iterator[None]:
    """Ray, started once for all tests that need it."""
    from rolloutpipe_torch.cluster import start_ray, stop_ray

    start_ray()
    yield
    stop_ray()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with tied embeddings, float32: 2 layers of width 32, 45 tokens."""
    return _save_tiny(tmp_path_factory.mktemp("tiny"), tied=True)


@pytest.fixture(scope="session")
def tiny_untied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a head of its own, stored in bfloat16."""
    return _save_tiny(tmp_path_factory.mktemp("untied"), tied=False, dtype="bfloat16")


@pytest.fixture(scope="session")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as `tiny_model`, but every size of it can be shared by 8 devices, whatever their mesh."""
    sizes = {"vocab_size": 48, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8}
    return _save_tiny(tmp_path_factory.mktemp("wide"), tied=True, sizes=sizes)


def _save_tiny(directory: Path, *, tied: bool, dtype: str = "float32", sizes: dict[str, int] | None = None) -> Path:
    model = random_model(
        "Qwen3",
        dtype=dtype,
        **{"vocab_size": TINY_VOCAB, "hidden_size": 32, **(sizes or {})},
        intermediate_size=96,
        head_dim=8,
        tie_word_embeddings=tied,
        initializer_range=0.3,  # a random model of the usual 0.02 gives nearly uniform log-probs, which hides mistakes
    )
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def make_group() -> Callable[..., Group]:
    """Builder of groups of random tokens; the seed fixes everything."""
    return _make_group


def _make_group(seed: int, *, members: int = 4, rewards: list[float | None] | None = None, longest: int = 12) -> Group:
    rng = random.Random(seed)
    rewards = [float(member % 2) for member in range(members)] if rewards is None else rewards
    prompt = tuple(rng.randrange(TINY_VOCAB) for _ in range(rng.randint(1, 5)))
    samples = []
    for member, (reward, advantage) in enumerate(zip(rewards, group_advantages(rewards), strict=True)):
        tokens = tuple(rng.randrange(TINY_VOCAB) for _ in range(rng.randint(1, longest)))
        name = f"r0/g{seed}/m{member}"
        response = Response(
            request_id=name,
            token_ids=tokens,
            logprobs=tuple(rng.uniform(-5, -3) for _ in tokens),
            finish_reason=FinishReason.STOP,
            version_start=0,
            version_end=0,
        )
        request = Request(request_id=name, group_id=f"r0/g{seed}", order=seed, member=member, prompt_ids=prompt)
        status = Verdict.ERROR if reward is None else Verdict.OK
        samples.append(Sample(request=request, response=response, reward=reward, status=status, advantage=advantage))
    return Group(group_id=f"r0/g{seed}", order=seed, weight_version=0, samples=tuple(samples))
