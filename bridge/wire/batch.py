"""Decoding of batches, common to the engines that publish as vLLM does.

Wire format (vLLM 0.9-0.33, SGLang 0.4.10-0.5.23): three frames, of which the second is the batch's
sequence as 8 bytes, big-endian, and the third the batch in msgpack:

    batch   [ts, events, data_parallel_rank, ...] | {ts, events, data_parallel_rank, ...}
    event   [tag, field, ...] | {"type": tag, field: ...}

The rank and any number of an event's last fields may be missing. Unknown elements of a batch are
ignored. What is not known of an event is tolerated where that is safe: a removal is applied, since
what it names is gone whatever else it says; so is a clear, which may have meant less where an
unknown field says something: its publisher is degraded; a store is used where the unknown field is
null or empty, for else it may change what a block is. Of a store that cannot be used, the blocks
are named as left out.

What is here is the specification. Where the packer has a `BatchPacker`, as the Rust kernel's has,
that makes the same of every batch that is good, by one call; the others come here.

Here the whole batch is decoded by one call into typed structs in which hashes and tokens stay
encoded. Only where that fails is the batch taken apart, so that one bad event costs neither its
siblings nor the rest of the stream. How long that may take is bounded: a batch that has a bad event
and more than BATCH_APART_EVENTS_MAX or BATCH_APART_VALUES_MAX in all, or more than BATCH_ERRORS_MAX
malformed ones or BATCH_TOLERATED_MAX with unknown fields, is undecodable.
"""

from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Annotated, Final, NamedTuple, TypeGuard, TypeVar

import msgspec
from xxhash import xxh3_64_intdigest

from bridge.bounds import (
    BATCH_ERRORS_MAX,
    BATCH_TOLERATED_MAX,
    BATCH_VALUES_MAX,
    EVENT_FIELDS_MAX,
)
from bridge.wire.batch_parts import EventRun, parts_of
from bridge.wire.drop_reasons import DropReason
from bridge.wire.event_ids import EventIds
from bridge.wire.fields import TIER_CLEARED, Origin, is_nil, media_bit, taken_back_bits
from bridge.wire.forms import (
    ArrayBatch,
    ClearedEvent,
    MapBatch,
    TierClearedEvent,
    UnknownStore,
    WireEvent,
    WireForms,
)
from bridge.wire.hit_reports import HitReports
from bridge.wire.opaque import (
    DECODING_ERRORS,
    array_elements,
    array_length,
    either,
    is_empty,
    read_opaque,
    tag_of,
)
from bridge.wire.stream_marks import WholeMark
from schemas.arrays import ArrayPacker, MessageRun
from schemas.errors import (
    BatchError,
    EventError,
    FrameError,
    LeftOutError,
    PassedOverError,
    ToleratedError,
    WireError,
)
from schemas.events import (
    SPARSE_SPEC_KINDS,
    BlockEvent,
    ClearedBlocks,
    RemovedBlocks,
    StoredBlocks,
    decode_run,
    encode_run,
    is_placeholder,
)
from schemas.identities import Medium
from schemas.limits import (
    BATCH_EVENTS_MAX,
    BULK_BYTES,
    LORA_NAMES_MAX,
    MESSAGE_BYTES_MAX,
    PACKED_BATCH_BYTES_MAX,
    RECORD_BYTES_MAX,
    SEQUENCE_MAX,
)
from schemas.positions import OWNED_CHUNKS, OWNED_SET, SAYS_ALL_GONE, SHARES, UNSIZED
from schemas.registration import Registration

# A 128K-token prefill is about 0.6 MB. What is above a bound is dropped:
# reprise_bridge_dropped_total with the reason that is given.
BATCH_APART_EVENTS_MAX: Final = 16_384  # with a bad one among them, looked at one by one
BATCH_APART_VALUES_MAX: Final = 262_144  # the same in values; some 30 ms of the interpreter's lock

_timestamp: Final = msgspec.msgpack.Decoder(float)
_rank: Final = msgspec.msgpack.Decoder(int | None)
_map_fields: Final = msgspec.msgpack.Decoder(
    Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=EVENT_FIELDS_MAX)]
)
_events: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


