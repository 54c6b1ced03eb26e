"""What runs have found, in a file: one that was ended is gone on with by the next.

Each finding is a line of JSON, which is written when it is found:

    {"key": ..., "of": what it is of, for people, "found": ...}

The key is a digest of all that the finding depends on. So what is of another state of the tree is
not found, and stays in the file for whoever goes back to that state; the file can be deleted at any
time.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self, TextIO

_SOURCES: Final = (".py", ".rs", ".toml", ".json", ".jsonl")
_NO_SOURCES: Final = ("target", "__pycache__", "survivors.toml")


class Findings:
    """See the module.

    Args:
        path: of the file, which need not be there; None: nothing is kept.

    Attributes:
        unreadable: how many lines of the file could not be read, as the last one of a run that was
            killed while it wrote.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.unreadable = 0
        self._found: dict[str, Any] = {}
        self._file: TextIO | None = None
        if path is not None:
            text = path.read_text(errors="replace") if path.exists() else ""
            for line in text.splitlines():
                self._read(line)
            self._file = path.open("a")
            if text and not text.endswith("\n"):
                self._file.write("\n")

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            self._found[entry["key"]] = entry["found"]
        except (ValueError, LookupError, TypeError):
            self.unreadable += 1

    def find(self, key: str) -> Any:
        """What was found of it; None where nothing was."""
        return self._found.get(key)

    def note(self, key: str, found: object, *, of: str) -> None:
        """Keeps it. It is in the file when this returns."""
        self._found[key] = found
        if self._file is not None:
            self._file.write(json.dumps({"key": key, "of": of, "found": found}) + "\n")
            self._file.flush()

    def __enter__(self) -> Self:
        """Closes the file at its end."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


def key_of(*parts: str) -> str:
    """The key of what depends on these."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode(errors="surrogateescape")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()[:32]


def state_of(root: Path, folders: Iterable[str]) -> str:
    """A digest of all source files in folders, by name and content; not of what was built, nor of
    what is said of survivors.
    """
    digest = []
    for folder in sorted(folders):
        for here, inner, names in os.walk(root / folder):
            inner[:] = sorted(name for name in inner if name not in _NO_SOURCES)
            for file in sorted(Path(here, name) for name in names if name not in _NO_SOURCES):
                if file.suffix in _SOURCES:
                    digest += [str(file.relative_to(root)), file.read_text(errors="replace")]
    return key_of(*digest)
