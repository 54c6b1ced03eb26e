"""The bytes of a capture, version 1. All numbers are little-endian, all checksums XXH3-64.

    file    = header block* [index footer]
    header  = "RPRSECAP" version:u16 0:u16 size:u32 checksum:u64 map
    block   = head body
    head    = "BLCK" lane:u32 flags:u32 entries:u32 raw_size:u32 size:u32 first:i64 last:i64
              earliest:f64 latest:f64 body_checksum:u64 checksum:u64
    index   = "INDX" size:u32 checksum:u64 map
    footer  = "FOOT" 0:u32 index_offset:u64 checksum:u64 "RPRSEEND"

`map` is msgpack: a `Header`, an `Index`. The header's checksum is over version to size and the map,
the index's over its map, a head's over the bytes of the head before it. The last three are seeded
with the place where their part begins, so that none counts in another place.

A body is `size` bytes of zstd, which are `raw_size` bytes of columns, for n entries:

    positions:i64[n]  times:f64[n]  flags:u8[n]  sizes:u32[n]  values, one after the other

A lane is what has positions of its own: a partition of the log in a capture of records, a publisher
in one of frames. A block has entries of one lane, in rising order of position; the blocks of a lane
stand in that order, those of several lanes as they were filled. A position is the record's offset
in its log, or the number of the message in its capture, from 0. A time is the record's
`bridge_time`, or when the message came; Unix seconds. `earliest` and `latest` are of the block's
entries, whose times need not rise.

A value is the record as it stands in the log (`schemas.records`), or a msgpack array of a message's
ZMQ frames, each as it came.

A writer that is interrupted leaves whole blocks and neither index nor footer: heads say how far it
is to the next one. A newer version may mean anything by the rest: it is not read. Keys that a map
has beside these are passed over.
"""

import struct
from collections.abc import Sequence
from enum import IntFlag, StrEnum
from itertools import accumulate, pairwise, repeat
from typing import Annotated, Final, NamedTuple

import cramjam
import msgspec
from xxhash import xxh3_64_intdigest

from replay.capture.bounds import (
    CAPTURE_BLOCK_ENTRIES_MAX,
    CAPTURE_BLOCK_RAW_BYTES_MAX,
    CAPTURE_ENTRY_BYTES_MAX,
    CAPTURE_LANES_MAX,
)
from schemas.identities import Text
from schemas.positions import LogOffset, Seconds
from schemas.registration import Registration

VERSION: Final = 1
MAGIC: Final = b"RPRSECAP"
BLOCK_MARK: Final = b"BLCK"
INDEX_MARK: Final = b"INDX"

START: Final = struct.Struct("<8sHHIQ")
INDEX_HEAD: Final = struct.Struct("<4sIQ")
FOOTER: Final = struct.Struct("<4sIQQ8s")
_HEAD: Final = struct.Struct("<4sIIIIIqqddQQ")
_FOOTER_MARK, _FOOTER_END = b"FOOT", b"RPRSEEND"
_CHECKSUM_SIZE: Final = 8

HEAD_SIZE: Final = _HEAD.size
COLUMNS_SIZE: Final = 21  # of an entry in its block's columns, beside its value

Lane = Annotated[int, msgspec.Meta(ge=0, lt=CAPTURE_LANES_MAX)]


class CaptureKind(StrEnum):
    """What a capture has: records of a log, or frames of publishers as they came."""

    RECORDS = "records"
    FRAMES = "frames"


class EntryFlag(IntFlag):
    """What is particular about an entry."""

    REPLAYED = 1
    """A message that the publisher's replay socket sent, not its live one."""

    NEW_LINK = 2
    """The first message that came over a link, but for the capture's first: the engine may have
    restarted while it was down."""


class BlockFlag(IntFlag):
    """What is particular about all entries of a block."""

    SPARED = 1
    """Records from before the range: registrations that were live when it began, which are kept
    as the log's retention keeps them."""


class CaptureSelection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the capture was asked for; None for no such limit.

    Attributes:
        since, until: times, from which on and before which, Unix seconds.
        first, last: positions by partition, both included.
    """

    since: Seconds | None = None
    until: Seconds | None = None
    first: dict[int, LogOffset] | None = None
    last: dict[int, LogOffset] | None = None
    tenant: Text | None = None
    model: Text | None = None
    instance: Text | None = None


class PartitionSource(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of the log, as it was when the capture began; its number is the lane.

    Attributes:
        begin: its first offset; in an embedded log, registrations may stand before it.
        end: the offset that the next record would have got.
        complete: whether the range begins where the log did, at its very first record: else a fold
            of it cannot know what was stored before.
        keeps_registrations: whether live registrations from before the range are in the capture, so
            that each stands where it was made.
    """

    partition: Lane
    begin: LogOffset
    end: LogOffset
    complete: bool
    keeps_registrations: bool


