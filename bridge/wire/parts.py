"""Cuts the events of a large batch into parts, each of which becomes a record of its own.

A record is folded whole, and what is behind it waits: so no record may take long, whatever an
engine sends in one message. What the parts say, one after the other, is what the batch says:

- An event that is too large by itself becomes several. Stored blocks then follow on the last one of
  those before by its hash: where an engine has given that to two blocks, which the kernel counts as
  `hash_conflict`, they may follow on the other one.
- A placeholder may name a block that the same batch has removed before (`streams.kernel.moves`):
  both stay in one part, which may then be larger.

The same batch gives the same parts, so that a fold which has some of them can go on with those that
another bridge writes (`schemas.records.Part`).
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from schemas.arrays import ArrayPacker
from schemas.events import BlockEvent, Removed, Stored, decode_run, encode_run


class EventRun(NamedTuple):
    """Some events of a batch, in order.

    Attributes:
        events: how many.
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
        count: how many.
        bytes_max: of a part, as far as that can be; 1 or more.
    """
    events = [
        (piece, encode_run([piece]))
        for event in decode_run(run, count)
        for piece in _pieces(event, bytes_max)
    ]
    joined = _joined([event for event, _ in events])
    parts: list[EventRun] = []
    begun: list[bytes] = []
    size = 0
    for (_, encoded), is_joined in zip(events, joined, strict=True):
        if begun and size + len(encoded) > bytes_max and not is_joined:
            parts.append(EventRun(len(begun), b"".join(begun)))
            begun, size = [], 0
        begun.append(encoded)
        size += len(encoded)
    parts.append(EventRun(len(begun), b"".join(begun)))
    return parts


def _pieces(event: BlockEvent, bytes_max: int) -> Iterator[BlockEvent]:
    size = len(encode_run([event]))
    if size <= bytes_max or not isinstance(event, Stored | Removed) or not _can_be_cut(event):
        yield event
        return
    blocks = len(event.hashes) // 8
    step = max(1, blocks * bytes_max // size)
    for first in range(0, blocks, step):
        hashes = event.hashes[8 * first : 8 * (first + step)]
        if isinstance(event, Removed):
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
            parent=parent,
            extra_keys=event.extra_keys[first : first + step],
        )


def _can_be_cut(event: Stored | Removed) -> bool:
    """Whether it has as much of everything as blocks: what a kernel refuses is refused whole."""
    blocks = len(event.hashes) // 8
    if isinstance(event, Removed) or not blocks:
        return bool(blocks)
    fits = len(event.tokens) in (0, 4 * event.block_size * blocks)
    return fits and len(event.extra_keys) in (0, blocks)


def _joined(events: Sequence[BlockEvent]) -> list[bool]:
    """Whether each event has to be in one part with the one before it."""
    removed_at: dict[tuple[int, int], int] = {}
    begin, end = [0] * (len(events) + 1), [0] * (len(events) + 1)
    for at, event in enumerate(events):
        if isinstance(event, Removed):
            for number in _numbers(event.hashes):
                removed_at[event.group, number] = at
        elif isinstance(event, Stored) and not event.tokens:
            for number in _numbers(event.hashes):
                since = removed_at.get((event.group, number))
                if since is not None:
                    begin[since + 1] += 1
                    end[at + 1] += 1
    spans = accumulate(begun - ended for begun, ended in zip(begin, end, strict=True))
    return [span > 0 for span in spans][: len(events)]


def _numbers(hashes: bytes) -> "memoryview[int]":
    """(n,) u64 as integers, alike on every machine; which order their bytes have does not matter
    here.
    """
    return memoryview(hashes).cast("Q")
