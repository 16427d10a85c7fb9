"""Evaluation: what a model answers on problems that it is not trained on, and how sure one can be of the figures.

figures.py      accuracy, pass@k and their intervals, lengths, shares: pure arithmetic
problems.py     which problems are asked, and how many of them the training has seen
evaluator.py    asks engines and verifier: one evaluation of one weight version
training.py     evaluations of a run while it trains (`eval.every`)
checkpoint.py   any checkpoint as a Hugging Face directory
"""
