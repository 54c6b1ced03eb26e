"""What the figures were taken on: without it they mean nothing."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from devtools.kafka_jars import kafka_version
from lab.benchmarks.sizes import SEED

_PACKAGES: Final = (
    "reprise",
    "msgspec",
    "pyzmq",
    "rocksdict",
    "uvicorn",
    "uvloop",
    "httptools",
    "aiokafka",
)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when; `load` is the system's one-minute average before the run began."""

    date: str
    system: str
    processor: str
    processors: int
    memory_gib: float
    load: float
    python: str
    packages: dict[str, str]
    seed: int


def describe_machine() -> Machine:
    """This machine, now."""
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        processors=os.cpu_count() or 0,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        load=round(os.getloadavg()[0], 2),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        packages={name: version(name) for name in _PACKAGES} | {"kafka": kafka_version()},
        seed=SEED,
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
