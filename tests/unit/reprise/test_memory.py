"""When memory is given back."""

import subprocess
import sys

from reprise.memory import MEMORY_GROWTH_BYTES, MEMORY_TRIM_LOOKS, MEMORY_TRIMS, MemoryReturner

SPIKE = """
import sys
from reprise import memory
memory.MEMORY_LOOK_S = 0.05
import time
before = memory.resident_bytes()
memory.return_memory()
blocks = [bytes(1000) for _ in range(200_000)]
keep = [bytes(1000) for _ in range(10)]
top = memory.resident_bytes()
del blocks
deadline = time.monotonic() + 10
while memory.resident_bytes() > before + (top - before) / 2 and time.monotonic() < deadline:
    time.sleep(0.05)
print(before, top, memory.resident_bytes())
"""


def returner(sizes: list[int]) -> tuple[MemoryReturner, list[int]]:
    trims: list[int] = []
    return MemoryReturner(lambda: sizes[-1], lambda: trims.append(sizes[-1])), trims


def test_a_process_that_has_not_grown_is_left_alone() -> None:
    sizes = [1000]
    one, trims = returner(sizes)
    for size in (1000, 1000 + MEMORY_GROWTH_BYTES, 900, 900 + MEMORY_GROWTH_BYTES // 2):
        sizes.append(size)
        one.look()
    assert trims == []


def test_one_that_has_grown_is_trimmed_for_a_while_and_then_now_and_then() -> None:
    sizes = [1000]
    one, trims = returner(sizes)
    sizes.append(1001 + MEMORY_GROWTH_BYTES)
    for _ in range(MEMORY_TRIMS):
        one.look()
    assert len(trims) == MEMORY_TRIMS
    for _ in range(10 * MEMORY_TRIM_LOOKS):
        one.look()
    assert len(trims) == MEMORY_TRIMS + 10, "what is freed much later is given back, too"
    sizes.append(sizes[-1] + MEMORY_GROWTH_BYTES + 1)
    one.look()
    assert len(trims) == MEMORY_TRIMS + 11
    sizes.append(1000)
    for _ in range(3 * MEMORY_TRIMS):
        one.look()
    assert len(trims) == 2 * MEMORY_TRIMS + 10, "it is as small as it was"


def test_what_a_spike_left_is_given_back() -> None:
    found = subprocess.run(
        [sys.executable, "-c", SPIKE], capture_output=True, text=True, check=True, timeout=60
    )
    before, top, after = map(int, found.stdout.split())
    assert after < before + (top - before) / 2, (before, top, after)
