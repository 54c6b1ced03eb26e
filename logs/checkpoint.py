"""Checkpoints: what a fold of a log has, as of an offset; and where its log is folded on.

A checkpoint in a file is XXH3-64 of the rest (u64 LE), then the state. It is written beside the
last one and put into its place, so that a crash leaves one or the other.
"""

import logging
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import xxhash

from logs.embedded import EmbeddedLog
from logs.interface import LogEntry
from logs.kept_log import KeptLog
from schemas.errors import (
    DamagedError,
    NewerVersionError,
    RecordError,
    RecordFormatError,
    StorageError,
)
from schemas.identities import Offset
from schemas.positions import LogBounds

_SUM: Final = struct.Struct("<Q")
logger = logging.getLogger(__name__)


class OffsetFold(Protocol):
    """A fold that knows how far it is.

    Attributes:
        offset: of the last record that was applied; -1 for none.
    """

    offset: int

    def pieces(self) -> Iterable[bytes]:
        """All that it has, as it is kept."""
        ...


FoldT = TypeVar("FoldT", bound=OffsetFold)
ValueT = TypeVar("ValueT")


class HeldFold(Protocol):
    """A fold beside its readers."""

    @property
    def offset(self) -> int:
        """See `OffsetFold`."""
        ...

    def read_all(self, question: Callable[[Any], ValueT], /) -> ValueT:
        """What a question makes of the fold, which does not change meanwhile."""
        ...


# In a file


def write_checkpoint(path: Path, pieces: Iterable[bytes]) -> None:
    """Keeps what a fold has dumped; durable when it returns.

    Args:
        pieces: of the state, see `OffsetFold.pieces`.

    Raises:
        StorageError: the disk fails; the last one is still there.
    """
    beside = path.with_name(path.name + ".new")
    total = xxhash.xxh3_64()
    try:
        with beside.open("wb") as file:
            file.write(_SUM.pack(0))
            for piece in pieces:
                total.update(piece)
                file.write(piece)
            file.seek(0)
            file.write(_SUM.pack(total.intdigest()))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise StorageError(f"Cannot write {path}: {error.strerror or error}") from error


def read_checkpoint(path: Path, load: Callable[[bytes], ValueT]) -> ValueT | None:
    """The fold of the last checkpoint; None where there is none.

    Args:
        load: makes a fold of what one has dumped.

    Raises:
        RecordFormatError: it is damaged.
        NewerVersionError: a newer Reprise wrote it.
        StorageError: it cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"Cannot read {path}: {error.strerror or error}") from error
    state = content[_SUM.size :]
    if len(content) < _SUM.size or _SUM.unpack_from(content)[0] != xxhash.xxh3_64_intdigest(state):
        raise RecordFormatError(detail=f"the checkpoint at {path} is damaged")
    try:
        return load(state)
    except NewerVersionError as error:
        error.where = str(path)
        raise


class Checkpoints(Generic[FoldT]):
    """Those of a log on this disk, in a file beside it; implements `embedded_writer.Keeper`.

    Args:
        log: that is folded, and declares a checkpoint.

    Attributes:
        skipped: records that could not be read when the log was folded at the start.
    """

    def __init__(self, log: KeptLog) -> None:
        declared = log.declared.checkpoint
        assert declared is not None, f"{log.declared.name} has no checkpoint"
        self.skipped = 0
        self._path = log.data / declared.path
        self._load: Callable[[bytes], FoldT] = declared.load
        self._log = log
        self._name = log.declared.name
        self._period_s = declared.period_s
        self._kept = -1
        self._next_at = 0.0
        self._held: HeldFold | None = None

    def recover(
        self,
        make: Callable[[], FoldT],
        apply: Callable[[FoldT, LogEntry], None],
    ) -> FoldT:
        """A fold of the last checkpoint, and of what the log has behind it. A log that is damaged
        there is set aside.

        Args:
            make: an empty fold.
            apply: folds one record; RecordError where it cannot be read.

        Raises:
            DataDirectoryInUseError: another process has the log open.
            NewerVersionError: a newer Reprise wrote the log or the checkpoint.
            StorageError: the log cannot be opened.
        """
        log, fold = self._log.opened(), make()
        try:
            fold = read_checkpoint(self._path, self._load) or fold
        except NewerVersionError:  # the next one would take its place
            log.close()
            raise
        except (RecordError, StorageError) as error:
            logger.warning("%s. %s is folded from its beginning", error, _begun(self._name))
        if fold.offset >= log.end_offset:
            logger.warning(
                "%s ends before what was folded of it: what is lost of it stays folded",
                _begun(self._name),
            )
            fold.offset = log.end_offset - 1
        self._kept = fold.offset
        problem = self._fold_behind(fold, log, apply)
        if problem:
            self._log.begin_anew(problem, "what is before that, is kept")
            fold.offset = self._kept = -1
        return fold

    def _fold_behind(
        self, fold: FoldT, log: EmbeddedLog, apply: Callable[[FoldT, LogEntry], None]
    ) -> str:
        """What the log has behind the fold; says what ended that too early, or ""."""
        try:
            for entry in log.read(Offset(fold.offset + 1)):
                try:
                    apply(fold, entry)
                except RecordError as error:
                    self.skipped += 1
                    logger.warning(
                        "Cannot read record %d of %s: %s. It is left out",
                        *(entry.offset, self._name, error),
                    )
        except DamagedError as error:
            return str(error)
        return ""

    def watch(self, held: HeldFold) -> None:
        """Keeps this fold from now on."""
        self._held = held

    @property
    def floor(self) -> Offset:
        """See `Keeper`: what is not in a checkpoint yet."""
        return Offset(self._kept + 1)

    def keep(self, *, is_last: bool) -> None:
        """See `Keeper`: writes a checkpoint, where there is something new."""
        held, log, now = self._held, self._log.log, self._log.clock.monotonic()
        if held is None or held.offset == self._kept or (now < self._next_at and not is_last):
            return
        self._next_at = now + self._period_s
        if log is not None:
            log.sync()  # a checkpoint never knows more than the log
        self._kept = held.read_all(self._write)

    def _write(self, fold: OffsetFold) -> int:
        """Writes a checkpoint; which offset it has."""
        write_checkpoint(self._path, fold.pieces())
        return fold.offset


# Of a topic


class FoldedLog(NamedTuple):
    """A log in a topic, as it is spoken of where a checkpoint does not fit it.

    Attributes:
        name: of people, as "the log of alarms".
        staying: what a fold keeps of another log, as "what was under way stays so".
        unknown: what is not known where records were dropped, as "what was raised there".
    """

    name: str
    staying: str
    unknown: str


def start_behind(fold: OffsetFold, bounds: LogBounds, log: FoldedLog) -> int:
    """Where the log is to be folded on. A log that ends before what the fold has is another one, or
    has lost its end: it is folded from its beginning, and what the fold knows stays.
    """
    start = fold.offset + 1
    if start > bounds.end:
        logger.warning(
            "%s ends at %d, before what was folded of it, %d: it is another one, or"
            " has lost its end. It is folded from its beginning; %s",
            *(_begun(log.name), bounds.end, fold.offset, log.staying),
        )
        fold.offset = bounds.start - 1
        return bounds.start
    if 0 < start < bounds.start:
        logger.warning(
            "%s has dropped records %d to %d before they were folded: %s is not known",
            *(_begun(log.name), start, bounds.start - 1, log.unknown),
        )
    return max(start, bounds.start)


def _begun(name: str) -> str:
    """A name as a sentence begins with it."""
    return name[:1].upper() + name[1:]
