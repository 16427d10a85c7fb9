"""Does the simulator stay fast in a large round? Prints a table; exit status 1 if a mark is missed.

    python benchmarks/simulator_scale.py

100,000 groups of 8 over 512 replicas of 64 slots, `fgd`, interleaved requests, with a verifier, prefill and limited memory.
Marks, for one core:

    a simulated round     under 60 s
    memory of its process at most 2 GB

The process simulates nothing else. Seconds are the processor's; memory is the largest the process ever had.
"""

import argparse
import resource
import sys
from time import process_time

from shared import ROOT, Marks, where

sys.path.insert(0, str(ROOT))

from common.simulation.lengths import LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel
from common.simulation.run import simulate

MAX_S, MAX_BYTES = 60.0, 2e9


def scenario_of(num_groups: int, replicas: int, schedule: str) -> Scenario:
    """Rollout and training take about equally long."""
    return Scenario(
        name="scale",
        schedule=schedule,
        groups_per_round=num_groups,
        groups_per_update=max(1, num_groups // 100),
        request_order="interleaved",
        prompt_tokens=200,
        engine=EngineModel(replicas=replicas, step_s=0.012, step_per_request_s=1e-4, prefill_s_per_token=2e-5, kv_tokens=100_000),
        lengths=LogNormalLengths(median=800, loop_share=0.005),
        verifier=VerifierModel(seconds=0.5, sigma=0.8),
        trainer=TrainerModel(token_s=4e-7, group_s=1e-3, update_s=2.0),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Scale of the simulator.")
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--replicas", type=int, default=512)
    parser.add_argument("--schedule", default="fgd")
    args = parser.parse_args()
    print(where())
    scenario = scenario_of(args.groups, args.replicas, args.schedule)
    start = process_time()
    (metrics,) = simulate(scenario).rounds
    seconds = process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    requests = scenario.groups_per_round * scenario.responses_per_group
    print(f"{requests:,} requests, {metrics.tokens:,} tokens, {scenario.engine.replicas} replicas, {scenario.schedule}")
    sides = f"rollout {metrics.rollout_s:,.0f} s, training {metrics.trainer_compute_s:,.0f} s"
    print(f"simulated: {metrics.r2t_end_s:,.0f} s from round start to train end ({sides})")
    marks = Marks()
    size = f"a round of {scenario.groups_per_round:,} groups"
    marks.check(size, f"{seconds:.1f} s, {seconds / requests * 1e6:.0f} us a request", f"under {MAX_S:.0f} s", seconds < MAX_S)
    marks.check("memory of the process", f"{peak / 1e9:.2f} GB", f"at most {MAX_BYTES / 1e9:.0f} GB", peak <= MAX_BYTES)
    marks.end()


if __name__ == "__main__":
    main()
