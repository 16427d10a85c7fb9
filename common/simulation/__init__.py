"""The shipped policies and queue against modelled engines, verifier and trainer: a round of hours in seconds.

    agenda.py     what happens next: a discrete-event clock
    models.py     the parts in numbers: engines, lengths, verifier, trainer; a scenario joins them
    lengths.py    response lengths: log-normal, or as a run recorded them
    engine.py     one replica: continuous batching, prefill, memory
    trainer.py    the consuming side: waits, accumulates, steps
    rollout.py    the producing side: policy, placement, replicas, verifier
    run.py        rounds from start to publish, and the timeline they leave
    scenario_file.py   scenarios from YAML, and in words
    schedules.py  one scenario under several schedules, side by side
    out_directory.py   where those leave their files

    event_check.py  a recorded timeline, checked
    recording.py  what a recorded run tells: lengths, prompts, how long each part took
    fit.py        its parts in numbers
    contention.py how much slower rollout and training are beside each other
    calibrate.py  a recorded comparison: fitted on two of its schedules, the others predicted
    split.py      a budget of devices, divided between rollout and training
    paper*.py     the paper's settings: its figures, our fit to four of them, tables and marks
    off_policy.py asynchronous training, for comparison
    bound.py      the least time of a round, whatever the schedule: docs/grid.md

Policies, queue, placement, timeline and figures are those of a real run, not copies.
"""
