"""Whole groups out of any OpenAI-compatible server, frontier first.

    vllm serve MODEL
    python examples/gate_openai_server.py http://127.0.0.1:8000 MODEL

`GatedRollout` is all there is to it: it keeps a fixed number of requests at the server, lets the policy say which one is next,
and hands each group over the moment its last response is there. A request that fails is sampled again; one that keeps failing
takes its group out of the round. Nothing waits for ever: a try has a time limit, and an unexpected error ends the whole round.

Needs the `openai` package, which vLLM brings along. Update the server's weights between rounds only, when nothing runs.
"""

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # not needed where RolloutPipe is installed

from common.errors import RoundFinished
from common.policies import FrontierGroupDispatch
from common.queue import CompleteGroupQueue
from common.records import Dispatch, Reason, Request
from common.waiting_queue import WaitingQueue

VERSION = 0  # of the weights that the server holds: your count of updates

# (prompt, request) -> a response, or None where another try may help; it raises what must end the round.
Sample = Callable[[str, Request], Coroutine[Any, Any, Any]]


class GatedRollout:
    """`group_size` responses to each prompt, at most `slots` under way at once, into `queue` group by group."""

    def __init__(
        self, prompts: list[str], sample: Sample, queue: WaitingQueue, *, group_size: int, slots: int, max_tries: int = 3
    ):
        self.prompts, self.sample, self.queue = prompts, sample, queue
        self.group_size, self.slots, self.max_tries = group_size, slots, max_tries
        self.policy = FrontierGroupDispatch()
        self.running: dict[asyncio.Task[Any], Request] = {}
        self.responses: list[dict[int, Any]] = [{} for _ in prompts]  # of each group, by member
        self.failures: Counter[Any] = Counter()  # by request

    async def run(self) -> None:
        """Until every group is put or dropped."""
        groups, members = range(len(self.prompts)), range(self.group_size)
        self.policy.submit(
            Request(request_id=f"r{VERSION}/g{group}/m{member}", group_id=group, order=group, member=member)
            for member in members  # in any order: here the first of each group, then the second ...
            for group in groups
        )
        try:
            while True:
                for request in self.policy.admit(self.slots - len(self.running)):
                    task = asyncio.create_task(self.sample(self.prompts[request.order], request))
                    self.running[task] = request
                if not self.running:
                    return
                done, _ = await asyncio.wait(self.running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if ended := self.running.pop(task, None):  # else its group was dropped in this very loop
                        self.end(ended, task.result())
        finally:
            for task in self.running:
                task.cancel()

    def end(self, request: Request, response: Any) -> None:
        """Keep a response; where there is none, sample again or drop the group."""
        if response is not None:
            self.policy.finish(request.request_id)
            self.keep(request, response)
            return
        self.failures[request.request_id] += 1
        if self.failures[request.request_id] < self.max_tries:
            self.policy.requeue(request.request_id)
        else:
            self.drop(request.order)

    def keep(self, request: Request, response: Any) -> None:
        """The last one of a group makes it whole."""
        group = request.order
        responses = self.responses[group]
        responses[request.member] = response
        if len(responses) == self.group_size:
            whole = [responses[member] for member in range(self.group_size)]
            self.queue.put(SimpleNamespace(group_id=group, order=group, weight_version=VERSION, responses=whole))

    def drop(self, group: int) -> None:
        """With all of it that waits or runs."""
        self.policy.cancel_group(group)
        for task in [task for task, other in self.running.items() if other.order == group]:
            del self.running[task]
            task.cancel()  # closes the connection, at which vLLM aborts the request
        self.queue.drop(group, Reason.FAILED, order=group)


def openai_sampler(client: Any, model: str, *, max_tokens: int, limit_s: float, pause_s: float) -> Sample:
    """Completions of an `openai.AsyncOpenAI`; `limit_s` bounds a try, `pause_s` passes before the next one."""
    import openai

    async def sample(prompt: str, request: Request) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                # The header tells a server that runs `vllm_frontier_scheduler.py` which group this is; others ignore it.
                headers = {"X-Request-Id": str(request.request_id)}
                return await client.completions.create(
                    model=model, prompt=prompt, max_tokens=max_tokens, temperature=1.0, extra_headers=headers
                )
        except (openai.APIError, TimeoutError) as error:
            print(f"{request.request_id}: {error!r}", file=sys.stderr)
            await asyncio.sleep(pause_s)
            return None

    return sample


async def train(queue: WaitingQueue, on_dispatch: Callable[[Dispatch], None]) -> None:
    """Take whole groups as they come, until the round is over."""
    try:
        while True:
            on_dispatch(await queue.take())
    except RoundFinished:
        return


def show(dispatch: Dispatch) -> None:
    """Your trainer: accumulate gradients of each group, step where an update ends."""
    for group in dispatch.groups:
        tokens = sum(response.usage.completion_tokens for response in group.responses)
        print(
            f"update {dispatch.update_index}: group {group.group_id}, {len(group.responses)} responses, {tokens} tokens",
            flush=True,
        )
    if dispatch.is_last_of_update:
        print(f"update {dispatch.update_index}: step", flush=True)


async def main(arguments: argparse.Namespace) -> int:
    """One round; returns the exit status."""
    import openai

    rng = random.Random(0)
    prompts = [f"{rng.randrange(100)}+{rng.randrange(100)}=" for _ in range(arguments.groups)]
    core = CompleteGroupQueue(
        groups_per_round=arguments.groups, groups_per_update=arguments.groups_per_update, weight_version=VERSION
    )
    queue = WaitingQueue(core)
    # No retries of its own: they would hold a slot without the policy's knowledge.
    async with openai.AsyncOpenAI(
        base_url=f"{arguments.url}/v1", api_key=arguments.api_key, max_retries=0, timeout=None
    ) as client:
        sample = openai_sampler(
            client, arguments.model, max_tokens=arguments.max_tokens, limit_s=arguments.limit_s, pause_s=arguments.pause_s
        )
        rollout = GatedRollout(prompts, sample, queue, group_size=arguments.group_size, slots=arguments.slots)
        async with asyncio.TaskGroup() as both:  # an error of either ends the other
            both.create_task(rollout.run())
            both.create_task(train(queue, show))
    counts = queue.snapshot()
    print(f"{counts.num_taken} groups trained, {counts.num_dropped} dropped, {counts.update_index} updates")
    return 0 if counts.num_taken else 1


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Sample whole groups from an OpenAI-compatible server, frontier first.")
    parser.add_argument("url", help="of the server, for example http://127.0.0.1:8000")
    parser.add_argument("model", help="as the server calls it")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--groups-per-update", type=int, default=2)
    parser.add_argument("--slots", type=int, default=16, help="requests at the server at once: its --max-num-seqs or more")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--limit-s", type=float, default=600.0, help="time limit of one try")
    parser.add_argument("--pause-s", type=float, default=1.0, help="between a failed try and the next")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse())))
