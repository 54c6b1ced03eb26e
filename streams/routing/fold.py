"""The fold of the routing log: what is under way, and what has been learned, as of an offset.

`apply(offset, record)` is deterministic: no clock, no I/O, no randomness. Two folds of the same
records have the same state, byte for byte, and so the same digest, whoever made them, and whether
from the beginning or from a checkpoint.
"""

from typing import Final

import msgspec
import xxhash

from schemas.errors import RecordFormatError
from schemas.routing_records import (
    DecisionsRecord,
    LoadRecord,
    LoadSample,
    OutcomesRecord,
    RoutingRecord,
)
from streams.routing.bookings import Bookings, BookingsState, Reported
from streams.routing.samples import Samples

STATE_VERSION: Final = 1


class RoutingState(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint: all that a fold has, as of an offset. Its encoding is canonical.

    Attributes:
        version: of this form; an older one is read, a newer one is refused.
        offset: of the last record, -1 for none.
    """

    version: int
    offset: int
    bookings: BookingsState
    samples: tuple[LoadSample, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RoutingState)


class RoutingFold:
    """See the module.

    Attributes:
        offset: of the last record that was applied, -1 for none.
        bookings: what is under way.
        samples: what engines say.
    """

    def __init__(self) -> None:
        self.offset = -1
        self.bookings = Bookings()
        self.samples = Samples()

    def apply(self, offset: int, record: RoutingRecord) -> None:
        """Folds the record at that offset; one that was folded is skipped. Cost O(its content)."""
        if offset <= self.offset:
            return
        self.offset = offset
        self.bookings.advance(record.time)
        match record:
            case DecisionsRecord():
                for decision in record.decisions:
                    for reported in self.bookings.book(record.run, decision):
                        self._learn(reported)
            case OutcomesRecord():
                for outcome in record.outcomes:
                    for reported in self.bookings.report(record.run, outcome):
                        self._learn(reported)
            case LoadRecord():
                for sample in record.samples:
                    self.samples.note(sample)

    def _learn(self, reported: Reported) -> None:
        """Something is known of a decision that was not known before."""

    @property
    def digest(self) -> str:
        """Of all of the state. Cost O(state)."""
        return f"{xxhash.xxh3_64_intdigest(self.dump()):016x}"

    def dump(self) -> bytes:
        """The state as a checkpoint. Cost O(state)."""
        return _encoder.encode(
            RoutingState(STATE_VERSION, self.offset, self.bookings.state(), self.samples.all())
        )

    @classmethod
    def load(cls, encoded: bytes) -> "RoutingFold":
        """The inverse of `dump`.

        Raises:
            RecordFormatError: no checkpoint, or a newer Reprise wrote it.
        """
        try:
            state = _decoder.decode(encoded)
        except (msgspec.DecodeError, ValueError) as error:
            raise RecordFormatError(detail=f"no checkpoint of routing: {error}") from error
        if state.version > STATE_VERSION:
            detail = f"a checkpoint of routing of version `{state.version}`"
            raise RecordFormatError(detail=f"{detail}, which a newer Reprise wrote")
        fold = cls()
        fold.offset = state.offset
        fold.bookings.restore(state.bookings)
        fold.samples.restore(state.samples)
        return fold
