"""What the log already has of each publisher, so that a bridge that takes over continues there.

The topic `cursors` has a note of each publisher: its stored cursor, written within CURSOR_NOTE_S
of the acknowledgement of its records. The records of `events` from the noted offset on tell the
rest. Two rules keep that short and correct:

- A publisher's first note is acknowledged before its first record is sent. So where there is no
  note, there is no record, and nothing needs to be read. Only where the partition of `cursors` was
  never written to (the topic was lost, or all is new) are the events read from their beginning.
- The note of a publisher that is silent is written again before the events have gone on by
  CURSOR_NOTE_BEHIND_RECORDS_MAX.

Where retention has dropped records behind a note, and no batch of the publisher is left, tables may
have folded incarnations of which no bridge knows. Each takes a record at least: the publisher goes
on in an incarnation that so many records cannot have reached.

Incarnations keep rising when a publisher is unregistered and registered again, so a late record of
an earlier registration is never taken for one of the next.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from bridge.publisher.anchor import Anchor
from brokers.client_types import Consumer, Message, Partition
from brokers.clients import Clients, partition_of
from brokers.reading import read_to_end, started_consumer
from logs.producer import ReplaceableProducer
from logs.skipped import SkippedMessages
from schemas.codec import (
    TOO_MANY,
    CursorEntry,
    decode_cursor_entry,
    decode_log_record,
    decode_record_events,
)
from schemas.errors import EntryError
from schemas.identities import PublisherKey
from schemas.limits import PUBLISHERS_MAX, REGISTRY_ENTRIES_MAX
from schemas.positions import NO_CURSOR, Cursor, ProcessMark, Proof, media_continued, media_of_next
from schemas.records import (
    BridgeRecord,
    EventsRecord,
    Record,
    RegisteredRecord,
    UnregisteredRecord,
)
from schemas.registration import Registration
from schemas.topics import (
    CursorNote,
    Handover,
    Topics,
    encode_note,
    encode_publisher,
    encode_registration,
    encode_stream,
)

CURSOR_NOTE_BEHIND_RECORDS_MAX: Final = 20_000  # an older one makes a takeover slow
CURSOR_NOTES_MAX: Final = 262_144  # of all publishers ever; reason="too_many"

assert PUBLISHERS_MAX <= REGISTRY_ENTRIES_MAX <= CURSOR_NOTES_MAX, "all publishers are remembered"

UNREGISTERED: Final = 0
CHECKSUM: Final = "checksum"
"""Reason of a record that Kafka finds damaged, beside those of the errors."""


def fingerprint(registration: Registration) -> int:
    """Tells registrations of one publisher apart; never UNREGISTERED."""
    return crc32(encode_registration(registration)) or 1


@dataclass(slots=True)
class LogState:
    """What the log has of one publisher.

    Attributes:
        cursor: its last batch, or gap.
        engine_time: of that batch, 0 where it is not known.
        proof, begun, heard, window, media: see `Anchor`.
        process: of its engine, where that is known.
        registered: `fingerprint` of the registration that the log has, or UNREGISTERED.
        registered_at: the offset of the record that says so; 0 where it is not known.
        handover: see `CursorNote`.
        offset: everything before it is known.
        noted: whether its note is in `cursors`.
        noted_offset: of the last note.
        home: the publisher's partition of the registry.
        is_due: whether it has moved since it was noted last.
        has_unread: whether records behind what is known are gone unread, so that it may be
            registered in a table though `registered` is UNREGISTERED.
    """

    partition: int
    cursor: Cursor = NO_CURSOR
    engine_time: float = 0.0
    proof: Proof | None = None
    begun: float | None = None
    process: ProcessMark | None = None
    heard: Proof | None = None
    registered: int = UNREGISTERED
    registered_at: int = 0
    handover: Handover | None = None
    window: int | None = None
    media: int = 0
    offset: int = 0
    noted: bool = False
    noted_offset: int = 0
    home: int = -1
    is_due: bool = False
    has_unread: bool = False

    @property
    def anchor(self) -> Anchor:
        """The cursor, with the engine time that identifies its batch."""
        return Anchor(
            self.cursor,
            self.engine_time,
            self.proof,
            self.begun,
            self.heard,
            self.window,
            self.media,
        )

    @anchor.setter
    def anchor(self, anchor: Anchor) -> None:
        self.cursor, self.engine_time, self.proof = anchor.cursor, anchor.engine_time, anchor.proof
        self.begun, self.heard = anchor.begun, anchor.heard
        self.window, self.media = anchor.window, anchor.media

    def take(self, record: Record, offset: int) -> None:
        """Follows one record of the publisher in the log; one that is known already is passed over:
        a partition is read from where the first of its publishers stands.
        """
        if offset < self.offset:
            return
        self.offset = offset + 1
        if isinstance(record, RegisteredRecord):
            if self.registered == UNREGISTERED:
                self.begin_registration()
            self.registered = fingerprint(record.registration)
            self.registered_at, self.has_unread = offset, False
        elif isinstance(record, UnregisteredRecord):
            self.unregister(record)
        else:
            if record.last > self.cursor:
                self.anchor = self.anchor.after(record)

    def unregister(self, record: UnregisteredRecord) -> None:
        """Nothing is known of it any more, but where it continues of other tiers and of pools."""
        self.registered, self.has_unread = UNREGISTERED, False
        self.media = media_continued(self.media) if record.continues is True else 0

    def begin_registration(self) -> None:
        """A publisher is registered again after it was unregistered: nothing from before counts,
        but what `unregister` has left.

        May be said again: whoever takes over may have begun, and noted that, and died before the
        log had it.
        """
        if self.cursor.sequence >= 0 or self.begun is not None:
            self._begin_incarnation(self.cursor.incarnation + 1)
        self.begun = self.heard = self.window = None

    def begin_behind(self, retired: int) -> None:
        """So many records behind what is known are gone unread, and no batch came behind them.

        Each may have been of the publisher, and have begun an incarnation.
        """
        self._begin_incarnation(self.cursor.incarnation + retired + 1)
        self.begun = self.heard = self.window = None
        self.media, self.is_due = media_of_next(self.media), True
        self.has_unread = True

    def _begin_incarnation(self, number: int) -> None:
        self.cursor = Cursor(number, -1)
        self.engine_time, self.proof = 0.0, None

    def note(self) -> CursorNote:
        """What the next bridge needs to know."""
        return CursorNote(
            incarnation=self.cursor.incarnation,
            sequence=self.cursor.sequence,
            partition=self.partition,
            offset=self.offset,
            engine_time=self.engine_time,
            registered=self.registered,
            registered_at=self.registered_at,
            proof=self.proof,
            begun=self.begun,
            process=self.process,
            heard=self.heard,
            handover=self.handover,
            window=self.window,
            media=self.media,
        )


class Cursors:
    """What the log has of the publishers of some partitions of the registry. One loop.

    Attributes:
        skipped: notes and records that cannot be used.
    """

    def __init__(self, clients: Clients, topics: Topics) -> None:
        self.skipped = SkippedMessages("message")
        self._clients = clients
        self._topics = topics
        self._states: dict[PublisherKey, LogState] = {}
        self._never_written: set[int] = set()
        self._incomplete: set[int] = set()  # partitions with more notes than there was room for
        self._storing = asyncio.Lock()
        self._read_to: dict[int, int] = {}  # by partition, the end when it was loaded

    # Recovery

    async def load(self, partitions: Iterable[int]) -> None:
        """Reads the notes of these partitions; replaces what was known of their publishers.

        Raises:
            KafkaError: the broker went away.
        """
        starts = dict.fromkeys(partitions, 0)
        self.forget(starts)
        if not starts:
            return
        async with started_consumer(self.open_reader()) as reader:
            take = self.skipped.guarded(self.topic, self._take_note)
            ends = await read_to_end(reader, self.topic, starts, take)
        self._read_to |= ends
        self._never_written -= set(starts)
        self._never_written |= {partition for partition, end in ends.items() if end == 0}

    def forget(self, partitions: Iterable[int]) -> None:
        """Drops what is known of the publishers of these partitions."""
        gone = set(partitions)
        self._incomplete -= gone
        for publisher in [key for key, one in self._states.items() if one.home in gone]:
            self.drop(publisher)

    def retain(self, partitions: Iterable[int], others: Collection[PublisherKey]) -> None:
        """Drops what is known of all publishers but those of these partitions, and these others:
        who owns them now writes their notes.
        """
        kept = set(partitions)
        for publisher, state in list(self._states.items()):
            if state.home not in kept and publisher not in others:
                self.drop(publisher)

    def drop(self, publisher: PublisherKey) -> None:
        """Drops what is known of the publisher, if anything is."""
        self._states.pop(publisher, None)

    def read_to(self, home: int) -> int:
        """Up to where the notes of the partition were loaded last."""
        return self._read_to.get(home, 0)

    def read_note(self, message: Message) -> CursorEntry | None:
        """A later note of any publisher; None, counted, where it cannot be used."""
        try:
            return decode_cursor_entry(message.key, message.value)
        except EntryError as error:
            place = (self.topic, message.partition, message.offset)
            self.skipped.note(*place, error.reason, error)
            return None

    def adopt(self, publisher: PublisherKey, note: CursorNote) -> None:
        """Takes over what its former owner has noted last, of a publisher that is known."""
        before = self._states.get(publisher)
        if before is not None:
            self._set(publisher, before.home, self._state_of(publisher, note))

    def open_reader(self) -> Consumer:
        """A consumer of the notes, in no group, not started."""
        return self._clients.reader(committed=False)

    def _take_note(self, message: Message) -> None:
        try:
            publisher, note = decode_cursor_entry(message.key, message.value)
        except EntryError as error:
            if error.publisher is not None:  # there is a note, so there may be records
                unread = LogState(self.partition(error.publisher))
                self._set(error.publisher, message.partition, unread)
            raise
        self._set(publisher, message.partition, self._state_of(publisher, note))

    def _state_of(self, publisher: PublisherKey, note: CursorNote) -> LogState:
        partition = self.partition(publisher)
        return LogState(
            partition,
            cursor=Cursor(note.incarnation, note.sequence),
            engine_time=note.engine_time,
            registered=note.registered,
            registered_at=note.registered_at if note.partition == partition else 0,
            offset=note.offset if note.partition == partition else 0,
            proof=note.proof,
            begun=note.begun,
            process=note.process,
            heard=note.heard,
            handover=note.handover,
            window=note.window,
            media=note.media,
            noted=True,
            noted_offset=note.offset,
        )

    def _set(self, publisher: PublisherKey, home: int, state: LogState) -> None:
        before = self._states.get(publisher)
        if before is None and len(self._states) >= CURSOR_NOTES_MAX:
            self._incomplete.add(home)
            detail = f"one more publisher than {CURSOR_NOTES_MAX}"
            raise EntryError(TOO_MANY, detail=detail, publisher=publisher)
        state.home, state.is_due = home, before is not None and before.is_due
        self._states[publisher] = state

    async def recover(self, homes: Mapping[PublisherKey, int]) -> dict[PublisherKey, LogState]:
        """What the log has of these publishers now, read on from their notes.

        Args:
            homes: the publishers, with their partition of the registry, which has been loaded.

        Raises:
            KafkaError: the broker went away.
        """
        wanted: dict[PublisherKey, LogState] = {}
        recorded: list[PublisherKey] = []  # where there is no note, there is no record
        for publisher, home in homes.items():
            state = self._states.get(publisher)
            if state is None:
                state = self._states[publisher] = LogState(self.partition(publisher))
                if home in self._never_written | self._incomplete:
                    recorded.append(publisher)
            else:
                recorded.append(publisher)
            state.home = home
            wanted[publisher] = state
        if wanted:
            await self._read_events(wanted, recorded)
        return wanted

    async def _read_events(
        self, wanted: Mapping[PublisherKey, LogState], recorded: Iterable[PublisherKey]
    ) -> None:
        topic = self._topics.events.name
        starts: dict[int, int | None] = dict.fromkeys(one.partition for one in wanted.values())
        known: dict[
            PublisherKey, int
        ] = {}  # before which offset no batch of the publisher is missed

        def take(message: Message) -> None:
            record = decode_log_record(message.value or b"")
            if isinstance(record, BridgeRecord):
                return
            state = wanted.get(record.publisher)
            if state is not None:
                if isinstance(record, EventsRecord):
                    # The fold skips a record whose events do not decode: its batches are missing.
                    decode_record_events(record)
                state.take(record, message.offset)
                if not isinstance(record, RegisteredRecord | UnregisteredRecord):
                    known[record.publisher] = message.offset + 1

        def corrupt(partition: int, offset: int) -> None:
            self.skipped.note(topic, partition, offset, CHECKSUM, "wrong checksum")

        async with started_consumer(self.open_reader()) as reader:
            parts = [Partition(topic, number) for number in starts]
            found = await reader.end_offsets(parts)
            for publisher in recorded:
                state = wanted[publisher]
                if state.offset > found[Partition(topic, state.partition)]:
                    state.offset = 0  # of another topic of that name: nothing in this one is known
                start = starts[state.partition]
                known[publisher] = state.offset
                starts[state.partition] = min(
                    state.offset, state.offset if start is None else start
                )
            guarded = self.skipped.guarded(topic, take)
            ends = await read_to_end(reader, topic, starts, guarded, corrupt)
            begins = await reader.beginning_offsets(parts)
        for state in wanted.values():
            state.offset = ends[state.partition]
        for publisher, offset in known.items():
            begin = begins[Partition(topic, wanted[publisher].partition)]
            if offset < begin:
                wanted[publisher].begin_behind(begin - offset)

    # Following

    @property
    def topic(self) -> str:
        """The topic of the notes."""
        return self._topics.cursors.name

    def state(self, publisher: PublisherKey) -> LogState | None:
        """What is known of the publisher."""
        return self._states.get(publisher)

    def partition(self, publisher: PublisherKey) -> int:
        """Of the publisher's records in `events`."""
        return partition_of(encode_stream(publisher.stream), self._topics.events.partitions)

    def known(self, home: int) -> list[PublisherKey]:
        """The publishers of a partition of the registry that have ever been followed."""
        return [key for key, state in self._states.items() if state.home == home]

    def written(self, publisher: PublisherKey, record: Record, offset: int) -> None:
        """A record of the publisher has been acknowledged."""
        state = self._states.get(publisher)
        if state is not None:
            state.take(record, offset)
            state.is_due = True

    def note_process(self, publisher: PublisherKey, process: ProcessMark | None) -> None:
        """Which process of its engine published which incarnation."""
        state = self._states.get(publisher)
        if state is not None and process is not None and state.process != process:
            state.process = process
            state.is_due = True

    def advance(self, ends: Mapping[int, int]) -> None:
        """Marks the notes that have fallen behind; `ends`: by partition, what is acknowledged.

        No other bridge writes for these publishers, so all of their records are known.
        """
        for state in self._states.values():
            end = ends.get(state.partition, 0)
            is_behind = end - state.noted_offset > CURSOR_NOTE_BEHIND_RECORDS_MAX
            if is_behind and state.noted and state.handover is None:
                state.offset = max(state.offset, end)
                state.is_due = True

    def set_handover(self, publisher: PublisherKey, handover: Handover | None) -> None:
        """How far it is; the next note says so."""
        state = self._states.get(publisher)
        if state is not None and state.handover != handover:
            state.handover = handover
            state.is_due = True

    def take_notes(
        self, publishers: Iterable[PublisherKey] | None = None
    ) -> dict[int, list[tuple[PublisherKey, bytes, bytes]]]:
        """The notes to write: of those that moved, or of `publishers`; by partition, key, value."""
        notes: dict[int, list[tuple[PublisherKey, bytes, bytes]]] = {}
        if publishers is None:
            publishers = [key for key, state in self._states.items() if state.is_due]
        for publisher in publishers:
            state = self._states.get(publisher)
            if state is None:
                continue
            value = encode_note(state.note())
            state.noted_offset, state.is_due = state.offset, False
            notes.setdefault(state.home, []).append((publisher, encode_publisher(publisher), value))
        return notes

    async def store(
        self, producer: ReplaceableProducer, publishers: Iterable[PublisherKey] | None = None
    ) -> dict[int, int]:
        """Writes the notes of those that moved, or of `publishers`; waits for the broker. Returns
        their first offset, by partition. What is noted later is written later.

        Raises:
            KafkaError, OSError: they may not have been written; those that moved are due again.
        """
        async with self._storing:
            notes = self.take_notes(publishers)
            try:
                offsets = await asyncio.gather(
                    *(
                        producer.send(self.topic, home, [(key, value) for _, key, value in entries])
                        for home, entries in notes.items()
                    )
                )
            except BaseException:
                for entries in notes.values():
                    self.renote([publisher for publisher, _, _ in entries])
                raise
        for entries in notes.values():
            self.noted([publisher for publisher, _, _ in entries])
        return dict(zip(notes, offsets, strict=True))

    def noted(self, publishers: Iterable[PublisherKey]) -> None:
        """Their notes have been acknowledged."""
        for publisher in publishers:
            state = self._states.get(publisher)
            if state is not None:
                state.noted = True

    def renote(self, publishers: Iterable[PublisherKey]) -> None:
        """Their notes could not be written, and are to be written again."""
        for publisher in publishers:
            state = self._states.get(publisher)
            if state is not None:
                state.is_due = True
