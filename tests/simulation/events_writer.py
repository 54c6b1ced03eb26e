"""Publishers whose records a test writes itself, in the order in which a bridge would."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.limits import HEARTBEAT_S
from schemas.records import Part
from tests.building import (
    BLOCK,
    cleared,
    events_record,
    gap_record,
    heartbeat_record,
    registered_record,
    registration,
    removed,
    report,
    reset_record,
    stored,
    unregistered_record,
)
from tests.simulation.announced import Announced

_BLOCKS = 12

Prefix = tuple[int, ...]
"""A block and those before it: block n has the tokens from BLOCK * n on."""


class Known(NamedTuple):
    """What a table can know of a publisher.

    Attributes:
        held: the prefixes that can be found.
        reasons: why it is degraded.
        other_ranks: of its stream.
        sparse_blocks: that it has announced in this incarnation, and needs; None: none.
    """

    registered: bool
    held: frozenset[Prefix]
    reasons: frozenset[str]
    other_ranks: frozenset[int]
    sparse_blocks: int | None


class WrittenPublisher:
    """One publisher, and where it stands in the log.

    Args:
        number: of its instance.
        append: takes a record of it.
        shard: its rank, where each rank of the instance has a part of each block; None: it is
            alone.
        sound: it loses little, and stores prompts from their beginning: it is seldom degraded.
    """

    def __init__(
        self,
        number: int,
        rng: random.Random,
        append: Callable[[bytes], None],
        *,
        shard: int | None = None,
        sound: bool = False,
    ) -> None:
        self.registration = msgspec.structs.replace(
            registration(f"engine-{number}", port=5557 + number, dp_rank=shard or 0),
            is_shard=shard is not None,
        )
        self.registered = False
        self.announced: Announced[Prefix] = Announced()
        self.other_ranks: frozenset[int] = frozenset()
        self.sparse_blocks: int | None = None
        self._rng, self._sound = rng, sound
        self._append = append
        self._incarnation, self._sequence = 1, -1
        self._last = b""

    def step(self) -> None:
        """One more record."""
        harm = 0.05 if self._sound else 1
        steps: list[tuple[float, Callable[[], None]]] = [
            (16, self._events),
            (4, self._parts),
            (harm, self._gap),
            (harm, self._odd),
            (1, self._reset),
            (2, self._again),
            (1, self._unregister),
        ]
        if not self.registered:
            self.register()
            return
        weights = [weight for weight, _ in steps]
        self._rng.choices([step for _, step in steps], weights)[0]()

    def register(self) -> None:
        """Begins, or says once more that it has begun."""
        if not self.registered and self._sequence >= 0:
            self._begin_again()
        self.registered = True
        self._append(registered_record(self.registration))

    def _unregister(self) -> None:
        self.registered, self._last = False, b""
        self._forget()
        self._append(unregistered_record(self.registration))

    def _forget(self) -> None:
        self.announced.clear()
        self.other_ranks = frozenset()
        self.sparse_blocks = None

    def _begin_again(self) -> None:
        self._forget()
        self._incarnation, self._sequence = self._incarnation + 1, -1

    @property
    def known(self) -> Known:
        """What a table can know of it now."""
        known = self.announced
        reasons = frozenset(known.reasons)
        return Known(self.registered, known.held, reasons, self.other_ranks, self.sparse_blocks)

    def _announce(self, events: Sequence[BlockEvent]) -> None:
        known = self.announced
        for event in events:
            if isinstance(event, ClearedBlocks):
                known.clear()
                continue
            blocks = _blocks_of(event)
            if isinstance(event, RemovedBlocks):
                known.remove(blocks)
            elif event.spec_kind == _NEEDED:
                self.sparse_blocks = (self.sparse_blocks or 0) + len(blocks)
            elif event.spec_kind != _NOT_NEEDED:
                before = () if event.parent is None else known.usable.get(event.parent, ())
                prefixes = [(one, (*before, *blocks[: at + 1])) for at, one in enumerate(blocks)]
                reason = event.left_out or ("block_size" if event.block_size != BLOCK else "")
                known.store(prefixes, event.parent, reason, reported=event.reported)

    def _events(self) -> None:
        first = self._sequence + 1
        last = first + self._rng.choice((0, 0, 2))
        events = [event for at in range(first, last + 1) for event in self._batch(at)]
        self._sequence = last
        self._announce(events)
        self._write(first, last, events)

    def _write(
        self,
        first: int,
        last: int,
        events: Sequence[BlockEvent],
        *,
        incomplete: int | None = None,
        other_ranks: tuple[int, ...] = (),
    ) -> None:
        stream, dp_rank = self.registration.publisher
        self._last = events_record(
            first,
            last,
            events,
            incarnation=self._incarnation,
            stream=stream,
            dp_rank=dp_rank,
            incomplete=incomplete,
            other_ranks=other_ranks,
        )
        self._append(self._last)

    def _odd(self) -> None:
        """A batch that its bridge could not use whole, or that is of another rank."""
        sequence = self._sequence = self._sequence + 1
        if self._rng.random() < 0.3:
            other = 1 - self.registration.dp_rank
            self.other_ranks |= {other}
            self._write(sequence, sequence, [], other_ranks=(other,))
            return
        events = self._batch(sequence)
        self._announce(events)
        self.announced.is_lost = True
        self._write(sequence, sequence, events, incomplete=sequence)

    def _parts(self) -> None:
        """A batch of which each record has a part; now and then its bridge ends in the middle, and
        the next one writes all of it again, or finds it lost.
        """
        sequence = self._sequence = self._sequence + 1
        events = [one for _ in range(self._rng.randint(2, 5)) for one in self._batch(sequence)]
        folded = 0

        def write(part: tuple[int, bytes]) -> None:
            nonlocal folded
            end, self._last = part
            self._announce(events[folded:end])
            folded = max(folded, end)
            self._append(self._last)

        for _ in range(self._rng.choice((0, 0, 0, 1, 2))):
            parts = self._in_parts(sequence, events)
            for part in parts[: self._rng.randint(1, len(parts))]:
                write(part)
        if self._rng.random() < (0.005 if self._sound else 0.1):
            self._append_gap(sequence, sequence, is_loss=folded < len(events))
            return
        for part in self._in_parts(sequence, events):
            write(part)

    def _append_gap(self, first: int, last: int, *, is_loss: bool = True) -> None:
        self.announced.is_lost |= is_loss
        stream, dp_rank = self.registration.publisher
        gap = gap_record(first, last, incarnation=self._incarnation, stream=stream, dp_rank=dp_rank)
        self._append(gap)

    def _in_parts(self, sequence: int, events: Sequence[BlockEvent]) -> list[tuple[int, bytes]]:
        """Each with the event before which it ends."""
        stream, dp_rank = self.registration.publisher
        ends = [at for at in range(1, len(events)) if self._rng.random() < 0.5] + [len(events)]
        return [
            (
                end,
                events_record(
                    sequence,
                    sequence,
                    events[first:end],
                    incarnation=self._incarnation,
                    stream=stream,
                    dp_rank=dp_rank,
                    part=Part(first, end, len(events)),
                ),
            )
            for first, end in zip([0, *ends], ends, strict=False)
        ]

    def _batch(self, sequence: int) -> list[BlockEvent]:
        kind = self._rng.choices(("store", "remove", "clear"), (8, 3, 1))[0]
        if kind == "clear":
            return [cleared(sequence)]
        block = self._rng.randint(1, _BLOCKS)
        if kind == "remove":
            return [removed(sequence, [block])]
        count = self._rng.randint(1, 4)
        if self._sound:
            block = 1
        tokens = list(range(BLOCK * block, BLOCK * (block + count)))
        parent = None if block == 1 or self._rng.random() < 0.3 else block - 1
        event = stored(sequence, list(range(block, block + count)), tokens, parent=parent)
        is_odd = self._rng.random() < (0.01 if self._sound else 0.15)
        return [self._rng.choice(_ODD_STORES)(event) if is_odd else event]

    def _gap(self) -> None:
        first = self._sequence + 1
        self._sequence = first + self._rng.randint(0, 3)
        self._append_gap(first, self._sequence)

    def _reset(self) -> None:
        self._begin_again()
        stream, dp_rank = self.registration.publisher
        self._append(reset_record(self._incarnation, stream=stream, dp_rank=dp_rank))

    def _again(self) -> None:
        if self._last:
            self._append(self._last)  # it was acknowledged to nobody


_NEEDED, _NOT_NEEDED = "mamba", "cross_attention"
"""Kinds of sparse groups."""


def _left_out(event: StoredBlocks) -> StoredBlocks:
    return StoredBlocks(sequence=event.sequence, hashes=event.hashes, left_out="unknown_field")


def _of_other_size(event: StoredBlocks) -> StoredBlocks:
    return msgspec.structs.replace(event, block_size=BLOCK // 2, tokens=event.tokens[::2])


def _sparse(event: StoredBlocks) -> StoredBlocks:
    return msgspec.structs.replace(event, group=1, spec_kind=_NOT_NEEDED)


def _hybrid(event: StoredBlocks) -> StoredBlocks:
    return msgspec.structs.replace(event, group=2, spec_kind=_NEEDED)


def _reported(event: StoredBlocks) -> StoredBlocks:
    return msgspec.structs.replace(event, reported=True)


_ODD_STORES = (_left_out, _of_other_size, _sparse, _hybrid, _reported)


def _blocks_of(event: StoredBlocks | RemovedBlocks) -> list[int]:
    return [
        int.from_bytes(event.hashes[at : at + 8], "little") for at in range(0, len(event.hashes), 8)
    ]


class WrittenBridge:
    """The bridge of all publishers: its heartbeats, which come only while it is there.

    Args:
        append: takes a heartbeat for a partition.
        home: the partition of a publisher.
        clock: seconds.
    """

    def __init__(
        self,
        publishers: Sequence[WrittenPublisher],
        append: Callable[[int, bytes], None],
        home: Callable[[WrittenPublisher], int],
        clock: Callable[[], float],
    ) -> None:
        self.away_since: float | None = None
        self._publishers = publishers
        self._append = append
        self._home = home
        self._clock = clock
        self._started_at = clock()
        self._lives = 1

    async def run(self) -> None:
        """Heartbeats into every partition, until it is cancelled."""
        while True:
            if self.away_since is None:
                for partition in {self._home(one) for one in self._publishers}:
                    self._beat(partition)
            await asyncio.sleep(HEARTBEAT_S)

    def _beat(self, partition: int) -> None:
        reports = [
            report(one.registration)
            for one in self._publishers
            if one.registered and self._home(one) == partition
        ]
        uptime = self._clock() - self._started_at
        name = f"bridge-{self._lives}"
        self._append(partition, heartbeat_record(name, uptime, reports, complete=True))

    def leave(self) -> None:
        """It dies."""
        self.away_since = self._clock()

    def come(self) -> None:
        """Another one takes its place."""
        if self.away_since is not None:
            self.away_since, self._started_at = None, self._clock()
            self._lives += 1
