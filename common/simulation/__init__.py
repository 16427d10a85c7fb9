"""The shipped policies and queue against modelled engines, verifier and trainer: a round of hours in seconds.

    agenda.py     what happens next: a discrete-event clock
    models.py     the parts in numbers: engines, lengths, verifier, trainer; a scenario joins them
    lengths.py    response lengths: log-normal, or as a run recorded them
    engine.py     one replica: continuous batching, prefill, memory
    trainer.py    the consuming side: waits, accumulates, steps
    rollout.py    the producing side: policy, placement, replicas, verifier
    run.py        rounds from start to publish, and the timeline they leave
    bound.py      the least time of a round, whatever the schedule: docs/grid.md

Policies, queue, placement, timeline and figures are those of a real run, not copies.
"""