class DecodedBatch(NamedTuple):
    """One batch of canonical events; it knows its number, but nothing of its stream.

    Attributes:
        sequence: the publisher's number for it, 0..2**63-1.
        digest: of the payload, comparable within this process.
        engine_time: the engine's timestamp, Unix seconds; None where the batch was unusable.
        clears: whether one of them says that the publisher holds nothing any more, on any medium.
        run: those events one after the other, as a record has them; b"" where there are `parts`.
        dropped: an `EventError` for each event that could not be used, or one `BatchError`: the
            batch then has no events, but it was received, so its sequence counts.
        parts: of a large batch its events, of which each part is to be a record of its own.
        ids: None where its events have none.
        other_ranks: than the publisher's, of which it has events, or is.
        has_windows: whether its events have their attention windows in place of groups, 0 for none;
            a store of no blocks names one of a cache that has just begun.
        media: by which names of media they store, see `bridge.wire.fields.media_bit`.
        settled: of which of them they say what is left, however much was stored.
        first_blocks: what it calls the first blocks of prompts that it stores on its GPU, u64 LE.
        mark: of a batch that comes in place of all that was known before; None for most.
        skipped: how many numbers right before its own are of no batch of the publisher.
    """

    sequence: int
    digest: int
    engine_time: float | None
    event_count: int
    clears: bool
    run: bytes
    dropped: list[WireError]
    parts: tuple[EventRun, ...] = ()
    ids: EventIds | None = None
    other_ranks: tuple[int, ...] = ()
    has_windows: bool = False
    media: int = 0
    settled: int = 0
    first_blocks: bytes = b""
    mark: WholeMark | None = None
    skipped: int = 0

    @classmethod
    def of_events(
        cls, sequence: int, payload: bytes, engine_time: float, events: Sequence[BlockEvent]
    ) -> "DecodedBatch":
        """A batch with these events, all of which can be used.

        Raises:
            BatchError: they are too large packed.
        """
        run = encode_run(events)
        if len(run) > PACKED_BATCH_BYTES_MAX:
            detail = f"Expected at most {PACKED_BATCH_BYTES_MAX} bytes packed, got {len(run)}"
            raise BatchError(DropReason.BATCH_TOO_LARGE, detail)
        clears = any(isinstance(event, ClearedBlocks) and event.is_whole for event in events)
        digest = xxh3_64_intdigest(payload)
        return cls(sequence, digest, engine_time, len(events), clears, run, [])

    @classmethod
    def unusable(cls, sequence: int, digest: int, error: BatchError) -> "DecodedBatch":
        """A batch of which nothing could be used."""
        return cls(sequence, digest, None, 0, False, b"", [error])

    def in_parts(self, packer: ArrayPacker) -> "DecodedBatch":
        """The same batch, in parts where it is larger than a record. Cost O(bytes) then."""
        if len(self.run) <= RECORD_BYTES_MAX:
            return self
        parts = parts_of(self.run, self.event_count, RECORD_BYTES_MAX, packer)
        return self._replace(run=b"", parts=parts) if len(parts) > 1 else self

    def is_same(self, other: "DecodedBatch") -> bool:
        """Whether both are one batch, as it came live and as it was replayed."""
        return (self.sequence, self.digest) == (other.sequence, other.digest)

    @property
    def events(self) -> list[BlockEvent]:
        """What could be used, in order. Cost O(events)."""
        if not self.parts:
            return decode_run(self.run, self.event_count)
        return [event for count, run in self.parts for event in decode_run(run, count)]


def is_unsized(event: BlockEvent) -> bool:
    """Whether it names blocks on a tier of their own without their size, which an engine that
    forms prefixes of them may keep several of as one.
    """
    return (
        _is_own(event)
        and is_placeholder(event)
        and not event.block_size
        and event.medium is not Medium.GPU
    )


def first_block_of(event: BlockEvent) -> bytes:
    """What it calls the first block of a prompt that it stores on the GPU; b"" for none."""
    if not _is_own(event) or event.parent is not None or event.medium is not Medium.GPU:
        return b""
    blocks, size = len(event.hashes) // 8, event.block_size
    return event.hashes[:8] if size and len(event.tokens) == 4 * size * blocks else b""


def _is_own(event: BlockEvent) -> TypeGuard[StoredBlocks]:
    """Whether it stores blocks that form prefixes, and are of the publisher alone."""
    return (
        isinstance(event, StoredBlocks)
        and bool(event.hashes)
        and not event.shared
        and event.spec_kind not in SPARSE_SPEC_KINDS
    )


