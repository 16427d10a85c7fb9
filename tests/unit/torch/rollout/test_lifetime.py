"""A process that watches its owner ends with it, however the owner ended."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[4]
CHILD = """
import time
from rolloutpipe_torch.rollout.lifetime import exit_with_owner
exit_with_owner()
print("up", flush=True)
time.sleep(60)
"""
OWNER = f"""
import subprocess, sys, time
from rolloutpipe_torch.rollout.lifetime import own_children
own_children()
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_child_ends_when_its_owner_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        child = psutil.Process(int(owner.stdout.readline()))
        assert child.is_running()
        owner.kill()
        _, alive = psutil.wait_procs([child], timeout=10)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_process_whose_owner_is_gone_already_ends_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    start = time.monotonic()
    code = f"import os\nos.environ['ROLLOUTPIPE_ENGINE_OWNER'] = '{gone.pid}'{CHILD}"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30, check=False).returncode == 1
    assert time.monotonic() - start < 30


def test_without_an_owner_nothing_happens() -> None:
    code = "from rolloutpipe_torch.rollout.lifetime import exit_with_owner; exit_with_owner(); print('ok')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "ok\n"
