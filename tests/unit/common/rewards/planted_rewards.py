"""Reward functions that misbehave on demand; the workers of the pool tests import this module by name."""

import contextlib
import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import time


def obey(task: dict, response: str) -> object:
    """Do what the response says."""
    if response.startswith("say "):
        return 1.0, response[4:]
    return COMMANDS[response](task)


def spin(task: dict) -> float:
    while True:
        pass


def huge_power(task: dict) -> float:
    return float(len(str(9**9**9)))  # C code that looks at no signal


def report_and_hang(task: dict) -> float:
    with open(task["file"], "w") as file:  # noqa: PTH123 (as plain as a user would write it)
        file.write(str(os.getpid()))
    return huge_power(task)


def nap(task: dict) -> float:
    time.sleep(task["nap_s"])
    return 1.0


def segfault(task: dict) -> float:
    ctypes.string_at(0)
    return 1.0


def fail(task: dict) -> float:
    raise ValueError("two\nlines")


def print_much(task: dict) -> float:
    print("a line from the reward function")
    print("a complaint", file=sys.stderr, flush=True)
    return 1.0


COMMANDS = {
    "right": lambda task: 1.0,
    "half": lambda task: (0.5, "half a point"),
    "true": lambda task: True,
    "negative": lambda task: -2.5,
    "nan": lambda task: math.nan,
    "inf": lambda task: math.inf,
    "text": lambda task: "1.0",
    "none": lambda task: None,
    "pid": lambda task: (1.0, str(os.getpid())),
    "spin": spin,
    "power": huge_power,
    "report": report_and_hang,
    "nap": nap,
    "exit": lambda task: os._exit(3),
    "kill": lambda task: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": segfault,
    "sys.exit": lambda task: sys.exit("bye"),
    "timeout error": lambda task: (_ for _ in ()).throw(TimeoutError("mine")),
    "raise": fail,
    "memory": lambda task: float(len(bytearray(2**40))),
    "swallow": lambda task: float(len(["x" * 2**20 for _ in range(10**6)])),
    "print": print_much,
    "interrupt": lambda task: (signal.raise_signal(signal.SIGINT), 1.0)[1],
}

not_callable = 3


def one_argument(task: dict) -> float:
    return 1.0


async def coroutine(task: dict, response: str) -> float:
    return 1.0


def write_garbage(task: dict) -> float:
    """Over everything that could be the worker's channel."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"\x00\x00\x00\x05garbage that is no frame")
    return 1.0


def forge(task: dict) -> float:
    """A well-formed answer to another call: the one after this."""
    from dataclasses import asdict

    from common.protocols import Score
    from common.records import Verdict
    from common.rewards.worker import FRAME

    score = asdict(Score(reward=99.0, status=Verdict.OK, reason="forged"))
    body = json.dumps({"score": score, "usage": [0.0, 0.0]}).encode()
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, FRAME.pack(len(body), task["forged"]) + body)
    return 1.0


def close_all(task: dict) -> float:
    os.closerange(3, 64)
    time.sleep(3600)
    return 1.0


def fork_and_both_return(task: dict) -> float:
    os.fork()
    return 1.0


def leave_a_child(task: dict) -> float:
    child = subprocess.Popen(["sleep", "3600"])
    with open(task["file"], "w") as file:  # noqa: PTH123
        file.write(str(child.pid))
    return huge_power(task)


def use_cpu(task: dict) -> tuple[float, str]:
    end = time.process_time() + task["cpu_s"]
    while time.process_time() < end:
        pass
    return 1.0, str(os.getpid())


def hang_at_first(task: dict) -> float:
    """In the first `hangs` of its tries, each of which leaves the worker's process id in the file."""
    with open(task["file"], "a+") as file:  # noqa: PTH123
        file.write(f"{os.getpid()}\n")
        file.seek(0)
        tries = len(file.readlines())
    if tries <= task["hangs"]:
        time.sleep(3600)
    return 1.0


COMMANDS |= {
    "hang at first": hang_at_first,
    "nap pid": lambda task: (nap(task), str(os.getpid())),
    "garbage": write_garbage,
    "forge": forge,
    "close": close_all,
    "fork": fork_and_both_return,
    "child": leave_a_child,
    "cpu": use_cpu,
    "exit 0": lambda task: os._exit(0),
    "echo": lambda task: (1.0, task["text"]),
    "length": lambda task: float(len(task["text"])),
}
