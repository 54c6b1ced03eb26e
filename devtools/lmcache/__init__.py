"""LMCache, where it is installed, to serve its own worker code."""

import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "REPRISE_LMCACHE_PYTHON"
PACKAGE: Final = "lmcache"
INSTALLED: Final = Path(__file__).parents[2] / ".make" / "lmcache" / "bin" / "python"
"""What `make lmcache` makes."""

PROGRAM: Final = Path(__file__).with_name("worker_process.py")


def interpreter() -> str:
    """The interpreter that has the package, or "": the one that the variable names, or that of
    `make lmcache`.
    """
    return os.environ.get(VARIABLE, "") or (str(INSTALLED) if INSTALLED.exists() else "")
