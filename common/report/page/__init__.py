"""Templates, style and scripts of the report pages; `common.report.html` inlines them into one file.

report.html.j2, compare.html.j2 (over base.html.j2), report.css
theme.js    colours by role, taken from the style; redraws when the system turns dark or light
curves.js   reward, waiting ratio, log-prob gap, lengths
gantt.js    engines, verifier, trainer and publish of a round
samples.js  the sample browser
"""
