"""Publishers whose records a test writes itself, in the order in which a bridge would."""

import asyncio
import random
from collections.abc import Callable, Sequence

from schemas.events import BlockEvent
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

_BLOCKS = 12


class WrittenPublisher:
    """One publisher, and where it stands in the log.

    Args:
        append: takes a record of it.
    """

    def __init__(self, number: int, rng: random.Random, append: Callable[[bytes], None]) -> None:
        self.registration = registration(f"engine-{number}", port=5557 + number)
        self.registered = False
        self._rng = rng
        self._append = append
        self._incarnation, self._sequence = 1, -1
        self._last = b""

    def step(self) -> None:
        """One more record."""
        steps: list[tuple[int, Callable[[], None]]] = [
            (16, self._events),
            (4, self._parts),
            (1, self._gap),
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
            self._incarnation, self._sequence = self._incarnation + 1, -1
        self.registered = True
        self._append(registered_record(self.registration))

    def _unregister(self) -> None:
        self.registered = False
        self._append(unregistered_record(self.registration))

    def _events(self) -> None:
        first = self._sequence + 1
        last = first + self._rng.choice((0, 0, 2))
        events = [event for at in range(first, last + 1) for event in self._batch(at)]
        self._sequence = last
        stream = self.registration.stream
        self._last = events_record(
            first, last, events, incarnation=self._incarnation, stream=stream
        )
        self._append(self._last)

    def _parts(self) -> None:
        """A batch of which each record has a part; now and then its bridge ends in the middle, and
        the next one writes all of it again, or finds it lost.
        """
        sequence = self._sequence = self._sequence + 1
        events = [one for _ in range(self._rng.randint(2, 5)) for one in self._batch(sequence)]
        for _ in range(self._rng.choice((0, 0, 0, 1, 2))):
            parts = self._in_parts(sequence, events)
            for part in parts[: self._rng.randint(1, len(parts))]:
                self._append(part)
        if self._rng.random() < 0.1:
            stream = self.registration.stream
            self._append(
                gap_record(sequence, sequence, incarnation=self._incarnation, stream=stream)
            )
            return
        for part in self._in_parts(sequence, events):
            self._last = part
            self._append(part)

    def _in_parts(self, sequence: int, events: Sequence[BlockEvent]) -> list[bytes]:
        ends = [at for at in range(1, len(events)) if self._rng.random() < 0.5] + [len(events)]
        return [
            events_record(
                sequence,
                sequence,
                events[first:end],
                incarnation=self._incarnation,
                stream=self.registration.stream,
                part=Part(first, end, len(events)),
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
        tokens = list(range(BLOCK * block, BLOCK * (block + count)))
        parent = None if block == 1 or self._rng.random() < 0.3 else block - 1
        return [stored(sequence, list(range(block, block + count)), tokens, parent=parent)]

    def _gap(self) -> None:
        first = self._sequence + 1
        self._sequence = first + self._rng.randint(0, 3)
        stream = self.registration.stream
        self._append(
            gap_record(first, self._sequence, incarnation=self._incarnation, stream=stream)
        )

    def _reset(self) -> None:
        self._incarnation, self._sequence = self._incarnation + 1, -1
        self._append(reset_record(self._incarnation, stream=self.registration.stream))

    def _again(self) -> None:
        if self._last:
            self._append(self._last)  # it was acknowledged to nobody


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
