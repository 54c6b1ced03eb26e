"""The fold of the routing log: what is under way, and what has been learned, as of an offset.

`apply(offset, record)` is deterministic: no clock, no I/O, no randomness. Two folds of the same
records have the same state, byte for byte, and so the same digest, whoever made them, and whether
from the beginning or from a checkpoint.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import xxhash

from routing.estimates.estimates import Estimates, EstimatesError
from routing.fold.booking import Booking, happened_at
from routing.fold.bookings import BookingReport, Bookings, BookingsState
from routing.fold.expectations import observed_of
from routing.fold.failures import Failures, FailuresState
from routing.fold.samples import Samples
from routing.incremental_encoding import array_header, bytes_pieces, pieces_of
from routing.observed.observations import Observations
from schemas.codec import check_state_version
from schemas.errors import RecordFormatError
from schemas.routing_records import (
    Decision,
    DecisionsRecord,
    LoadRecord,
    LoadSample,
    OutcomesRecord,
    RoutingRecord,
    UnregisteredEngines,
)

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
    estimates: bytes
    observations: bytes
    failures: FailuresState = FailuresState()


class BookingChanges(NamedTuple):
    """What a record changed of bookings, beside booking its decisions.

    Attributes:
        reported: what was new of what it reports, or of what was reported before its decisions.
        expired: bookings that ended before it, without a report.
        released: bookings at engines that it says are registered no more.
    """

    reported: list[BookingReport]
    expired: list[Booking]
    released: list[Booking]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RoutingState)


class RoutingFold:
    """See the module.

    Attributes:
        offset: of the last record that was applied, -1 for none.
        samples: what engines say.
        estimates: what outcomes have taught of times.
        observations: what decisions and outcomes show.
        failures: whose requests fail.
    """

    def __init__(self) -> None:
        self.offset = -1
        self.bookings = Bookings()
        self.samples = Samples()
        self.estimates = Estimates()
        self.observations = Observations()
        self.failures = Failures()

    def apply(self, offset: int, record: RoutingRecord) -> BookingChanges:
        """Folds the record at that offset; one that was folded is skipped. Cost O(its content)."""
        changes = BookingChanges([], [], [])
        if offset <= self.offset:
            return changes
        self.offset = offset
        changes.expired.extend(self.bookings.advance(record.time, record.run))
        self.observations.advance(self.bookings.clock, self.bookings.is_under_way)
        match record:
            case DecisionsRecord():
                for decision in record.decisions:
                    changes.reported.extend(self._decided(record.run, decision))
            case OutcomesRecord():
                for outcome in record.outcomes:
                    for reported in self.bookings.report(record.run, outcome):
                        self._reported(record.run, reported)
                        changes.reported.append(reported)
            case LoadRecord():
                for sample in record.samples:
                    self.samples.note(sample)
            case UnregisteredEngines():
                changes.released.extend(self.bookings.release(record.engines))
                for engine in record.engines:
                    self.samples.forget(engine.target)
                self.observations.forget(record.engines)
                self.failures.forget(record.engines)
        return changes

    def _decided(self, run: int, decision: Decision) -> list[BookingReport]:
        """What had been reported of it before."""
        if self.bookings.has_seen(run, decision.number):
            return []
        early = self.bookings.book(run, decision)
        self.failures.decided(self.bookings.clock, decision)
        self.observations.decided(run, decision)
        for reported in early:
            self._reported(run, reported)
        return early

    def _reported(self, run: int, reported: BookingReport) -> None:
        (booking, outcome), clock = reported, self.bookings.clock
        self.observations.reported(run, outcome)
        self.failures.reported(clock, booking, outcome.event)
        if booking.lesson is not None:
            at = happened_at(outcome, booking, clock)
            observed = observed_of(
                booking.lesson,
                outcome,
                tenant_id=booking.tenant_id,
                prompt=booking.prompt,
                cached=booking.cached,
                since_s=at - booking.time,
                decode_s=at - booking.first_at if booking.first_at else 0.0,
            )
            self.estimates.note(observed)

    @property
    def forgotten(self) -> dict[str, int]:
        """What was given up for want of room, by what it is."""
        learned = self.estimates.counters()["classes_forgotten"]
        failures = self.failures.dropped
        return self.observations.forgotten | {"estimates": learned, "failures": failures}

    @property
    def digest(self) -> str:
        """Of all of the state. Cost O(state)."""
        total = xxhash.xxh3_64()
        for piece in self.pieces():
            total.update(piece)
        return f"{total.intdigest():016x}"

    def dump(self) -> bytes:
        """The state as a checkpoint. Cost O(state)."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The same in pieces, some of them empty. Each takes some milliseconds at most, so that
        others have their turn between two; nothing may be applied meanwhile.
        """
        yield array_header(len(RoutingState.__struct_fields__))
        yield _encoder.encode(STATE_VERSION)
        yield _encoder.encode(self.offset)
        yield from pieces_of(self.bookings.state())
        yield from pieces_of(self.samples.all())
        yield from bytes_pieces(self.estimates.pieces())
        yield from bytes_pieces(self.observations.pieces())
        yield from pieces_of(self.failures.state())

    @classmethod
    def load(cls, encoded: bytes) -> "RoutingFold":
        """The inverse of `dump`.

        Raises:
            NewerVersionError: a newer Reprise wrote it.
            RecordFormatError: no checkpoint.
        """
        try:
            check_state_version(encoded, "a checkpoint of routing", STATE_VERSION)
            state = _decoder.decode(encoded)
        except (msgspec.DecodeError, ValueError) as error:
            raise RecordFormatError(detail=f"no checkpoint of routing: {error}") from error
        fold = cls()
        fold.offset = state.offset
        fold.bookings.restore(state.bookings)
        fold.samples.restore(state.samples)
        try:
            fold.estimates.load(state.estimates)
        except EstimatesError as error:
            raise RecordFormatError(detail=str(error)) from error
        fold.observations = Observations.load(state.observations)
        fold.failures.restore(state.failures)
        return fold
