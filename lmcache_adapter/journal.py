"""What becomes of one worker, as records of the log. Pure but for the clock that is passed in.

LMCache numbers the operations of each location; the log numbers batches of a publisher. So the
numbers here are our own, from 0 in each incarnation: a batch is what came together, and what is
missing of LMCache's own numbers is one batch that is lost. Nothing is judged here.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from bridge.publisher.tracker import NumberTracker
from bridge.publisher.window import Window
from lmcache_adapter.wire.locations import Tier
from schemas.answer_states import Doubt
from schemas.arrays import to_little_endian
from schemas.events import BlockEvent, RemovedBlocks, StoredBlocks, encode_run
from schemas.identities import PublisherKey
from schemas.limits import RECORD_BYTES_MAX
from schemas.positions import Cursor
from schemas.records import Record, RegisteredRecord, UnregisteredRecord
from schemas.registration import Registration

LMCACHE_BATCH_KEYS: Final = 4096  # of one batch in the log: 32 KiB of a record

_EVENT_HEADER_BYTES: Final = 96  # of an event beside its hashes, at most

NextIncarnation = Callable[[PublisherKey], int]
"""At least which number the next incarnation of a publisher is to have."""


class WorkerReport(NamedTuple):
    """What has become of a publisher since it was last asked: all of it in this order.

    Attributes:
        records: for the log, in order.
        doubt: why it is not confirmed behind them, or None.
        is_gone: whether it is forgotten behind them.
    """

    publisher: PublisherKey
    records: Sequence[Record]
    doubt: Doubt | None
    is_gone: bool = False


class Journal:
    """What is to be written of one publisher, in order. One owner.

    Args:
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
        self._numbers = NumberTracker()
        self._doubt: Doubt | None = Doubt.CATCHING_UP  # that was told last
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

    def begin(self, reason: str) -> None:
        """Whatever the log has of the worker's blocks is void; what it holds follows."""
        self._close_batch()
        self._numbers.begin_incarnation(self._next_incarnation(self.publisher))
        self._open_window().add_reset(incarnation=self._numbers.incarnation, reason=reason)

    def rewrite(
        self, reason: str, held: Iterable[tuple[Tier, Iterable[int]]], lost: str = ""
    ) -> None:
        """Whatever the log has is void, and this is what the worker holds, as far as that is known.

        Args:
            reason: why it is void.
            held: keys by tier.
            lost: why something of it is not known, or "".
        """
        self.begin(reason)
        for tier, keys in held:
            for key in keys:
                self.put(tier, key, is_stored=True)
        if lost:
            self.gap(lost)

    def gap(self, reason: str) -> None:
        """Operations are missing here."""
        self._close_batch()
        incarnation, lost = self._next()
        self._open_window().add_gap(incarnation=incarnation, first=lost, last=lost, reason=reason)

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

    def report(self, doubt: Doubt | None) -> WorkerReport | None:
        """What was not taken yet, and why the publisher is not confirmed behind it; None where both
        are no news.
        """
        records = self.take()
        if not records and doubt is self._doubt:
            return None
        self._doubt = doubt
        return WorkerReport(self.publisher, records, doubt)

    def end(self) -> WorkerReport:
        """The last report: the worker is no more."""
        self._add(UnregisteredRecord.of(self.publisher, self._clock()))
        return gone(self.publisher, self.take())

    # Packing

    def _next(self) -> Cursor:
        """The number of the next batch in the log."""
        assert self._numbers.incarnation, "begin comes before everything else"
        self._numbers.sequence += 1
        return self._numbers.cursor

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
        self._events.append(self._event(self._numbers.sequence + 1, to_little_endian(self._keys)))
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
        incarnation, sequence = self._next()
        self._open_window().add_batch(
            incarnation=incarnation,
            sequence=sequence,
            engine_time=self._clock(),
            event_count=len(self._events),
            run=encode_run(self._events),
        )
        self._events, self._events_bytes = [], 0


def gone(publisher: PublisherKey, records: Sequence[Record] = ()) -> WorkerReport:
    """The last report of a publisher."""
    return WorkerReport(publisher, records, Doubt.NOT_FOLLOWED, is_gone=True)
