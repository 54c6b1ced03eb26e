"""How Python is set for a service: what is told by a process of its own, since it is for good."""

import subprocess
import sys

from reprise.interpreter import GC_AFTER_OBJECTS, SWITCH_INTERVAL_S

TUNED = """
import gc, sys, time
from reprise import interpreter
interpreter.GC_FREEZE_S = 0.05
modules = [[number] for number in range(50_000)]
interpreter.tune_interpreter()
frozen = gc.get_freeze_count()
started = [[number] for number in range(20_000)]
deadline = time.monotonic() + 10
while gc.get_freeze_count() < frozen + 20_000 and time.monotonic() < deadline:
    time.sleep(0.02)
later = [[number] for number in range(1000)]
print(sys.getswitchinterval(), gc.get_threshold()[0], frozen, gc.get_freeze_count() - frozen)
"""


def test_what_is_there_after_the_start_is_not_collected_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TUNED], capture_output=True, text=True, timeout=60, check=True
    )
    interval, threshold, first, second = done.stdout.split()
    assert (float(interval), int(threshold)) == (SWITCH_INTERVAL_S, GC_AFTER_OBJECTS)
    assert int(first) > 50_000
    assert 20_000 <= int(second) < 21_000
