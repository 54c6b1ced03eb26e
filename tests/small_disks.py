"""File systems that fill up, or can no longer be written: only root can make one."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


class FailingDisk(SmallDisk):
    """One that can go bad under whoever writes to it."""

    def fail(self) -> None:
        """It can only be read from now on, as after an error that its file system found."""
        subprocess.run(["mount", "-o", "remount,abort", str(self.path)], check=True)
        with suppress(OSError):
            (self.path / "noticed").touch()


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


@contextmanager
def mounted_ext4(path: Path, size_bytes: int) -> Iterator[FailingDisk]:
    """As `mounted`, of a file that stands beside it."""
    image = path.with_name(path.name + ".ext4")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    path.mkdir()
    making = [["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(path)]]
    for command in making:
        if shutil.which(command[0]) is None or subprocess.run(command, check=False).returncode:
            pytest.skip("mounting a file needs root, mkfs.ext4 and a loop device")
    try:
        yield FailingDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
