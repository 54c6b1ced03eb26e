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
STREAM_PROGRAM: Final = Path(__file__).with_name("stream_process.py")
COORDINATOR_PROGRAM: Final = Path(__file__).with_name("coordinator_process.py")


def interpreter() -> str:
    """The interpreter that has the package, or "": the one that the variable names, or that of
    `make lmcache`.
    """
    return os.environ.get(VARIABLE, "") or (str(INSTALLED) if INSTALLED.exists() else "")


@cache
def has_coordinator() -> bool:
    """Whether it is of a release whose servers tell what they have dropped: from 0.5.7 on."""
    said = _said("from importlib.metadata import version; print(version('lmcache'))")
    return [int(one) for one in re.findall(r"\d+", said)[:3]] >= [0, 5, 7]


@cache
def has_stream() -> bool:
    """Whether it is of such a release, and has what its servers stream with."""
    return has_coordinator() and bool(_said("import grpc; print(grpc.__version__)"))


def _said(program: str) -> str:
    """What the interpreter prints; "" where there is none, or it fails."""
    if not interpreter():
        return ""
    said = subprocess.run([interpreter(), "-c", program], capture_output=True, text=True)
    return said.stdout if said.returncode == 0 else ""
