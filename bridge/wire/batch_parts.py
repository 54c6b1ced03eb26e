"""Cuts the events of a large batch into parts, each of which becomes a record of its own.

A record is folded whole, and what is behind it waits: so no record may take long, whatever an
engine sends in one message. What the parts say, one after the other, is what the batch says:

- An event that is too large by itself becomes several. Stored blocks then follow on the last one of
  those before by its hash: where an engine has given that to two blocks, which the kernel counts as
  `hash_conflict`, they may follow on the other one.
- A placeholder, and what a chain on another tier hangs on, may name a block that the same batch has
  removed before (`streams.kernel.tier_moves`): both stay in one part. Many blocks that move so are
  cut by blocks, not by events: each part has the removals and then the placeholders of some of
  them. Only where other events stand in between, as such chains do, a part may be larger.

The same batch gives the same parts, so that a fold which has some of them can go on with those that
another bridge writes (`schemas.records.Part`).
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from schemas.arrays import ArrayPacker
from schemas.events import (
    BlockEvent,
    RemovedBlocks,
    StoredBlocks,
    decode_run,
    encode_run,
    named_again,
)

_SPREAD: Final = 0x9E37_79B9_7F4A_7C15
"""2**64 over the golden ratio: near hashes, as of an engine that counts, come to all groups."""

_MOVE_COST: Final = 4
"""How many times as long a fold takes for a byte of blocks that move as for one of others."""


class EventRun(NamedTuple):
    """Some events of a batch, in order.

    Attributes:
        encoded: one after the other, by `schemas.events.encode_run`.
    """

    events: int
    encoded: bytes


def parts_of(run: bytes, count: int, bytes_max: int, packer: ArrayPacker) -> tuple[EventRun, ...]:
    """As `split_run`, by the packer where it can."""
    parts = packer.split_run(run, count, bytes_max)
    return tuple(map(EventRun._make, split_run(run, count, bytes_max) if parts is None else parts))


def split_run(run: bytes, count: int, bytes_max: int) -> list[EventRun]:
    """The parts of a batch.

    Args:
        run: its events, by `schemas.events.encode_run`.
        bytes_max: of a part, as far as that can be; 1 or more.
    """
    pieces = [
        _Piece(piece, encode_run([piece]), source)
        for source, event in enumerate(decode_run(run, count))
        for piece in _pieces(event, bytes_max)
    ]
    parts: list[EventRun] = []
    begun: list[bytes] = []
    size = 0
    for together, cost in _together(pieces, bytes_max):
        if begun and size + cost > bytes_max:
            parts.append(EventRun(len(begun), b"".join(begun)))
            begun, size = [], 0
        begun += together
        size += cost
    parts.append(EventRun(len(begun), b"".join(begun)))
    return parts


class _Piece(NamedTuple):
    """An event, or a piece of one: as it is encoded, and of which event of the batch it is."""

    event: BlockEvent
    encoded: bytes
    source: int


def _together(pieces: Sequence[_Piece], bytes_max: int) -> Iterator[tuple[list[bytes], int]]:
    """What has to be in one part, in order, and how many bytes of other events cost as much."""
    span: list[_Piece] = []
    joined = [*_joined([piece.event for piece in pieces])[1:], False]
    for piece, is_joined in zip(pieces, joined, strict=True):
        span.append(piece)
        if is_joined:
            continue
        cost = sum(len(one.encoded) for one in span) * (_MOVE_COST if len(span) > 1 else 1)
        if len(span) > 1 and cost > bytes_max and all(_is_of_keys(one.event) for one in span):
            for group in _by_keys(span, -(-cost // bytes_max)):
                yield group, _MOVE_COST * sum(map(len, group))
        else:
            yield [one.encoded for one in span], cost
        span = []


def _is_of_keys(event: BlockEvent) -> bool:
    """Whether it says of each of its blocks what it says, whatever becomes of the others."""
    if isinstance(event, StoredBlocks) and (event.tokens or event.token_hashes):
        return False
    return isinstance(event, StoredBlocks | RemovedBlocks) and (
        not event.hashes or _can_be_cut(event)
    )


def _by_keys(span: Sequence[_Piece], groups: int) -> Iterator[list[bytes]]:
    """The same events, for some of the blocks at a time."""
    groups = min(groups, sum(len(_hashes(piece.event)) // 8 for piece in span))
    grouped: list[dict[int, list[tuple[BlockEvent, int]]]] = [{} for _ in range(groups)]
    for event, _, source in span:
        for place, number in enumerate(_numbers(_hashes(event))):
            group = grouped[((number * _SPREAD) % 2**64 >> 32) * groups >> 32]
            group.setdefault(source, []).append((event, place))
    for group in grouped:
        if group:
            yield [encode_run([_of_blocks(blocks)]) for blocks in group.values()]


def _of_blocks(blocks: Sequence[tuple[BlockEvent, int]]) -> BlockEvent:
    """An event of some blocks of one event of the batch."""
    event = blocks[0][0]
    hashes = b"".join(_hashes(one)[8 * place : 8 * place + 8] for one, place in blocks)
    if not isinstance(event, StoredBlocks):
        return msgspec.structs.replace(event, hashes=hashes)
    keys = tuple(
        one.extra_keys[place]
        for one, place in blocks
        if isinstance(one, StoredBlocks) and one.extra_keys
    )
    return msgspec.structs.replace(event, hashes=hashes, parent=None, extra_keys=keys)


def _hashes(event: BlockEvent) -> bytes:
    return event.hashes if isinstance(event, StoredBlocks | RemovedBlocks) else b""


def _pieces(event: BlockEvent, bytes_max: int) -> Iterator[BlockEvent]:
    size = len(encode_run([event]))
    if (
        size <= bytes_max
        or not isinstance(event, StoredBlocks | RemovedBlocks)
        or not _can_be_cut(event)
    ):
        yield event
        return
    blocks = len(event.hashes) // 8
    step = max(1, blocks * bytes_max // size)
    for first in range(0, blocks, step):
        hashes = event.hashes[8 * first : 8 * (first + step)]
        if isinstance(event, RemovedBlocks):
            yield msgspec.structs.replace(event, hashes=hashes)
            continue
        width = len(event.tokens) // blocks
        parent = event.parent
        if first:
            parent = int.from_bytes(event.hashes[8 * (first - 1) : 8 * first], "little")
        yield msgspec.structs.replace(
            event,
            hashes=hashes,
            tokens=event.tokens[width * first : width * (first + step)],
            token_hashes=event.token_hashes[8 * first : 8 * (first + step)],
            parent=parent,
            extra_keys=event.extra_keys[first : first + step],
        )


def _can_be_cut(event: StoredBlocks | RemovedBlocks) -> bool:
    """Whether it has as much of everything as blocks: what a kernel refuses is refused whole."""
    blocks = len(event.hashes) // 8
    if isinstance(event, RemovedBlocks) or not blocks:
        return bool(blocks)
    if event.aliases:
        return False  # one object for each event is what a pool sends
    fits = len(event.tokens) in (0, 4 * event.block_size * blocks)
    fits = fits and len(event.token_hashes) in (0, 8 * blocks)
    return fits and len(event.extra_keys) in (0, blocks)


def _joined(events: Sequence[BlockEvent]) -> list[bool]:
    """Whether each event has to be in one part with the one before it.

    What names a block again goes with the first removal of it, since any of several may be the one
    that took it: the others named a tier on which it was not.
    """
    removed_at: dict[tuple[int, int], int] = {}
    begin, end = [0] * (len(events) + 1), [0] * (len(events) + 1)
    for at, event in enumerate(events):
        if isinstance(event, RemovedBlocks):
            for number in _numbers(event.hashes):
                removed_at.setdefault((event.group, number), at)
        elif isinstance(event, StoredBlocks):
            for number in _numbers(named_again(event)):
                since = removed_at.get((event.group, number))
                if since is not None:
                    begin[since + 1] += 1
                    end[at + 1] += 1
    spans = accumulate(begun - ended for begun, ended in zip(begin, end, strict=True))
    return [span > 0 for span in spans][: len(events)]


def _numbers(hashes: bytes) -> tuple[int, ...]:
    """(n,) u64 LE as integers."""
    return struct.unpack(f"<{len(hashes) // 8}Q", hashes)
