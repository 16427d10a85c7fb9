"""What a run leaves for people, made from its run directory alone.

    groups.py       every sample of a run, as JSON lines: writer and reader
    rundir.py       reads a run directory; says in one line what is missing
    spans.py        who was busy when: the bars of a round
    trace.py        trace.json for Perfetto
    tensorboard.py  scalars and histograms
    html.py         report.html of a run;  compare.py  several schedules side by side
    page/           their templates, style and scripts

Nothing heavy is imported here: plotly, jinja2 and tensorboardX belong to the files that use them.
"""
