"""SIGTERM ends a command as Ctrl-C does, also where SIGINT is ignored by inheritance."""

import signal
import subprocess
import sys

CHILD = """
import asyncio
from common import cli

def work(*_, **__):
    async def main():
        try:
            print("ready", flush=True)
            await asyncio.sleep(60)
        finally:
            print("cleaned up", flush=True)
    asyncio.run(main())

cli.app = work
cli.main()
"""


def test_sigterm_ends_a_command_that_was_started_in_the_background_of_a_script() -> None:
    ignore = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:  # what is ignored stays so in the child
        child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, ignore)
    try:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert (child.returncode, out) == (130, "cleaned up\n") and "interrupted" in err, err
