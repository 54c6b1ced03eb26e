"""Writes a capture: entries into blocks, blocks into the file, and its index at the end."""

import errno
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from replay.capture.bounds import (
    CAPTURE_BLOCK_BYTES,
    CAPTURE_BLOCK_ENTRIES_MAX,
    CAPTURE_ENTRY_BYTES_MAX,
    CAPTURE_LANES_MAX,
)
from replay.capture.errors import CaptureError
from replay.capture.format import (
    COLUMNS_SIZE,
    Block,
    BlockFlag,
    CaptureEntry,
    Header,
    Summary,
    encode_block,
    encode_end,
    encode_header,
)
from schemas.clock import REAL_CLOCK
from schemas.errors import RepriseError
from schemas.limits import MIB
from storage.faults import disk_errors

CAPTURE_WAITING_BYTES_MAX: Final = 64 * MIB  # of all lanes' blocks that are not full yet: memory

COMPLETE: Final = "complete"
INTERRUPTED: Final = "interrupted"

_LEVEL: Final = 3  # of zstd; higher ones take several times as long for a few percent
_ENDED_CHARS: Final = 500


class _OpenBlock:
    """The block of one lane that is not full yet."""

    __slots__ = ("entries", "size_bytes")

    def __init__(self) -> None:
        self.entries: list[CaptureEntry] = []
        self.size_bytes = 0


class CaptureWriter:
    """One capture that is being written; one owner.

    Blocks are written whole or not at all: where the disk is full, the file ends with the last
    whole one. At the end of its body as a context manager the file is finished, after errors, too.

    Args:
        replace: whether a file that is there may be written over.
        block_bytes: of entries, before a block is written.
        clock: Unix seconds.

    Attributes:
        path: as given.
        ended: why it ends, once it does; COMPLETE unless its owner says otherwise.
        entries: how many were written, or wait in a block that is not full.
        size_bytes: of the file so far.
        left_out: what was read and is not in the capture, by reason; the owner counts.

    Raises:
        CaptureError: the file is there.
        DiskError: it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        header: Header,
        *,
        replace: bool = False,
        block_bytes: int = CAPTURE_BLOCK_BYTES,
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        self.path = path
        self.ended = COMPLETE
        self.entries = 0
        self._summary: Summary | None = None
        self.left_out: Counter[str] = Counter()
        self._block_bytes = block_bytes
        self._clock = clock
        self._blocks: list[Block] = []
        self._filling: dict[tuple[int, int], _OpenBlock] = {}
        self._waiting_bytes = 0
        self._last: dict[int, int] = {}
        self._end = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if replace else os.O_EXCL)
        try:
            with disk_errors("write a capture", path):
                self._file = os.open(path, flags, 0o644)
        except Exception as error:
            if isinstance(error.__cause__, FileExistsError):
                raise CaptureError(
                    f"Expected the name of a new file, but it is there: {path}."
                    " Give another one, or --force to write over it"
                ) from error
            raise
        try:
            self._write(encode_header(header))
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> "CaptureWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish(self.ended)
            return
        with suppress(RepriseError, OSError):  # what went wrong before is what counts
            self.finish(str(error) or kind.__name__ if kind else "")

    @property
    def summary(self) -> Summary:
        """Of the finished file."""
        assert self._summary is not None, "it is not finished"
        return self._summary

    @property
    def size_bytes(self) -> int:
        """See the class."""
        return self._end

    @property
    def waiting(self) -> bool:
        """Whether entries wait for their block to be full: a kill would cost them."""
        return bool(self._waiting_bytes)

    def add(self, entry: CaptureEntry, *, spared: bool = False) -> None:
        """Takes an entry; writes a block where it is full.

        Args:
            entry: its lane's next one: positions rise.
            spared: whether it stands before the range, see `BlockFlag.SPARED`.

        Raises:
            DiskError: a block could not be written; its entries are lost to the capture.
        """
        lane, size_bytes = entry.lane, len(entry.value) + COLUMNS_SIZE
        if not 0 <= lane < CAPTURE_LANES_MAX:
            raise CaptureError(f"Expected at most {CAPTURE_LANES_MAX} lanes, got number `{lane}`")
        if entry.position <= self._last.get(lane, -1):
            last = self._last[lane]
            raise ValueError(f"Expected a position above `{last}`, got `{entry.position}`")
        if size_bytes > CAPTURE_ENTRY_BYTES_MAX:
            self.left_out["too_large"] += 1
            return
        self._last[lane] = entry.position
        filling = self._filling.setdefault((lane, int(spared)), _OpenBlock())
        filling.entries.append(entry)
        filling.size_bytes += size_bytes
        self._waiting_bytes += size_bytes
        self.entries += 1
        is_full = filling.size_bytes >= self._block_bytes
        if is_full or len(filling.entries) >= CAPTURE_BLOCK_ENTRIES_MAX:
            self._write_block(lane, spared=bool(spared))
        elif self._waiting_bytes > CAPTURE_WAITING_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Writes what waits, in smaller blocks.

        Raises:
            DiskError: as `add`.
        """
        for lane, spared in sorted(self._filling, key=lambda key: (key[0], -key[1])):
            self._write_block(lane, spared=bool(spared))

    def finish(self, ended: str = COMPLETE) -> Summary:
        """Writes what waits, the index and the footer, and closes the file; durable on return.

        Raises:
            DiskError: the file ends with the last block that had room; all but what waited is
                readable. Closed.
        """
        try:
            try:
                self.flush()
            except BaseException as error:
                ended = str(error) or type(error).__name__
                raise
            finally:
                summary = Summary(
                    ended=ended[:_ENDED_CHARS],
                    finished_at=self._clock(),
                    entries=sum(block.entries for block in self._blocks),
                    left_out={reason: count for reason, count in self.left_out.items() if count},
                )
                self._write(encode_end(self._blocks, summary, offset=self._end))
                with disk_errors("sync a capture", self.path):
                    os.fsync(self._file)
        finally:
            os.close(self._file)
        self._summary = summary
        return summary

    def _write_block(self, lane: int, *, spared: bool) -> None:
        # What stands before the range comes first, as it does in the log.
        if not spared and (lane, 1) in self._filling:
            self._write_block(lane, spared=True)
        filling = self._filling.pop((lane, int(spared)))
        self._waiting_bytes -= filling.size_bytes
        block, encoded = encode_block(
            filling.entries,
            offset=self._end,
            flags=BlockFlag.SPARED if spared else 0,
            level=_LEVEL,
        )
        try:
            self._write(encoded)
        except BaseException:
            self.entries -= len(filling.entries)
            self.left_out["not_written"] += len(filling.entries)
            raise
        self._blocks.append(block)

    def _write(self, content: bytes) -> None:
        """Appends all of it, or nothing."""
        try:
            with disk_errors("write a capture", self.path):
                view = memoryview(content)
                while view:
                    written = os.write(self._file, view)
                    if not written:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    view = view[written:]
        except BaseException:
            with suppress(OSError):  # of what is no file
                os.ftruncate(self._file, self._end)
                os.lseek(self._file, self._end, os.SEEK_SET)
            raise
        self._end += len(content)
