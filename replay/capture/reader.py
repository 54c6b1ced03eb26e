"""Reads a capture: by position, by time, whole or as far as it is intact."""

import heapq
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from replay.capture.errors import (
    CaptureDamagedError,
    CaptureError,
    CaptureFormatError,
    CaptureVersionError,
)
from replay.capture.format import (
    FOOTER,
    HEAD_SIZE,
    INDEX_HEAD,
    INDEX_MARK,
    MAGIC,
    START,
    VERSION,
    Block,
    CaptureEntry,
    CaptureKind,
    Header,
    MalformedError,
    Summary,
    check_body,
    decode_block,
    decode_footer,
    decode_head,
    decode_header,
    decode_index,
    encode_head,
)
from schemas.identities import Offset
from schemas.limits import GIB, MIB
from storage.faults import disk_errors
from storage.files import open_file

CAPTURE_MERGED_BYTES_MAX: Final = 1 * GIB  # of blocks that are decoded at once: memory
CAPTURE_HEADER_BYTES_MAX: Final = 16 * MIB  # of the file's header, which names all lanes

_EVERY_OFFSET: Final = Offset(2**63 - 1)
_ENTRY_MEMORY: Final = 200  # bytes of a decoded entry, beside its value


class _OpenBlocks:
    """What the blocks take that are decoded at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = 0

    def add(self, block: Block) -> None:
        """Raises CaptureError where that is more than CAPTURE_MERGED_BYTES_MAX."""
        self._bytes += _memory_of(block)
        if self._bytes > CAPTURE_MERGED_BYTES_MAX:
            raise CaptureError(
                f"Expected lanes that can be read side by side in {CAPTURE_MERGED_BYTES_MAX} bytes,"
                f" got more at once: {self._path}. Capture fewer of them (--instance, --from, --to)"
            )

    def remove(self, block: Block) -> None:
        """It has been read."""
        self._bytes -= _memory_of(block)


def _memory_of(block: Block) -> int:
    return block.raw_size + block.entries * _ENTRY_MEMORY


class Capture:
    """A capture that was opened; a context manager, one owner.

    Opening reads the file once and compares every checksum, so that what is read later is what was
    written. Where a block is damaged, the blocks before it are the capture, and `damage` says so.

    Attributes:
        header: see `Header`.
        blocks: those that can be used, in the order of the file.
        summary: what its writer said at the end; None where it did not come to that.
        damage: where the file is not as it was written; None where it is.
        unfinished: why it ends without an index, in words; "" where it has one.
        size_bytes: of the file.

    Raises:
        CaptureFormatError: it is no capture, or its header is damaged.
        CaptureVersionError: a newer Reprise wrote it.
        DiskError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: CaptureDamagedError | None = None
        self.unfinished = ""
        self.summary: Summary | None = None
        with disk_errors("read a capture", path):
            self._opened = open_file(path)
        self._file = self._opened.fileno()
        try:
            self.size_bytes = os.fstat(self._file).st_size
            self.header, self._begin = self._read_header()
            indexed = self._read_index()
            self.blocks = self._check(self._scan() if indexed is None else indexed)
        except BaseException:
            self._opened.close()
            raise

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; the object is void afterwards."""
        self._opened.close()

    # What it has

    @property
    def entries(self) -> int:
        """How many can be used."""
        return sum(block.entries for block in self.blocks)

    @property
    def lanes(self) -> list[int]:
        """Those that the header names; no block is of another one."""
        return sorted(self._named_lanes())

    def _named_lanes(self) -> Iterable[int]:
        if self.header.kind is CaptureKind.FRAMES:
            return range(len(self.header.publishers))
        return {source.partition for source in self.header.partitions}

    @property
    def notes(self) -> list[str]:
        """What is not whole about it, to be told to whoever uses it."""
        notes = [str(self.damage)] if self.damage else []
        if self.unfinished:
            notes.append(self.unfinished)
        if self.summary is not None and self.summary.ended != "complete":
            notes.append(f"The capture was not finished: {self.summary.ended}: {self.path}")
        return notes

    @property
    def is_partial(self) -> bool:
        """Whether its range does not begin where the log did."""
        return any(not source.complete for source in self.header.partitions)

    def unproven_before(self, lane: int) -> Offset:
        """Registrations of a partition below this offset prove nothing of what their publishers
        hold, for the range does not begin where the log does; 0 where it does. See `Fold.distrust`.
        """
        return self._unproven_before.get(lane, Offset(0))

    @cached_property
    def _unproven_before(self) -> dict[int, Offset]:
        firsts: dict[int, int] = {}
        for block in self.blocks:
            if not block.is_spared:
                firsts[block.lane] = min(block.first, firsts.get(block.lane, block.first))
        return {
            lane.partition: Offset(firsts.get(lane.partition, _EVERY_OFFSET))
            if lane.keeps_registrations
            else _EVERY_OFFSET
            for lane in self.header.partitions
            if not lane.complete
        }

    def expect(self, *kinds: CaptureKind) -> None:
        """Raises CaptureError where the capture is of another kind."""
        if self.header.kind not in kinds:
            wanted = " or ".join(kinds)
            raise CaptureError(
                f"Expected a capture of {wanted}, got one of {self.header.kind}: {self.path}"
            )

    # Entries

    def read(
        self,
        *,
        lanes: Collection[int] | None = None,
        first: int | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Iterator[CaptureEntry]:
        """Entries in the order of the file: within a lane the positions rise. Cost O(blocks), and
        what is decoded: blocks that have nothing of the range are passed over.

        Args:
            lanes: None for all.
            first: from this position on.
            since: entries of this time, Unix seconds, or later.
            until: entries of before this time.

        Raises:
            CaptureDamagedError, DiskError: the file was changed or cannot be read any more.
        """
        for block in self.blocks:
            if lanes is not None and block.lane not in lanes:
                continue
            if first is not None and block.last < first:
                continue
            if since is not None and block.latest < since:
                continue
            if until is not None and block.earliest >= until:
                continue
            entries = self._entries(block)
            if first is since is until is None:
                yield from entries
                continue
            for entry in entries:
                if (
                    (first is None or entry.position >= first)
                    and (since is None or entry.time >= since)
                    and (until is None or entry.time < until)
                ):
                    yield entry

    def merged(self) -> Iterator[CaptureEntry]:
        """All entries as they happened: the lanes' side by side, by time where times rise; within a
        lane always by position. Memory: the blocks whose times overlap.

        Raises:
            CaptureError: these take more than CAPTURE_MERGED_BYTES_MAX.
        """
        lanes: dict[int, list[Block]] = {}
        for block in self.blocks:
            lanes.setdefault(block.lane, []).append(block)
        opened = _OpenBlocks(self.path)
        rising = (self._rising(lane, blocks, opened) for lane, blocks in lanes.items())
        for _, _, entry in heapq.merge(*rising):
            if entry is not None:
                yield entry

    def _rising(
        self, lane: int, blocks: Sequence[Block], opened: _OpenBlocks
    ) -> Iterator[tuple[float, int, CaptureEntry | None]]:
        """A lane's entries under times that never fall, so that merging keeps their order; None
        before each block, which is decoded once its time has come.
        """
        reached = float("-inf")
        for block in blocks:
            reached = max(reached, block.earliest)
            yield reached, lane, None
            opened.add(block)
            for entry in self._entries(block):
                reached = max(reached, entry.time)
                yield reached, lane, entry
            opened.remove(block)

    def _entries(self, block: Block) -> list[CaptureEntry]:
        body = self._read_at(block.body_offset, block.size)
        try:
            return decode_block(block, body)
        except MalformedError as error:
            raise CaptureDamagedError(str(self.path), block.offset, str(error)) from error

    def _read_at(self, offset: int, size: int) -> bytes:
        """The bytes there; fewer where the file ends."""
        with disk_errors("read a capture", self.path):
            return os.pread(self._file, size, offset)

    # Opening

    def _read_header(self) -> tuple[Header, int]:
        path = str(self.path)
        start = self._read_at(0, START.size)
        if start[: len(MAGIC)] != MAGIC:
            found = start[: len(MAGIC)].hex() or "nothing"
            raise CaptureFormatError(
                path, 0, f"which begins with `{MAGIC.decode()}`, got `{found}`"
            )
        if len(start) < START.size:
            raise CaptureFormatError(path, len(start), "got the end of the file in its header")
        _, version, _, size, _ = START.unpack(start)
        if version > VERSION:
            raise CaptureVersionError(path, version=version, supported=VERSION)
        if size > CAPTURE_HEADER_BYTES_MAX:
            detail = f"got a header of {size} bytes, more than {CAPTURE_HEADER_BYTES_MAX}"
            raise CaptureFormatError(path, len(MAGIC), detail)
        encoded = self._read_at(START.size, size)
        if len(encoded) < size:
            detail = "got the end of the file in its header"
            raise CaptureFormatError(path, START.size + len(encoded), detail)
        try:
            return decode_header(start, encoded), START.size + size
        except MalformedError as error:
            raise CaptureFormatError(path, len(MAGIC), str(error)) from error

    def _read_index(self) -> list[Block] | None:
        """The blocks by the index at the end; None where there is none that can be used."""
        footer_offset = self.size_bytes - FOOTER.size
        footer = self._read_at(max(footer_offset, 0), FOOTER.size)
        offset = decode_footer(footer, footer_offset)
        if offset is None or not self._begin <= offset <= footer_offset - INDEX_HEAD.size:
            return None
        if footer_offset - offset > 2 * offset + CAPTURE_HEADER_BYTES_MAX:
            return None  # it names more blocks than can stand before it
        encoded = self._read_at(offset, footer_offset - offset)
        try:
            blocks, summary = decode_index(encoded, offset)
        except MalformedError:
            return None  # `_scan` comes to it, and says where it is
        end = self._begin
        for block in blocks:
            if block.offset != end:
                return None
            end = block.end
        if end != offset:
            return None
        self.summary = summary
        return blocks

    def _scan(self) -> list[Block]:
        """The blocks by their heads, as far as they follow on one another."""
        blocks: list[Block] = []
        at = self._begin
        while at < self.size_bytes:
            head = self._read_at(at, HEAD_SIZE)
            if head.startswith(INDEX_MARK):
                self._note_index(at)
                break
            if len(head) < HEAD_SIZE:
                self._note_cut(at)
                break
            try:
                block = decode_head(at, head)
            except MalformedError as error:
                self._note_damage(at, str(error))
                break
            if block.end > self.size_bytes:
                self._note_cut(at)
                break
            blocks.append(block)
            at = block.end
        else:
            self._note_cut(at)
        return blocks

    def _note_index(self, at: int) -> None:
        """What stands at `at` begins as an index does, and could not be used as one."""
        head = self._read_at(at, INDEX_HEAD.size)
        is_whole = len(head) == INDEX_HEAD.size
        size = INDEX_HEAD.unpack(head)[1] if is_whole else 0
        end = at + INDEX_HEAD.size + size + FOOTER.size
        if not is_whole or end > self.size_bytes:
            self._note_cut(at)
        else:
            self._note_damage(at, "got an index or a footer that is not as it was written")

    def _note_damage(self, at: int, detail: str) -> None:
        self.damage = CaptureDamagedError(str(self.path), at, detail)

    def _note_cut(self, at: int) -> None:
        left = self.size_bytes - at
        behind = f", {left} bytes behind it are no whole block" if left else ""
        self.unfinished = (
            f"The capture has no index at its end: it was interrupted or cut off. It is whole up to"
            f" byte {at}{behind}: {self.path}"
        )

    def _check(self, blocks: list[Block]) -> tuple[Block, ...]:
        """Those before the first one whose body is damaged."""
        reached: dict[int, int] = {}
        named = set(self._named_lanes())
        for number, block in enumerate(blocks):
            content = self._read_at(block.offset, block.end - block.offset)
            try:
                if content[:HEAD_SIZE] != encode_head(block):
                    raise MalformedError("got a block whose head is not the one in the index")
                check_body(block, content[HEAD_SIZE:])
                if block.lane not in named:
                    raise MalformedError(f"got a block of lane {block.lane}, which has no name")
                if not reached.get(block.lane, -1) < block.first <= block.last:
                    raise MalformedError("got positions that do not rise")
            except MalformedError as error:
                self._note_damage(block.offset, str(error))
                return tuple(blocks[:number])
            reached[block.lane] = block.last
        return tuple(blocks)
