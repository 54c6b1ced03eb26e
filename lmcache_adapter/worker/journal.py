"""What becomes of one worker, as records of the log. Pure but for the clock that is passed in.

LMCache numbers the operations of each location; the log numbers batches of a publisher. So the
numbers here are our own, from 0 in each incarnation: a batch is what came together.
"""

from array import array
from collections.abc import Callable
from typing import Final

from bridge.publisher.window import Window
from lmcache_adapter.wire.locations import Tier
from schemas.arrays import to_little_endian
from schemas.events import BlockEvent, RemovedBlocks, StoredBlocks, encode_run
from schemas.identities import PublisherKey
from schemas.limits import RECORD_BYTES_MAX
from schemas.records import Record, RegisteredRecord, UnregisteredRecord
from schemas.registration import Registration

LMCACHE_BATCH_KEYS: Final = 4096  # of one batch in the log: 32 KiB of a record

_EVENT_HEADER_BYTES: Final = 96  # of an event beside its hashes, at most

NextIncarnation = Callable[[PublisherKey], int]
"""At least which number the next incarnation of a publisher is to have."""


class Journal:
    """What is to be written of one publisher, in order. One owner.

    Args:
        publisher: whose.
        next_incarnation: see `NextIncarnation`.
        clock: Unix seconds.
    """

    def __init__(
        self,
        publisher: PublisherKey,
        next_incarnation: NextIncarnation,
        clock: Callable[[], float],
    ) -> None:
        self.publisher = publisher
        self._next_incarnation = next_incarnation
        self._clock = clock
        self._incarnation = 0
        self._sequence = -1
        self._records: list[Record] = []
        self._window: Window | None = None
        self._events: list[BlockEvent] = []
        self._events_bytes = 0
        self._tier: Tier | None = None
        self._is_stored = False
        self._keys = array("Q")

    # What happens

    def register(self, registration: Registration) -> None:
        """The worker is there."""
        self._add(RegisteredRecord.of(registration, self._clock()))

    def unregister(self) -> None:
        """The worker is no more."""
        self._add(UnregisteredRecord.of(self.publisher, self._clock()))

    def begin(self, reason: str) -> None:
        """Whatever the log has of the worker's blocks is void; what it holds follows."""
        self._close_batch()
        self._incarnation = max(self._incarnation + 1, self._next_incarnation(self.publisher))
        self._sequence = -1
        self._open_window().add_reset(incarnation=self._incarnation, reason=reason)

    def gap(self, reason: str) -> None:
        """Operations are missing here."""
        self._close_batch()
        self._sequence += 1
        lost = self._sequence
        self._open_window().add_gap(
            incarnation=self._incarnation, first=lost, last=lost, reason=reason
        )

    def put(self, tier: Tier, key: int, *, is_stored: bool) -> None:
        """A chunk is stored, or is no longer. Cost O(1)."""
        if tier is not self._tier or is_stored is not self._is_stored:
            self._close_event()
            self._tier, self._is_stored = tier, is_stored
        elif len(self._keys) >= LMCACHE_BATCH_KEYS:
            self._close_event()
        self._keys.append(key)

    def take(self) -> list[Record]:
        """All that was not taken yet."""
        self._close_batch()
        self._close_window()
        taken, self._records = self._records, []
        return taken

    # Packing

    def _add(self, record: Record) -> None:
        self._close_batch()
        self._close_window()
        self._records.append(record)

    def _open_window(self) -> Window:
        if self._window is None:
            self._window = Window(self.publisher, self._clock())
        return self._window

    def _close_window(self) -> None:
        if self._window is not None:
            self._records += self._window.close()
            self._window = None

    def _close_event(self) -> None:
        if not self._keys:
            return
        size_bytes = _EVENT_HEADER_BYTES + 8 * len(self._keys)
        if self._events_bytes + size_bytes > RECORD_BYTES_MAX:
            self._write_batch()
        self._events.append(self._event(self._sequence + 1, to_little_endian(self._keys)))
        self._events_bytes += size_bytes
        self._keys = array("Q")

    def _event(self, sequence: int, hashes: bytes) -> BlockEvent:
        assert self._tier is not None, "an event has keys of a tier"
        medium, shared = self._tier
        if not self._is_stored:
            return RemovedBlocks(sequence=sequence, hashes=hashes, medium=medium, shared=shared)
        return StoredBlocks(
            sequence=sequence,
            hashes=hashes,
            block_size=self.publisher.stream.block_size,
            medium=medium,
            shared=shared,
            by_hash=True,
        )

    def _close_batch(self) -> None:
        self._close_event()
        self._write_batch()

    def _write_batch(self) -> None:
        if not self._events:
            return
        assert self._incarnation, "begin comes before everything else"
        self._sequence += 1
        self._open_window().add_batch(
            incarnation=self._incarnation,
            sequence=self._sequence,
            engine_time=self._clock(),
            event_count=len(self._events),
            run=encode_run(self._events),
        )
        self._events, self._events_bytes = [], 0