class DecodedRun(NamedTuple):
    """Batches of consecutive numbers, all of whose events can be used, and none of which clears.

    Attributes:
        digests: of each one's payload.
        engine_time: of the last of them, Unix seconds.
        event_count: of all of them.
        run: their events, as of a `DecodedBatch`.
        media, first_blocks: likewise.
    """

    digests: Sequence[int]
    engine_time: float
    event_count: int
    run: bytes
    media: int = 0
    first_blocks: bytes = b""

    @property
    def events(self) -> list[BlockEvent]:
        """All of them, in order. Cost O(events)."""
        return decode_run(self.run, self.event_count)


def read_frames(frames: Sequence[bytes]) -> tuple[int, bytes]:
    """The sequence and the payload of one message; the topic means nothing here.

    Raises:
        FrameError: not topic, sequence, payload; the message's place in the stream is unknown.
    """
    if len(frames) != 3:
        raise FrameError(DropReason.FRAME_COUNT, f"Expected 3 frames, got {len(frames)}")
    _, encoded, payload = frames
    if len(encoded) != 8:
        detail = f"Expected a sequence of 8 bytes, got {len(encoded)}"
        raise FrameError(DropReason.SEQUENCE_LENGTH, detail)
    sequence = int.from_bytes(encoded, "big")
    if sequence > SEQUENCE_MAX:
        detail = f"Expected a sequence below 2**63, got: {sequence}"
        raise FrameError(DropReason.SEQUENCE_RANGE, detail)
    return sequence, payload


def read_sequence(heads: Sequence[bytes]) -> int:
    """The sequence of a message of any kind: of all its frames but the last, the last one.

    Raises:
        FrameError: there is none.
    """
    return read_frames([b"", *heads[-1:], b""])[0]


def names_rank(payload: bytes) -> bool:
    """Whether a batch that can be read says of which rank it is. Cost O(bytes)."""
    return not is_nil(read_opaque(payload).data_parallel_rank)


