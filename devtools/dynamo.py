"""NVIDIA Dynamo's standalone indexer, where it is installed, to compare with."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

VARIABLE: Final = "REPRISE_DYNAMO_PYTHON"
PACKAGE: Final = "ai-dynamo-runtime"
INSTALLED: Final = Path(__file__).parents[1] / ".make" / "dynamo" / "bin" / "python"
"""What `make peers` makes."""

_VERSION: Final = f"import importlib.metadata as m; print(m.version({PACKAGE!r}))"


def interpreter() -> str:
    """The interpreter that has the package, or "": the one that the variable names, this one, or
    that of `make peers`.
    """
    named = os.environ.get(VARIABLE, "")
    if named:
        return named
    if find_spec("dynamo") and find_spec("dynamo.indexer"):
        return sys.executable
    return str(INSTALLED) if INSTALLED.exists() else ""


def version() -> str:
    """The installed release; "none" where there is none."""
    python = interpreter()
    if not python:
        return "none"
    said = subprocess.run(
        [python, "-c", _VERSION], capture_output=True, text=True, timeout=30, check=True
    )
    return said.stdout.strip()


def command(*, port: int, threads: int) -> list[str]:
    """Starts the indexer. It has no option for its address: the port is open on all of them."""
    options = ["--port", str(port), "--threads", str(threads)]
    return [interpreter(), "-m", "dynamo.indexer", *options]
