"""The libraries that the packages of `integrations/` plug into, where they are installed."""

import os
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]


class Package(NamedTuple):
    """One of `integrations/`.

    Attributes:
        folder: of the package.
        library: what it plugs into, by the name of its environment.
    """

    folder: Path
    library: str

    @property
    def variable(self) -> str:
        """What may name a Python that has the library."""
        return f"REPRISE_{self.library.upper()}_PYTHON"

    @property
    def interpreter(self) -> str:
        """The Python that has it, or "": the named one, or that of `make integrations`."""
        installed = ROOT / ".make" / self.library / "bin" / "python"
        return os.environ.get(self.variable, "") or (str(installed) if installed.exists() else "")


PACKAGES: Final = tuple(
    Package(ROOT / "integrations" / f"reprise-{library}", library) for library in ("litellm", "ray")
)