class BatchDecoder:
    """Turns one publisher's messages into batches of canonical events. One owner.

    Args:
        registration: adds what events leave out; its rank must be that of the batches.
        forms: what the engine's versions may send, the likeliest first.
        scopeless_tiers, has_rules: see `ArrayPacker.batch_packer`; the forms do the same.

    Attributes:
        forms: as given.
    """

    def __init__(
        self,
        registration: Registration,
        packer: ArrayPacker,
        *,
        forms: WireForms,
        scopeless_tiers: bool = False,
        has_rules: bool = False,
    ) -> None:
        self._origin = Origin(packer, registration, set())
        self._dp_rank = registration.dp_rank
        self._has_other_ranks = registration.has_other_ranks
        self._reports = HitReports.of(registration)
        # An engine never changes its form, so the one that fitted last is tried first.
        self._batch_forms = list(forms.batches)
        self.forms = forms
        self._packer = packer.batch_packer(
            arrays=_fields_of(forms.arrays),
            maps=_fields_of(forms.maps),
            dp_rank=registration.dp_rank,
            lora_name=registration.lora_name,
            roots=self._reports.roots,
            all_chains=self._reports.all_chains,
            scopeless_tiers=scopeless_tiers,
            has_rules=has_rules,
        )

    def decode(self, frames: Sequence[bytes]) -> DecodedBatch:
        """One message. Cost O(bytes).

        Raises:
            FrameError: it has no place in the stream; whatever else is wrong stands in `dropped`.
        """
        sequence, payload = read_frames(frames)
        try:
            values = self._check_size(payload)
            batch = self._pack(payload, sequence) or self._decode(payload, sequence, values)
            return batch.in_parts(self._origin.packer)
        except _OtherRank as other:
            passed = PassedOverError(DropReason.OTHER_RANK, other.detail)
            batch = DecodedBatch.of_events(sequence, payload, other.time, [])
            return batch._replace(dropped=[passed], other_ranks=(other.rank,))
        except BatchError as error:
            return DecodedBatch.unusable(sequence, xxh3_64_intdigest(payload), _alone(error))

    def decode_run(
        self, messages: list[list[bytes]] | MessageRun, sequence: int, bytes_max: int
    ) -> DecodedRun | None:
        """See `MessageDecoder`."""
        if self._packer is None:
            return None
        packed = self._packer.pack_run(messages, sequence, bytes_max)
        digests, engine_time, count, run, lora_names, media, first_blocks = packed
        if not digests or not self._know(lora_names):
            return None
        return DecodedRun(array("Q", digests), engine_time, count, run, media, first_blocks)

    def _check_size(self, payload: bytes) -> int:
        """Raises where it is too large; returns how many values a large one has, 0 for others."""
        if len(payload) > MESSAGE_BYTES_MAX:
            detail = f"Expected at most {MESSAGE_BYTES_MAX} bytes, got {len(payload)}"
            raise BatchError(DropReason.MESSAGE_TOO_LARGE, detail)
        if len(payload) <= BULK_BYTES:
            return 0
        # Whoever decodes holds the interpreter's lock; whoever counts does not.
        values = self._origin.packer.count_values(payload, BATCH_VALUES_MAX + 1)
        if values > BATCH_VALUES_MAX:
            detail = f"Expected at most {BATCH_VALUES_MAX} values, got more"
            raise BatchError(DropReason.TOO_MANY_VALUES, detail)
        return values

    def _pack(self, payload: bytes, sequence: int) -> DecodedBatch | None:
        """The batch by the packer's own call; None where the specification has to see it."""
        if self._packer is None:
            return None
        packed = self._packer.pack(payload, sequence)
        if packed is None:
            return None
        digest, engine_time, count, clears, run, lora_names, media, first_blocks = packed
        if not self._know(lora_names):
            return None
        batch = DecodedBatch(sequence, digest, engine_time, count, clears, run, [])
        return batch._replace(media=media, first_blocks=first_blocks)

    def _know(self, lora_names: Sequence[str]) -> bool:
        """Remembers the names; False where there are too many."""
        known = self._origin.lora_names
        if lora_names and (new := set(lora_names).difference(known)):
            if len(known) + len(new) > LORA_NAMES_MAX:
                return False
            known.update(new)
        return True

    def _decode(self, payload: bytes, sequence: int, values: int) -> DecodedBatch:
        events: list[BlockEvent] = []
        dropped: list[WireError] = []
        engine_time, wire_events = self._read(payload, values, dropped)
        media = settled = 0
        first_blocks = b""
        for wire_event in wire_events:
            try:
                made = wire_event.events(sequence, self._origin)
                events += [self._reports.marked(event, wire_event) for event in made]
                media |= self._media_of(wire_event, made)
                if not any(event.owned for event in made):
                    settled |= _settled_by(wire_event)
                first_blocks += b"".join(map(first_block_of, made))
            except EventError as error:
                _check_apart(len(wire_events), values)
                kept = self._left_out(wire_event, sequence, error)
                events += kept
                is_named = any(isinstance(one, StoredBlocks) for one in kept)
                media |= self._media_of(wire_event, kept)
                named = LeftOutError(error.reason, error.detail) if is_named else error
                dropped.append(_alone(named))
        batch = DecodedBatch.of_events(sequence, payload, engine_time, events)
        ids = self._ids_of(wire_events)
        batch = batch._replace(dropped=dropped, ids=ids, media=media, settled=settled)
        return batch._replace(first_blocks=first_blocks)

    def _media_of(self, wire_event: WireEvent, made: Sequence[BlockEvent]) -> int:
        """By which names of media it stores blocks, and whether for all instances; and what tells
        how its engine offloads.
        """
        if self._origin.registration.is_pool:  # whose clear is of all, and so its end
            return SAYS_ALL_GONE if wire_event.says_all_gone else 0
        name = wire_event.medium_name
        stores = [event for event in made if isinstance(event, StoredBlocks)]
        if not stores:
            removed = [one for one in made if isinstance(one, RemovedBlocks) and one.hashes]
            if not removed or removed[0].owned:
                return 0
            is_shared = removed[0].shared
            return taken_back_bits(name, is_owned=wire_event.is_owned, is_shared=is_shared)
        shared = SHARES if stores[0].shared else 0
        unsized = UNSIZED if any(map(is_unsized, stores)) else 0
        if stores[0].owned:  # of whom all is told that goes, by a name that is no other's
            return unsized | OWNED_SET | (OWNED_CHUNKS if len(stores[0].hashes) > 8 else 0)
        return media_bit(name) | shared | unsized | wire_event.stored_bits

    def _ids_of(self, wire_events: Sequence[WireEvent]) -> EventIds | None:
        """The numbers of the events; None where such engines give them none."""
        return None

    def _left_out(
        self, wire_event: WireEvent, sequence: int, error: EventError
    ) -> Sequence[BlockEvent]:
        if isinstance(error, PassedOverError):
            return ()
        with suppress(EventError):
            kept = wire_event.left_out(sequence, self._origin, error.reason)
            return () if kept is None else (kept,)
        return ()

    def _read(
        self, payload: bytes, values: int, dropped: list[WireError]
    ) -> tuple[float, Sequence[WireEvent]]:
        """The batch's time and its events as sent; unreadable ones go to `dropped`."""
        # Where the packer had it, it is likely to be bad, and trying each form costs the
        # interpreter's lock.
        is_tried = self._packer is not None and len(payload) > BULK_BYTES
        batch = None if is_tried else self._read_typed(payload)
        if batch is None:
            return self._read_apart(payload, values, dropped)
        self._check_envelope(batch.ts, batch.data_parallel_rank, len(batch.events))
        return batch.ts, batch.events

    def _read_typed(self, payload: bytes) -> ArrayBatch[WireEvent] | MapBatch[WireEvent] | None:
        for form in self._batch_forms:
            try:
                batch = form.decode(payload)
            except DECODING_ERRORS:
                continue
            if form is not self._batch_forms[0]:
                others = [other for other in self._batch_forms if other is not form]
                self._batch_forms = [form, *others]  # at once: another thread may be reading it
            return batch
        return None

    def _read_apart(
        self, payload: bytes, values: int, dropped: list[WireError]
    ) -> tuple[float, Sequence[WireEvent]]:
        batch = read_opaque(payload)
        try:
            engine_time = _timestamp.decode(batch.ts)
        except DECODING_ERRORS as error:
            raise BatchError(DropReason.BAD_TIMESTAMP, str(error)) from error
        try:
            rank = _rank.decode(batch.data_parallel_rank)
        except DECODING_ERRORS as error:
            raise BatchError(DropReason.RANK_MISMATCH, str(error)) from error
        count = array_length(batch.events)
        self._check_envelope(engine_time, rank, count)
        _check_apart(count, values)
        wire_events = []
        bad = tolerated = 0
        for encoded in _events.decode(batch.events):
            try:
                event, unknown = self._read_event(encoded)
            except EventError as error:
                bad += 1
                dropped.append(_alone(error))
                if bad > BATCH_ERRORS_MAX:
                    detail = f"Expected at most {BATCH_ERRORS_MAX} bad events; the last: {error}"
                    raise BatchError(DropReason.UNDECODABLE, detail) from error
                continue
            wire_events.append(event)
            if unknown is not None:
                tolerated += 1
                if tolerated > BATCH_TOLERATED_MAX:
                    detail = f"Expected unknown fields in at most {BATCH_TOLERATED_MAX} events"
                    raise BatchError(DropReason.UNDECODABLE, f"{detail}; the last: {unknown}")
                dropped += [] if isinstance(event, UnknownStore) else [unknown]
        return engine_time, wire_events

    def _read_event(self, encoded: msgspec.Raw) -> tuple[WireEvent, EventError | None]:
        """The event, and what is not known of it: of a clear it may say of what there is more."""
        event, details = self._read_form(encoded)
        if event is not None:
            return event, None
        tag = tag_of(encoded, self.forms.tag_field)
        tags = self.forms.maps.keys() | self.forms.arrays.keys()
        if tag is not None and tag not in tags:
            raise EventError(
                DropReason.UNKNOWN_EVENT, f"Expected one of {sorted(tags)}, got: {tag[:80]}"
            )
        if tag is not None and (unknown := self._unknown(tag, encoded)):
            detail = f"Expected no field of {tag} that is not known, got: {unknown.names[:200]}"
            event, details = self._read_form(msgspec.Raw(unknown.rest))
            if event is None:
                raise EventError(DropReason.MALFORMED_EVENT, either(*details))
            if event.clears and not unknown.are_empty:
                return event, EventError(DropReason.UNKNOWN_FIELD, detail)
            if not (event.removes or unknown.are_empty):
                event = UnknownStore(event, detail)
            return event, ToleratedError(DropReason.UNKNOWN_FIELD, detail)
        raise EventError(DropReason.MALFORMED_EVENT, either(*details))

    def _read_form(self, encoded: msgspec.Raw) -> tuple[WireEvent | None, list[str]]:
        """The event, or what each form has against it."""
        details = []
        for form in self.forms.events:
            try:
                return form.decode(encoded), []
            except DECODING_ERRORS as error:
                details.append(str(error))
        return None, details

    def _unknown(self, tag: str, encoded: msgspec.Raw) -> "_Unknown | None":
        """What an event has beyond its fields; None for nothing, and where its engine has no event
        of the tag in its form.
        """
        as_map, as_array = self.forms.maps.get(tag), self.forms.arrays.get(tag)
        if as_map is not None:
            with suppress(*DECODING_ERRORS):
                fields = _map_fields.decode(encoded)
                known = {self.forms.tag_field, *as_map.__struct_encode_fields__}
                more = {name: value for name, value in fields.items() if name not in known}
                rest = {name: value for name, value in fields.items() if name in known}
                return _Unknown.of(", ".join(sorted(more)), list(more.values()), rest)
        if as_array is not None:
            with suppress(*DECODING_ERRORS):
                elements = array_elements.decode(encoded)
                expected = 1 + len(as_array.__struct_fields__)
                names = f"{len(elements)} elements instead of {expected}"
                return _Unknown.of(names, elements[expected:], elements[:expected])
        return None

    def _check_envelope(self, engine_time: float, rank: int | None, events: int) -> None:
        if not isfinite(engine_time):
            raise BatchError(DropReason.BAD_TIMESTAMP, f"Expected Unix seconds, got: {engine_time}")
        if rank is not None and rank != self._dp_rank:
            detail = f"Expected data-parallel rank `{self._dp_rank}`, got: {rank}"
            if self._has_other_ranks:
                raise _OtherRank(detail, rank, engine_time)
            raise BatchError(DropReason.RANK_MISMATCH, detail)
        if events > BATCH_EVENTS_MAX:
            detail = f"Expected at most {BATCH_EVENTS_MAX} events, got {events}"
            raise BatchError(DropReason.TOO_MANY_EVENTS, detail)


