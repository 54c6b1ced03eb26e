"""What a run has started ends with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.leftovers import MARK, Leftovers, marked
from tests.processes import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="found in /proc")

STARTS = """
import subprocess, sys, time
from devtools.leftovers import Leftovers
sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
behind = f"import subprocess; subprocess.Popen({sleeping!r}, start_new_session=True)"
with Leftovers() as leftovers:
    subprocess.run([sys.executable, "-c", behind], check=True)
    subprocess.Popen(sleeping)
    print(leftovers.mark, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_they_end_with_a_run_that_is_ended(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        mark = run.stdout.readline().decode().strip()
        until(lambda: len(marked(mark)) == 2, what="the process, and the one left behind")
        run.send_signal(number)
    until(lambda: not marked(mark), what="none is left")


def test_they_end_with_a_run_that_ends_in_order_and_nothing_else_does() -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleeping) as before:
        with Leftovers() as leftovers:
            within = subprocess.Popen(sleeping)
            until(lambda: marked(leftovers.mark) == [within.pid], what="it has started")
        assert within.wait() == -signal.SIGKILL
        assert leftovers.mark not in os.environ
        assert before.poll() is None
        before.kill()
    assert leftovers.mark.startswith(MARK)
