"""Sequencers of several publishers, and the intake that turns their messages into records."""

from collections.abc import Sequence

from bridge.publisher.counters import PublisherCounters
from bridge.publisher.held_batches import IntakeTotals
from bridge.publisher.sequencer import Intake, Sequencer
from bridge.sockets.raw_message import RawMessage, Received
from bridge.wire import DecodedBatch
from schemas.arrays import ArrayPacker
from schemas.clock import REAL_CLOCK
from schemas.identities import PublisherKey
from schemas.positions import NO_CURSOR, Cursor
from schemas.records import SequencedRecord
from schemas.registration import Registration

CLOCK = REAL_CLOCK
"""What they are handed; a test that needs another sets it."""


class Sequencers:
    """See the module."""

    def __init__(self, packer: ArrayPacker | None = None) -> None:
        self.totals = IntakeTotals(clock=CLOCK)
        self._packer = packer
        self._sequencers: dict[PublisherKey, Sequencer] = {}
        self._intake = Intake(self._sequencers.get, CLOCK)

    def __getitem__(self, publisher: PublisherKey) -> Sequencer:
        return self._sequencers[publisher]

    def add(
        self, registration: Registration, cursor: Cursor = NO_CURSOR, *, repairs: bool = False
    ) -> None:
        self._sequencers[registration.publisher] = Sequencer(
            registration, cursor, repairs=repairs, packer=self._packer, totals=self.totals
        )

    def remove(self, publisher: PublisherKey) -> None:
        self._sequencers.pop(publisher).forget()

    def process(self, received: Sequence[Received], now: float) -> list[SequencedRecord]:
        return self._intake.process(received, now)

    def process_until(
        self, received: Sequence[Received], now: float, until: float
    ) -> tuple[list[SequencedRecord], int]:
        return self._intake.process_until(received, now, until)

    def decode(self, message: RawMessage) -> DecodedBatch | None:
        return self._sequencers[message.publisher].decode(message)

    def take_gaps(self) -> list[PublisherKey]:
        return self.totals.take_gaps()

    def counters(self) -> dict[PublisherKey, PublisherCounters]:
        return {key: one.stream.counters for key, one in self._sequencers.items()}

    @property
    def faults(self) -> int:
        return self.totals.faults

    @property
    def held_bytes(self) -> int:
        return self.totals.held_bytes

    @property
    def unregistered_messages(self) -> int:
        return self._intake.unregistered_messages
