"""File systems that fill up, or can no longer be written: only root can make one."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A file system of its own.

    Attributes:
        path: where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, *, but_bytes: int = 0) -> None:
        """Leaves no room, or so much."""
        free = shutil.disk_usage(self.path).free
        with self._ballast.open("ab") as file:
            file.write(bytes(max(free - but_bytes, 0)))

    def empty(self) -> None:
        """There is room again."""
        self._ballast.unlink()

    def remount(self, option: str) -> None:
        """`ro` or `rw`; `ro` waits for nobody: it fails while a file is open for writing."""
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.path)], check=True)


@contextmanager
def mounted(path: Path, size: str) -> Iterator[SmallDisk]:
    """Skips the test where none can be made.

    Args:
        path: to be made, and mounted at.
        size: as `48m`.
    """
    path.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(mounting, check=False).returncode:
        pytest.skip("mounting a small file system needs root; run the suite as root to include it")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
