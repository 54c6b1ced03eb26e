"""Whether a database has all the files that it had: RocksDB does not see a MANIFEST's lost end.

A MANIFEST is a sequence of edits, each of which adds or removes data files. RocksDB opens one that
was cut off at its last whole edit, since a machine may die while an edit is written, and then
deletes data files that no edit names. That is right where the last edit was not finished: what its
data files have is in the write-ahead log yet. Where edits that were finished are gone, the files
that they named are lost without a word; then the write-ahead log begins behind a hole.
"""

import os
import shutil
import tempfile
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from schemas.errors import DamagedError
from storage.log_format import LogEnding, ending_of, first_sequence


def check_manifest(name: str, path: Path, options: Options) -> None:
    """Raises where data files are gone without a trace; cost: reading the MANIFEST, mostly.

    Args:
        name: of the database, as `the log`.
        path: of the database, which may be empty.
        options: to read it with.

    Raises:
        DamagedError: so it is.
    """
    names = {file.name for file in path.iterdir()}
    if "CURRENT" not in names:
        if any(name.endswith(".sst") or name.startswith("MANIFEST-") for name in names):
            raise _damaged(name, path, "CURRENT", "it is missing, and data files are there")
        return
    manifest = path / (path / "CURRENT").read_bytes().decode("ascii", "replace").strip()
    if manifest.name in names and ending_of(manifest) is not LogEnding.WHOLE:
        starts = [first_sequence(file) for file in path.glob("*.log")]
        first = min((start for start in starts if start is not None), default=None)
        last = _sequence_of_edits(path, options)
        if first is None or last is None or first > last + 1:
            detail = "it has lost its end, and with it names of data files"
            raise _damaged(name, path, manifest.name, detail)


def _damaged(name: str, path: Path, file: str, detail: str) -> DamagedError:
    return DamagedError(action=f"open {name}", path=str(path), detail=detail, file=file)


def _sequence_of_edits(path: Path, options: Options) -> int | None:
    """Up to where the data files that are named go; None where they cannot be opened."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.check-") as directory:
        for file in path.iterdir():
            if file.suffix == ".sst":
                os.link(file, Path(directory) / file.name)
            elif file.name == "CURRENT" or file.name.startswith("MANIFEST-"):
                shutil.copy(file, directory)
        try:
            rdict = Rdict(directory, options, access_type=AccessType.read_only(False))
        except Exception:  # noqa: BLE001 -- damaged further: opening it will tell
            return None
        try:
            return int(rdict.latest_sequence_number())
        finally:
            rdict.close()