class _OtherRank(BatchError):
    """The batch is of another rank of the engine, which shares the stream."""

    def __init__(self, detail: str, rank: int, time: float) -> None:
        super().__init__(DropReason.OTHER_RANK, detail)
        self.rank = rank
        self.time = time


class _Unknown(NamedTuple):
    """What an event has beyond its fields.

    Attributes:
        names: for people.
        are_empty: whether they say nothing.
        rest: the event without them, encoded.
    """

    names: str
    are_empty: bool
    rest: bytes

    @classmethod
    def of(cls, names: str, values: Sequence[msgspec.Raw], rest: object) -> "_Unknown | None":
        if not values:
            return None
        return cls(names, all(map(is_empty, values)), msgspec.msgpack.encode(rest))


ErrorT = TypeVar("ErrorT", bound=WireError)


def _alone(error: ErrorT) -> ErrorT:
    """Without its traceback, which would keep all messages of the turn while a batch is held."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _check_apart(events: int, values: int) -> None:
    """Raises where a batch with a bad event has so many, or so many values in them, that it is not
    looked at one by one: that would hold the interpreter's lock, and with it every query.
    """
    if values > BATCH_APART_VALUES_MAX:
        detail = f"Expected no bad event among more than {BATCH_APART_VALUES_MAX} values"
        raise BatchError(DropReason.UNDECODABLE, f"{detail}, got {values}")
    if events > BATCH_APART_EVENTS_MAX:
        detail = f"Expected no bad event among more than {BATCH_APART_EVENTS_MAX}, got {events}"
        raise BatchError(DropReason.UNDECODABLE, detail)


def _settled_by(wire_event: WireEvent) -> int:
    """See `DecodedBatch.settled`."""
    bit = media_bit(wire_event.medium_name) if wire_event.settles_medium else 0
    return bit | TIER_CLEARED if bit and wire_event.clears else bit


def _fields_of(events: Mapping[str, type[WireEvent]]) -> dict[str, list[str]]:
    """The names of each event's fields, by its tag, as the packer is to know them: a clear of one
    medium is left to the specification.
    """
    names = {tag: list(event.__struct_encode_fields__) for tag, event in events.items()}
    return {
        tag: [] if issubclass(events[tag], ClearedEvent) else fields
        for tag, fields in names.items()
        if not issubclass(events[tag], TierClearedEvent)
    }
