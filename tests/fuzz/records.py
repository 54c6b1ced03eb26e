"""What nobody can use, or nobody expects, in each topic: of publishers of its own, or of nobody.

Nothing here is written under a key of a good publisher: whoever may write there may also lie.
"""

from random import Random
from typing import Final

import msgspec

from schemas.events import BlockEvent
from schemas.identities import ModelContext
from schemas.memory_segments import SegmentKey, SegmentState
from schemas.positions import Heartbeat, PublisherState
from schemas.records import NEWEST_VERSION, encode_record
from schemas.registration import LiveRegistration, Registration
from schemas.topics import CursorNote, encode_note, encode_publisher, encode_registration
from streams.table.fold import UnprovenState
from streams.table.rows import format as rows
from streams.table.rows.format import RowKind, RowPlace
from tests.building import (
    cleared,
    events_record,
    gap_record,
    heartbeat_record,
    memory_record,
    registered_record,
    registration,
    removed,
    report,
    reset_record,
    stored,
    unregistered_record,
)
from tests.fuzz.mutation import NUMBERS, Base, Mutator

PUBLISHERS: Final = 500
_ROW_KEYS: Final = (rows.CONTEXT, rows.MARK, rows.PUBLISHER, rows.REGISTRATION, rows.FACT)

Entry = tuple[bytes, bytes | None]
"""Key and value."""


class Records:
    """Endless; equal seeds make equal ones."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._mutator = Mutator(self._random)
        self._sequences = [0] * PUBLISHERS
        self._registrations = [
            registration(f"poison-{number}", port=6000 + number) for number in range(PUBLISHERS)
        ]

    def _mutated(self, valid: bytes) -> bytes:
        if self._random.randrange(50) == 0:
            return msgspec.msgpack.encode({"version": NEWEST_VERSION + 1, "kind": "novelty"})
        return self._mutator.encoded(Base(msgspec.msgpack.decode(valid)))

    def _one(self) -> Registration:
        return self._random.choice(self._registrations)

    # events

    def event(self) -> bytes:
        """A value of `events`."""
        return self._mutated(self._valid_event())

    def _valid_event(self) -> bytes:
        number = self._random.randrange(PUBLISHERS)
        one = self._registrations[number]
        sequence = self._sequences[number]
        self._sequences[number] += 1
        match self._random.randrange(13):
            case 0:
                return gap_record(sequence, sequence, stream=one.stream)
            case 1:
                return reset_record(self._random.randrange(5), stream=one.stream)
            case 2:
                return registered_record(one)
            case 3:
                return unregistered_record(one)
            case 4:
                reports = [report(one, self._random.choice(("", "link")))]
                bridge = f"bridge-{self._random.randrange(40)}"
                uptime = float(self._random.randrange(1000))
                return heartbeat_record(bridge, uptime, reports, complete=uptime > 900)
            case 5:
                change = self._random.choice(("appeared", "changed", "disappeared"))
                segment = f"kvcached_{self._random.randrange(40)}"
                return encode_record(memory_record(segment, change=change, at=float(sequence)))
        events = [self._block_event(sequence) for _ in range(self._random.randrange(3))]
        return events_record(sequence, sequence, events, stream=one.stream)

    def _block_event(self, sequence: int) -> BlockEvent:
        hashes = [self._random.randrange(64) for _ in range(self._random.randrange(4))]
        match self._random.randrange(8):
            case 0:
                return cleared(sequence)
            case 1 | 2:
                return removed(sequence, hashes)
        return stored(sequence, hashes, range(4 * len(hashes)))

    # registry and cursors

    def registry(self) -> Entry:
        """An entry of `registry`, now and then a tombstone."""
        one = self._one()
        key, value = encode_publisher(one.publisher), encode_registration(one)
        if self._random.randrange(20) == 0:
            return key, None
        return self._key_or_value(key, value)

    def cursor(self) -> Entry:
        """An entry of `cursors`."""
        numbers = [self._random.choice((0, 1, 5, 2**40)) for _ in range(3)]
        note = CursorNote(
            incarnation=numbers[0], sequence=numbers[1], partition=0, offset=numbers[2]
        )
        return self._key_or_value(encode_publisher(self._one().publisher), encode_note(note))

    def _key_or_value(self, key: bytes, value: bytes) -> Entry:
        if self._random.randrange(5) == 0:
            return self._mutated(key), value
        return key, self._mutated(value)

    # table

    def row(self, *, contexts: bool = True) -> Entry:
        """An entry of `table`.

        Args:
            contexts: also rows of contexts whose checksum is right: a replica takes what is missing
                between them for a topic that was recreated, and reads it again from its beginning.
        """
        key, body = self._valid_row(contexts=contexts)
        if self._random.randrange(30) == 0 and key[:1] != rows.FACT:
            return key, None
        kind = self._random.choice((RowKind.DELTA, RowKind.DELTA, RowKind.CHUNK))
        covers = self._random.choice((0, 0, 1, 50, 10**6, 2**62))
        value = rows.encode_row(kind, covers, body)
        match self._random.randrange(6):
            case 0:
                return self._spoilt(key), value
            case 1:
                return key, self._mutator.raw(value)
            case 2:
                return rows.COVERED_KEY, self._spoilt(value)
        return key, value

    def _spoilt(self, valid: bytes) -> bytes:
        """Not such a row, or key, by any chance: a `covered` row says what all others are."""
        spoilt = self._mutator.raw(valid)
        return spoilt[:3] + b"\xff" + spoilt[4:7]

    def _valid_row(self, *, contexts: bool) -> tuple[bytes, bytes]:
        one = self._one()
        context = ModelContext("default", "m", "", 4, "", one.instance_id)
        match self._random.randrange(7 if contexts else 5):
            case 0:
                state = PublisherState(incarnation=1, sequence=self._random.randrange(9))
                key = rows.publisher_key(rows.PUBLISHER, one.publisher)
                return key, self._mutated(msgspec.msgpack.encode(state))
            case 1:
                key = rows.publisher_key(rows.REGISTRATION, one.publisher)
                return key, self._mutated(msgspec.msgpack.encode(LiveRegistration(one, 3)))
            case 2:
                key = rows.bridge_key(f"bridge-{self._random.randrange(40)}")
                beat = msgspec.msgpack.encode(Heartbeat(1.0, 2.0))
                return key, self._mutated(beat)
            case 3:
                unproven = UnprovenState(3, (one.publisher,))
                return rows.UNPROVEN_KEY, self._mutated(msgspec.msgpack.encode(unproven))
            case 4:
                segment = SegmentKey("host", f"kvcached_{self._random.randrange(40)}")
                known = SegmentState(
                    bridge="b", inode=1, total=9, used=1, preallocated=0, observed_at=1.0,
                    changed_at=1.0, since=1.0,
                )  # fmt: skip
                return rows.segment_key(segment), self._mutated(msgspec.msgpack.encode(known))
            case 5:
                generation = self._random.choice((0, 1, 2, 2**31 - 1, 2**32 - 1))
                return rows.mark_key(context), generation.to_bytes(4, "little")
        number = self._random.choice(NUMBERS) % 2**63
        key = rows.row_key(RowPlace(context, self._random.choice((0, 0, 1, 2**31)), number))
        return key, self._random.randbytes(self._random.choice((0, 1, 23, 24, 48, 240)))