class CapturedPublisher(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A publisher whose frames are captured; its place in the header is the lane.

    Attributes:
        endpoint, replay_endpoint: its sockets; "" for no replay socket.
        registration: under which its frames become records; None where that was not given.
    """

    endpoint: Text
    replay_endpoint: Text = ""
    registration: Registration | None = None


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the capture says of itself at its beginning.

    Attributes:
        created_at: Unix seconds.
        created_by: the version of Reprise.
        source: where it was taken from, in words.
        asked: what it was to have.
        publishers: of one of frames.
    """

    kind: CaptureKind
    created_at: Seconds
    created_by: Text
    source: Text
    asked: CaptureSelection = CaptureSelection()
    partitions: tuple[PartitionSource, ...] = ()
    publishers: tuple[CapturedPublisher, ...] = ()


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What the capture says of itself at its end.

    Attributes:
        ended: why it ended: `complete`, `interrupted`, or what failed.
        finished_at: Unix seconds.
        left_out: how many entries were read and not wanted, by reason.
    """

    ended: Text
    finished_at: Seconds
    entries: int
    left_out: dict[str, int] = {}


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """`blocks` are offset:u64 and head of each, one after the other."""

    blocks: bytes
    summary: Summary


class CaptureEntry(NamedTuple):
    """One record or one message; see the module."""

    lane: int
    position: int
    time: float
    value: bytes
    flags: int = 0


class Block(NamedTuple):
    """Where a block is, and what its head says."""

    offset: int
    lane: int
    flags: int
    entries: int
    raw_size: int
    size: int
    first: int
    last: int
    earliest: float
    latest: float
    body_checksum: int

    @property
    def body_offset(self) -> int:
        """Where its body begins."""
        return self.offset + HEAD_SIZE

    @property
    def end(self) -> int:
        """Where what follows it begins."""
        return self.body_offset + self.size

    @property
    def is_spared(self) -> bool:
        """Whether it has what stands before the range."""
        return bool(self.flags & BlockFlag.SPARED)


class MalformedError(ValueError):
    """The bytes are not what they should be; its text says what was expected."""


def checksum(content: bytes | memoryview, seed: int = 0) -> int:
    """XXH3-64."""
    return xxh3_64_intdigest(content, seed=seed)


# Header


def encode_header(header: Header) -> bytes:
    """The header as it stands at the beginning of the file."""
    encoded = msgspec.msgpack.encode(header)
    start = START.pack(MAGIC, VERSION, 0, len(encoded), 0)
    checked = checksum(start[len(MAGIC) : -_CHECKSUM_SIZE] + encoded)
    return START.pack(MAGIC, VERSION, 0, len(encoded), checked) + encoded


def decode_header(start: bytes, encoded: bytes) -> Header:
    """The inverse, of `START.size` bytes and the map behind them.

    Raises:
        MalformedError: it is damaged.
    """
    checked = checksum(start[len(MAGIC) : -_CHECKSUM_SIZE] + encoded)
    if checked != int.from_bytes(start[-_CHECKSUM_SIZE:], "little"):
        raise MalformedError("got a header whose checksum is not that of its bytes")
    try:
        header = _header_decoder.decode(encoded)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedError(f"got a header that cannot be read: {error}") from error
    lanes = max(len(header.partitions), len(header.publishers))
    if lanes > CAPTURE_LANES_MAX:
        raise MalformedError(f"got a header of {lanes} lanes, more than {CAPTURE_LANES_MAX}")
    return header


# Blocks


def encode_block(
    entries: Sequence[CaptureEntry], *, offset: int, flags: int, level: int
) -> tuple[Block, bytes]:
    """A block of these entries of one lane, in rising order of position, to stand at this place."""
    count = len(entries)
    raw = b"".join(
        (
            struct.pack(f"<{count}q", *(entry.position for entry in entries)),
            struct.pack(f"<{count}d", *(entry.time for entry in entries)),
            struct.pack(f"<{count}B", *(entry.flags for entry in entries)),
            struct.pack(f"<{count}I", *(len(entry.value) for entry in entries)),
            *(entry.value for entry in entries),
        )
    )
    body = bytes(cramjam.zstd.compress(raw, level=level))
    block = Block(
        offset=offset,
        lane=entries[0].lane,
        flags=flags,
        entries=count,
        raw_size=len(raw),
        size=len(body),
        first=entries[0].position,
        last=entries[-1].position,
        earliest=min(entry.time for entry in entries),
        latest=max(entry.time for entry in entries),
        body_checksum=checksum(body, offset),
    )
    return block, encode_head(block) + body


def encode_head(block: Block) -> bytes:
    """What stands before its body."""
    head = _HEAD.pack(BLOCK_MARK, *block[1:], 0)[:-_CHECKSUM_SIZE]
    return head + checksum(head, block.offset).to_bytes(_CHECKSUM_SIZE, "little")


def decode_head(offset: int, head: bytes) -> Block:
    """The inverse of `encode_head`, of HEAD_SIZE bytes.

    Raises:
        MalformedError: it is no head of a block that stands there.
    """
    mark, *fields, checked = _HEAD.unpack(head)
    if mark != BLOCK_MARK:
        raise MalformedError(f"got `{mark.hex()}` where a block begins")
    if checked != checksum(head[:-_CHECKSUM_SIZE], offset):
        raise MalformedError("got a block whose head has another checksum")
    block = Block(offset, *fields)
    is_filled = 1 <= block.entries <= CAPTURE_BLOCK_ENTRIES_MAX
    is_bounded = max(block.raw_size, block.size) <= CAPTURE_BLOCK_RAW_BYTES_MAX
    if not is_filled or not is_bounded or block.entries * COLUMNS_SIZE > block.raw_size:
        detail = f"{block.entries} entries in {block.raw_size} bytes, compressed {block.size}"
        raise MalformedError(f"got a block of {detail}")
    return block


def decode_block(block: Block, body: bytes) -> list[CaptureEntry]:
    """The entries of a block.

    Raises:
        MalformedError: its body is not as it was written.
    """
    check_body(block, body)
    raw = bytearray(block.raw_size)
    try:
        written = cramjam.zstd.decompress_into(body, raw)
    except (cramjam.DecompressionError, ValueError, OverflowError) as error:
        raise MalformedError(f"got a block that cannot be decompressed: {error}") from error
    count = block.entries
    columns = struct.Struct(f"<{count}q{count}d{count}B{count}I")
    if written != block.raw_size:
        raise MalformedError(f"got a block of {written} bytes for {count} entries")
    numbers = columns.unpack_from(raw)
    positions, times = numbers[:count], numbers[count : 2 * count]
    flags, sizes = numbers[2 * count : 3 * count], numbers[3 * count :]
    ends = list(accumulate(sizes, initial=columns.size))
    if ends[-1] != block.raw_size or max(sizes) + COLUMNS_SIZE > CAPTURE_ENTRY_BYTES_MAX:
        raise MalformedError("got a block whose values have other sizes")
    content = bytes(raw)
    values = [content[begin:end] for begin, end in pairwise(ends)]
    columns_of = zip(repeat(block.lane), positions, times, values, flags)
    return list(map(CaptureEntry._make, columns_of))


def check_body(block: Block, body: bytes) -> None:
    """Raises MalformedError where the body is not as it was written."""
    if len(body) != block.size or checksum(body, block.offset) != block.body_checksum:
        raise MalformedError("got a block whose body has another checksum")


# Index and footer


def encode_end(blocks: Sequence[Block], summary: Summary, *, offset: int) -> bytes:
    """Index and footer, to stand behind the last block."""
    heads = b"".join(block.offset.to_bytes(8, "little") + encode_head(block) for block in blocks)
    encoded = msgspec.msgpack.encode(Index(blocks=heads, summary=summary))
    index = INDEX_HEAD.pack(INDEX_MARK, len(encoded), checksum(encoded, offset)) + encoded
    footer_offset = offset + len(index)
    footer = FOOTER.pack(_FOOTER_MARK, 0, offset, 0, _FOOTER_END)
    checked = checksum(footer[: -2 * _CHECKSUM_SIZE], footer_offset)
    return index + FOOTER.pack(_FOOTER_MARK, 0, offset, checked, _FOOTER_END)


def decode_footer(footer: bytes, footer_offset: int) -> int | None:
    """Where the index begins; None where these bytes are no footer that stands there."""
    if len(footer) != FOOTER.size:
        return None
    mark, _, offset, checked, end = FOOTER.unpack(footer)
    is_checked = checked == checksum(footer[: -2 * _CHECKSUM_SIZE], footer_offset)
    if (mark, end) != (_FOOTER_MARK, _FOOTER_END) or not is_checked:
        return None
    return int(offset)


def decode_index(encoded: bytes, offset: int) -> tuple[list[Block], Summary]:
    """The blocks of a file and its summary, of all bytes of the index, which stands there.

    Raises:
        MalformedError: it is damaged.
    """
    head, content = encoded[: INDEX_HEAD.size], encoded[INDEX_HEAD.size :]
    mark, size, checked = INDEX_HEAD.unpack(head)
    if mark != INDEX_MARK or size != len(content) or checked != checksum(content, offset):
        raise MalformedError("got an index whose checksum is not that of its bytes")
    try:
        index = _index_decoder.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedError(f"got an index that cannot be read: {error}") from error
    step = 8 + HEAD_SIZE
    if len(index.blocks) % step:
        raise MalformedError("got an index of no whole number of blocks")
    places = [index.blocks[at : at + step] for at in range(0, len(index.blocks), step)]
    blocks = [decode_head(int.from_bytes(place[:8], "little"), place[8:]) for place in places]
    return blocks, index.summary


# Frames


_header_decoder: Final = msgspec.msgpack.Decoder(Header)
_index_decoder: Final = msgspec.msgpack.Decoder(Index)
_frames_decoder: Final = msgspec.msgpack.Decoder(list[bytes])


def encode_frames(frames: Sequence[bytes]) -> bytes:
    """The frames of one message as an entry's value."""
    return msgspec.msgpack.encode(list(frames))


def decode_frames(value: bytes) -> list[bytes]:
    """The inverse.

    Raises:
        MalformedError: the value is not of a capture of frames.
    """
    try:
        return _frames_decoder.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedError(f"got a message that is not an array of frames: {error}") from error
