"""Reward functions that return what they should not; the workers import this module by name."""

import sys
from collections.abc import Iterator

import numpy as np


class Rude:
    """Its `repr` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


RESULTS = {
    "float": 0.5,
    "whole": 1,
    "pair": (0.25, "some\nreason"),
    "numpy": np.float32(0.5),
    "numpy pair": (np.int64(1), "equal"),
    "true": True,
    "numpy true": np.bool_(True),
    "true pair": (False, "no"),
    "none": None,
    "text": "1.0",
    "nan": float("nan"),
    "inf": float("-inf"),
    "numpy nan": np.float64("nan"),
    "huge": 10**400,
    "array": np.ones(1),
    "complex": 1j,
    "one": (1.0,),
    "three": (1.0, "a", "b"),
    "no words": (1.0, 2.0),
    "turned": ("why", 1.0),
    "list": [1.0, "why"],
    "rude": Rude(),
    "long": "x" * 10_000,
}


def obey(task: dict, response: str) -> object:
    if response == "raise":
        raise KeyError("two\nlines")
    if response == "exit":
        sys.exit(3)
    if response == "deep":
        return obey(task, response)
    while response == "forever":
        pass
    return RESULTS[response]


def facts(task: dict, response: str) -> tuple[float, str]:
    return 1.0, f"{task['num_tokens']} {task['finish_reason']}"


def generator(task: dict, response: str) -> Iterator[float]:
    yield 1.0


async def async_generator(task: dict, response: str):
    yield 1.0


class Async:
    async def __call__(self, task: dict, response: str) -> float:
        return 1.0


async_object = Async()
