"""What any engine and any trainer must do; run on the fakes and on every real implementation."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

from common.errors import PublishError
from common.protocols import Engine, Trainer
from common.records import FinishReason, Group, Request, Sampling
from common.spool import TensorLayout, check_spool, read_manifest


def _request(name: str, prompt_ids: tuple[int, ...], seed: int) -> Request:
    return Request(request_id=name, group_id="contract", order=0, prompt_ids=prompt_ids, seed=seed)


async def check_engine(
    engine: Engine, spools: Sequence[Path], prompt_ids: tuple[int, ...], sampling: Sampling, first_version: int = 0
) -> None:
    """`spools` hold the weight versions `first_version` and the next, with different weights; nothing was published before."""
    assert engine.capacity >= 1
    await engine.publish(first_version, spools[0])
    await _check_stamps(engine, prompt_ids, sampling, first_version)
    await _check_seeds(engine, prompt_ids, sampling)
    await _check_abort(engine, prompt_ids, sampling)
    before = await _logprobs(engine, prompt_ids, sampling)
    try:
        await engine.publish(first_version, spools[0])
    except PublishError:
        pass
    else:
        raise AssertionError("a version that is not newer was published")
    assert await _logprobs(engine, prompt_ids, sampling) == before, "a refused publish changed the weights"
    await engine.publish(first_version + 1, spools[1])
    await _check_stamps(engine, prompt_ids, sampling, first_version + 1)
    assert await _logprobs(engine, prompt_ids, sampling) != before, "the same prompt must see the new weights (prefix cache)"
    assert all(health.is_alive and health.weight_version == first_version + 1 for health in await engine.health())


async def _logprobs(engine: Engine, prompt_ids: tuple[int, ...], sampling: Sampling) -> tuple[float, ...]:
    request = _request("again", prompt_ids, 11)
    engine.place(request)
    return (await engine.generate(request, sampling)).logprobs


async def _check_stamps(engine: Engine, prompt_ids: tuple[int, ...], sampling: Sampling, version: int) -> None:
    request = _request("stamp", prompt_ids, 5)
    engine.place(request)
    response = await engine.generate(request, sampling)
    assert response.request_id == "stamp"
    assert (response.version_start, response.version_end) == (version, version)
    assert 0 < len(response.token_ids) <= sampling.max_tokens
    assert len(response.token_ids) == len(response.logprobs)
    assert all(math.isfinite(value) and value <= 0 for value in response.logprobs)
    assert (response.finish_reason is FinishReason.LENGTH) == (len(response.token_ids) == sampling.max_tokens) or (
        response.finish_reason is FinishReason.STOP
    )


async def _check_seeds(engine: Engine, prompt_ids: tuple[int, ...], sampling: Sampling) -> None:
    async def run(name: str, seed: int) -> tuple[int, ...]:
        request = _request(name, prompt_ids, seed)
        engine.place(request)
        return (await engine.generate(request, sampling)).token_ids

    alone = [await run(f"alone {seed}", seed) for seed in range(4)]
    together = await asyncio.gather(*(run(f"together {seed}", seed) for seed in range(min(4, engine.capacity))))
    assert list(together) == alone[: len(together)], "a seed must fix the tokens, alone and in a batch"
    assert len(set(alone)) > 1, "different seeds must give different tokens"


async def _check_abort(engine: Engine, prompt_ids: tuple[int, ...], sampling: Sampling) -> None:
    await engine.abort(["never seen"])
    request = _request("to abort", prompt_ids, 3)
    engine.place(request)
    task = asyncio.create_task(engine.generate(request, sampling))
    await asyncio.sleep(0)
    await engine.abort([request.request_id])
    response = await task
    assert response.finish_reason in FinishReason
    assert len(response.token_ids) == len(response.logprobs)


async def check_trainer(trainer: Trainer, groups: Sequence[Group], layout: dict[str, TensorLayout], directory: Path) -> None:
    """`groups` are at least two trainable groups; `layout` is what engines expect; `directory` is empty."""
    await trainer.begin_round()
    await trainer.abort_update()  # without an open one: nothing
    start = await _checksums(trainer, directory / "start", layout)
    await trainer.begin_update()
    await trainer.accumulate(groups[:1])
    await trainer.abort_update()
    assert await _checksums(trainer, directory / "aborted", layout) == start, "an aborted update changed the weights"
    result = await _update(trainer, groups)
    assert result == 1, "the first finished update is optimizer step 1"
    one = await _checksums(trainer, directory / "one", layout)
    assert one != start
    await trainer.saved()  # without an open save: nothing
    await trainer.save(directory / "saved")
    await _update(trainer, groups[:1])  # what is saved is captured, wherever the writing stands
    two = await _checksums(trainer, directory / "two", layout)
    await trainer.saved()
    await trainer.saved()
    await trainer.restore(directory / "saved")
    assert await _checksums(trainer, directory / "restored", layout) == one, "restore must bring the saved weights back"
    assert await _update(trainer, groups[:1]) == 2
    assert await _checksums(trainer, directory / "again", layout) == two, "training must go on from restore as it did from save"
    sample = groups[0].samples[0]
    (logprobs,) = await trainer.logprobs([(sample.request.prompt_ids, sample.response.token_ids)], 1.0)
    assert len(logprobs) == len(sample.response.token_ids) and all(value <= 0 for value in logprobs)


async def _update(trainer: Trainer, groups: Sequence[Group]) -> int:
    await trainer.begin_update()
    for group in groups:
        await trainer.accumulate([group])
    result = await trainer.finish_update()
    assert result.num_groups == len(groups)
    assert result.num_tokens > 0 and math.isfinite(result.loss) and math.isfinite(result.grad_norm)
    assert {"logprob_gap_max", "logprob_gap_mean", "lr", "denominator"} <= set(result.metrics)
    return result.optimizer_step


async def _checksums(trainer: Trainer, spool: Path, layout: dict[str, TensorLayout]) -> dict[str, object]:
    await trainer.export_weights(spool, 0)
    check_spool(spool, 0, layout)
    return {name: entry["crc32"] for name, entry in read_manifest(spool).items()}
