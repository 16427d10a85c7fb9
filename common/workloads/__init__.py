"""Where problems come from, and in which order they are drawn.

files, hub, reasoning_gym    records of files and data sets; generated problems
lsat_ar, scibench, olympiad, gsm8k, math500, jsonl    a schema each: record -> row (`records`, `rows`, `numbers`)
source -> prompts -> select -> load    rows -> prompts -> which of them (`identity`) -> the workload
sampler, catalog    the order of a run; what is known of each workload
"""
