"""Frontier-group dispatch and the complete-group queue inside somebody else's rollout loop.

    python examples/policies_only.py

Nothing beyond the standard library is needed: `common.policies` and `common.queue` are ordinary objects that your own loop
drives with events. Here the "engine" is a heap of finish times and the "trainer" a print; put your own in their places.
"""

import heapq
import random
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # not needed where RolloutPipe is installed

from common.errors import RoundFinished
from common.policies import FrontierGroupDispatch
from common.queue import CompleteGroupQueue
from common.records import Reason, Request

NUM_GROUPS, GROUP_SIZE, GROUPS_PER_UPDATE, SLOTS, VERSION = 6, 4, 2, 8, 1


def main() -> None:
    rng = random.Random(0)
    policy = FrontierGroupDispatch(frontier_width=GROUPS_PER_UPDATE)
    queue = CompleteGroupQueue(groups_per_round=NUM_GROUPS, groups_per_update=GROUPS_PER_UPDATE, weight_version=VERSION)

    # 1. Tell the policy what there is to sample, in whatever order it comes.
    requests = [
        Request(request_id=f"{group}/{member}", group_id=group, order=group, member=member)
        for group in range(NUM_GROUPS)
        for member in range(GROUP_SIZE)
    ]
    rng.shuffle(requests)
    policy.submit(requests)

    now = 0.0
    running: list[tuple[float, str, Request]] = []  # your engine: here only the time at which each request will be done
    rewards: dict[int, list[float]] = {group: [] for group in range(NUM_GROUPS)}

    while True:
        # 2. Fill the free slots with what the policy says.
        for request in policy.admit(SLOTS - len(running)):
            heapq.heappush(running, (now + rng.uniform(1, 10), str(request.request_id), request))

        # 3. Report what the engine did: served, or lost and to be sampled again.
        if running:
            now, _, request = heapq.heappop(running)
            if rng.random() < 0.1:
                policy.requeue(request.request_id)
            else:
                policy.finish(request.request_id)
                group = request.order
                rewards[group].append(float(rng.random() < 0.5))
                # 4. A group goes to the queue when it is whole. Groups that teach nothing are dropped, not waited for.
                if len(rewards[group]) == GROUP_SIZE:
                    if len(set(rewards[group])) == 1:
                        queue.drop(group, Reason.FILTERED)
                    else:
                        queue.put(SimpleNamespace(group_id=group, weight_version=VERSION, rewards=rewards[group]))

        # 5. Train on whatever is complete, while the engine goes on. Step the optimizer where an update ends.
        try:
            while dispatch := queue.take_nowait():
                for ready in dispatch.groups:
                    print(f"{now:5.1f}  update {dispatch.update_index}: group {ready.group_id}, rewards {ready.rewards}")
                if dispatch.is_last_of_update:
                    print(f"{now:5.1f}  update {dispatch.update_index}: step")
        except RoundFinished:
            break  # every group was trained or dropped: publish the new weights now

    counts = queue.snapshot()
    print(f"{counts.num_taken} groups trained, {counts.num_dropped} dropped, {counts.update_index} updates")


if __name__ == "__main__":
    main()
