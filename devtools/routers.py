"""Routers of the field, where they are installed, to compare with."""

import os
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

VARIABLE: Final = "REPRISE_ROUTERS"
INSTALLED: Final = Path(__file__).parents[1] / ".make" / "routers"
"""What `make peers` makes."""

VLLM_ROUTER: Final = "vllm-router"
SMG: Final = "smg"
PACKAGES: Final = (VLLM_ROUTER, SMG)


class InstalledRouters(NamedTuple):
    """Where they are.

    Attributes:
        folder: their environment.
    """

    folder: Path

    @property
    def python(self) -> Path:
        """Has them, and SMG's messages."""
        return self.folder / "bin" / "python"

    def program(self, package: str) -> Path:
        """The command of one."""
        return self.folder / "bin" / package

    def has(self, package: str) -> bool:
        """Whether it is installed."""
        return self.program(package).exists()

    def version(self, package: str) -> str:
        """Of the installed release."""
        text = f"import importlib.metadata as m; print(m.version({package!r}))"
        said = subprocess.run(
            [self.python, "-c", text], capture_output=True, text=True, timeout=30, check=True
        )
        return said.stdout.strip()

    def missing(self, package: str) -> str:
        """Why it cannot be measured here, and how to have it; or ""."""
        if self.has(package):
            return ""
        return f"no {package} in {self.folder}: `make peers` installs it, or set {VARIABLE}"

    @property
    def all_missing(self) -> str:
        """Why there is none to compare with, or ""."""
        found = [self.missing(one) for one in PACKAGES]
        return "; ".join(found) if all(found) else ""


def routers() -> InstalledRouters:
    """Those of this checkout, or where the variable says."""
    return InstalledRouters(Path(os.environ.get(VARIABLE, "") or INSTALLED))
