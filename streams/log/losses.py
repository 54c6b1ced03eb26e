"""That a log has lost records, noted beside it until it is known what that means.

    DATA/loss.json    {"what": "...", "at": 1790000000.0, "registrations": false}

It is of version 1, which it does not say; a newer one says `version`, and is refused.

A log that is found with a torn end, or that was repaired, opens without a trace of that the next
time. Until every publisher has shown that nothing of it is missing
(`streams.table.suspect_publishers`), a restart must know.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from schemas.codec import check_file_version
from schemas.limits import SETTINGS_FILE_BYTES_MAX
from schemas.positions import Seconds
from storage.files import read_file
from storage.rocksdb import disk_errors

LOSS_VERSION: Final = 1


class LogLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of records that a log has lost.

    Attributes:
        at: when it was found, Unix seconds.
        registrations: whether publishers may be among it that nothing else names.
    """

    what: str
    at: Seconds
    registrations: bool = False


_decode: Final = msgspec.json.Decoder(LogLoss).decode


class LossNote:
    """The note in one data directory."""

    def __init__(self, data: Path) -> None:
        self.path = data / "loss.json"

    def read(self) -> LogLoss | None:
        """What was lost, or None; a note that cannot be read stands for a loss, too.

        Raises:
            NewerVersionError: a newer Reprise wrote it.
        """
        try:
            content = read_file(self.path, SETTINGS_FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        except OSError as error:
            return LogLoss(what=f"records, by a note that cannot be read: {error}", at=0.0)
        check_file_version(content, "a note of lost records", LOSS_VERSION, self.path)
        try:
            return _decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return LogLoss(what=f"records, by a note that is none: {self.path}", at=0.0)

    def add(self, loss: LogLoss) -> None:
        """Notes a loss, in place of an earlier one, whose doubt about registrations stays.

        Raises:
            DiskError: it is not noted.
        """
        before = self.read()
        registrations = loss.registrations or (before is not None and before.registrations)
        self._write(msgspec.structs.replace(loss, registrations=registrations))

    def end_doubt(self) -> None:
        """All registrations are known again.

        Raises:
            DiskError: the doubt stays.
        """
        loss = self.read()
        if loss is not None:
            self._write(msgspec.structs.replace(loss, registrations=False))

    def _write(self, loss: LogLoss) -> None:
        """Survives a power cut on return."""
        written = self.path.with_name(self.path.name + ".new")
        with disk_errors("note lost records", self.path):
            with written.open("wb") as file:
                file.write(msgspec.json.encode(loss) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            written.replace(self.path)

    def clear(self) -> None:
        """It is known what was lost.

        Raises:
            DiskError: the note stands.
        """
        with disk_errors("remove the note of lost records", self.path):
            self.path.unlink(missing_ok=True)
