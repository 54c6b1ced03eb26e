"""What a broker needs at every start and what can be made once: three quarters of its start.

Both are kept in the cache directory, under names that change with Java and with the jars, and both
appear all at once, so several processes may make them at the same time.

    formatted-KEY/    a formatted directory, to be copied in place of running Kafka's tool
    classes-KEY.jsa   the broker's classes as Java has them in memory (a class data archive)

Java ignores an archive that does not fit, and a broker starts without either.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from devtools.kafka_jars import cache_directory, java_version


class StartFiles(NamedTuple):
    """Where the files are, or will be.

    Attributes:
        formatted: a directory of files to copy into `log.dirs`.
        classes: the archive.
    """

    formatted: Path
    classes: Path

    @property
    def java_flags(self) -> list[str]:
        """For a broker that starts with what there is."""
        return [f"-XX:SharedArchiveFile={self.classes}"] if self.classes.exists() else []

    def copy_formatted(self, data: Path) -> bool:
        """Formats `data`; False where there is nothing to copy yet."""
        if not self.formatted.is_dir():
            return False
        shutil.copytree(self.formatted, data, dirs_exist_ok=True)
        return True

    def keep_formatted(self, data: Path) -> None:
        """Keeps what Kafka's tool has just made of `data`."""
        with _made_beside(self.formatted) as made, contextlib.suppress(OSError):
            shutil.copytree(data, made)
            os.rename(made, self.formatted)  # fails where another process was faster


def start_files(java: str, jars: Path) -> StartFiles:
    """The files for this Java and these jars."""
    names = sorted(f"{jar.name} {jar.stat().st_size}" for jar in jars.glob("*.jar"))
    text = "\0".join([java, java_version(java), str(jars), "\n".join(names)]).encode()
    key = hashlib.sha256(text).hexdigest()[:16]
    directory = cache_directory()
    return StartFiles(directory / f"formatted-{key}", directory / f"classes-{key}.jsa")


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Only one process at a time has this name, on this machine."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _made_beside(path: Path) -> Iterator[Path]:
    """A name in a directory on the same file system, which is removed afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as directory:
        yield Path(directory) / "made"
