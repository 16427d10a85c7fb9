"""The verifier pool inside Ray actors, asynchronous and threaded: hangs end, the next call is answered, no process is left."""

import asyncio

import psutil
import pytest

from common.records import Verdict

pytestmark = pytest.mark.ray

HANG = r"\boxed{\int_0^\infty \frac{\sin x}{x^2+1} dx}"
TASK = {"workload": "math500", "gold": "7"}


def family() -> list[str]:
    return [f"{child.pid} {child.status()}" for child in psutil.Process().children(recursive=True)]


async def ask_pool() -> tuple[list[str], list[str]]:
    """Statuses of eight calls, and what is left of the pool's processes."""
    from common.config_rewards import RewardConfig
    from common.rewards.pool import VerifierPool

    pool = VerifierPool(RewardConfig(workers=2), examples=[TASK])
    await pool.start()
    responses = [HANG, "\\boxed{7}", "\\boxed{\\frac{14}{2}}", HANG, "\\boxed{8}", "none", "\\boxed{7.0}"]
    scores = await asyncio.gather(*(pool.score(TASK, response) for response in responses))
    after = await pool.score(TASK, "\\boxed{7}")
    await pool.close()
    return [str(score.status) for score in (*scores, after)], family()


class AsyncActor:
    async def ask(self) -> tuple[list[str], list[str]]:
        return await ask_pool()


class ThreadedActor:
    def ask(self) -> tuple[list[str], list[str]]:
        return asyncio.run(ask_pool())


@pytest.mark.parametrize(("kind", "options"), [(AsyncActor, {}), (ThreadedActor, {"max_concurrency": 4}), (ThreadedActor, {})])
def test_a_pool_in_an_actor(ray_runtime: None, kind: type, options: dict[str, int]) -> None:
    import ray

    actor = ray.remote(kind).options(num_cpus=0, **options).remote()
    try:
        statuses, left = ray.get(actor.ask.remote(), timeout=120)
    finally:
        ray.kill(actor)
    assert statuses == ["timeout", "ok", "ok", "timeout", "wrong", "no_answer", "ok", "ok"]
    assert left == []
    assert {Verdict(status) for status in statuses} == set(Verdict) - {Verdict.ERROR}
