"""LMCache, where it is installed, to serve its own code of workers, servers and coordinator."""

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

VARIABLE: Final = "REPRISE_LMCACHE_PYTHON"
PACKAGE: Final = "lmcache"
INSTALLED: Final = Path(__file__).parents[2] / ".make" / "lmcache" / "bin" / "python"
"""What `make lmcache` makes."""

PROGRAM: Final = Path(__file__).with_name("worker_process.py")
SERVER_PROGRAM: Final = Path(__file__).with_name("server_process.py")
COORDINATOR_PROGRAM: Final = Path(__file__).with_name("coordinator_process.py")


def interpreter() -> str:
    """The interpreter that has the package, or "": the one that the variable names, or that of
    `make lmcache`.
    """
    return os.environ.get(VARIABLE, "") or (str(INSTALLED) if INSTALLED.exists() else "")


@cache
def has_coordinator() -> bool:
    """Whether it is of a release whose servers tell what they have dropped: from 0.5.7 on."""
    program = "from importlib.metadata import version; print(version('lmcache'))"
    if not interpreter():
        return False
    said = subprocess.run([interpreter(), "-c", program], capture_output=True, text=True)
    found = [int(one) for one in re.findall(r"\d+", said.stdout)[:3]]
    return said.returncode == 0 and found >= [0, 5, 7]
