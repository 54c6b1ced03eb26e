"""Events of a Mooncake master (RFC 1527): objects of a store that every instance reads.

Source: Mooncake, `mooncake-store/src/kv_event/kv_event_publisher.cpp`, in three forms:

    main            no model, no block size; the key of an object, and `seq_hashes` of those whose
                    key is a number: the hash of the object's block
    dev/conductor   and `connector_block_hash`, the engine's whole digest in hex, the model, the
                    block size, the ranks that shard the object, and `cleared`
    0.3.14          as main, and `cleared` behind a `removed` of each object, `session_id`, which
                    names no block, and a model and block size where its flags give them

Frames are those of the engines, but numbers begin at 1. A batch is `[ms, events, rank]`: its time
in whole milliseconds, its events as maps, tagged by `event_type`. `type`, `block_hashes` and
`parent_block_hash` repeat others in older words; `block_hashes` may be signed.

An object is of one rank of those that share a model, and an engine finds a block where each has
its own, under the prefix (`cache_prefix`) that it was started with, which nothing here says. So
rank and prefix stand in place of a cache group: where a block is held in some of these and not in
all, the pool is not confirmed.

What an object is called (`backend_id` and `object_key`) is its hash here, and the hash by which an
engine announces its block is its alias (`schemas.events.StoredBlocks.aliases`). Where no field
tells that hash, the key may (`mooncake_keys`).

A master serves all models and tenants, and whatever else is stored: events of others than the
registered ones, of other cache groups, and of objects that name no block, are passed over. They are
counted, and nothing is missing without them.

Ranks say nothing: a pool has none. There is no replay, and nothing is told of what was stored
before one listens; where the master's queue is full it drops the oldest event and leaves out a
number. Events have numbers, too (`event_id`), consecutive over all that are sent, of whomever.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec
from msgspec import UNSET
from xxhash import xxh3_64_intdigest

from bridge.wire.batch import BatchDecoder, DecodedBatch, DecodedRun, read_frames
from bridge.wire.drop_reasons import DropReason
from bridge.wire.event_ids import EventId, EventIds, Numbers
from bridge.wire.fields import NIL, Origin, hashes_of, lora_name_of
from bridge.wire.forms import UnknownStore, WireEvent, forms_of
from bridge.wire.mooncake_keys import NamedBlock, block_of, low64, shard_of
from schemas.arrays import ArrayPacker, MessageRun
from schemas.errors import EventError, FrameError, PassedOverError, WireError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.identities import Medium
from schemas.limits import GROUP_NUMBER_MAX
from schemas.registration import MOONCAKE, Registration

KIND: Final = MOONCAKE

MODEL_LABEL: Final = "model_in_keys"
"""Of a pool's registration: the path of the model, where clients call it by another name."""

FIRST_NUMBER: Final = 1
"""Of a master's batches."""

_FIRST_ID: Final = 1
"""Of its events."""

_MEDIA: Final = {"cpu": Medium.CPU, "disk": Medium.DISK}
"""No other names of a tier: an object is held there once, however often it is announced."""

_PER_SECOND: Final = 1000.0


class _Event(WireEvent, tag_field="event_type", forbid_unknown_fields=True):
    """What all events have."""

    event_id: EventId | None = None
    timestamp: int | None = None
    type: str | None = None
    model_name: str | None = None
    block_size: int | None = None
    additional_salt: str | None = None
    lora_name: str | None = None
    tenant_id: str | None = None
    backend_id: str | None = None
    medium: str | None = None
    dp_rank: int | None = None

    def check_stream(self, origin: Origin, named: NamedBlock | None = None) -> None:
        """Raises where it is about another model, tenant or the like than the registered one."""
        ours = origin.registration
        if named is not None and not self.model_name:
            model_name = _model_in_keys(ours)
            if not named.is_of(model_name):
                called = (named.tag or named.model_name)[:80]
                detail = f"Expected model_name `{model_name}` in the key, got: {called}"
                raise PassedOverError(DropReason.OTHER_STREAM, detail)
        for name, got, expected in (
            ("tenant_id", self.tenant_id, ours.tenant_id),
            ("model_name", self.model_name, ours.model_name),
            ("block_size", self.block_size, ours.block_size),
            ("additional_salt", self.additional_salt, ours.additional_salt),
        ):
            if got and got != expected:
                detail = f"Expected {name} `{expected}`, got: {str(got)[:80]}"
                raise PassedOverError(DropReason.OTHER_STREAM, detail)


def _model_in_keys(registration: Registration) -> str:
    """What keys call the model: its path, of which clients may know nothing."""
    return next(
        (one.value for one in registration.labels if one.name == MODEL_LABEL),
        registration.model_name,
    )


class _OfObject(_Event, forbid_unknown_fields=True):
    """What the events of objects have beyond that."""

    group_id: str | int | None = None
    object_key: str | None = None
    connector_block_hash: str | None = None
    cache_prefix: str | None = None
    tp_rank: int | None = None
    head_or_tp_rank: int | None = None
    pcp_rank: int | None = None
    dcp_rank: int | None = None
    pp_rank: int | None = None
    layer_id: int | None = None
    seq_hashes: msgspec.Raw = NIL
    block_hashes: msgspec.Raw = NIL
    base_block_idx: int | None = None

    @property
    def named(self) -> NamedBlock | None:
        """What its key says."""
        return block_of(self.object_key) if self.object_key else None

    @property
    def says_all_gone(self) -> bool:
        """See `WireEvent`: `dev/conductor` publishes where an object ends, `main` where some do."""
        return self.connector_block_hash is not None

    def shard(self, model_name: str) -> int:
        """The number of the shard that its objects are, where keys call the model so; 0 of the
        first.
        """
        tp_rank = self.head_or_tp_rank if self.tp_rank is None else self.tp_rank
        places: dict[str, int | str | None]
        places = {"tp": tp_rank, "pcp": self.pcp_rank, "dcp": self.dcp_rank, "pp": self.pp_rank}
        places |= {"layer": self.layer_id, "prefix": self.cache_prefix}
        told = shard_of({name: str(one) for name, one in places.items() if one is not None})
        named = self.named
        shard = ("" if named is None else named.shard_of(model_name)) or told
        return 1 + xxh3_64_intdigest(shard.encode()) % GROUP_NUMBER_MAX if shard else 0

    def objects(self, origin: Origin) -> tuple[bytes, bytes]:
        """What the objects are called, and the engines' hashes of their blocks, (n,) u64 LE each;
        no hash where nothing tells it.

        Raises:
            EventError: its fields contradict one another.
            PassedOverError: it is none of the stream.
        """
        named = self.named
        self.check_stream(origin, named)
        group = (named.group if named else "") or str(self.group_id or "")
        # Other words are of groups by which the store evicts.
        if group.isascii() and group.isdigit() and group.strip("0"):
            detail = f"Expected objects of cache group 0, got: {group[:80]}"
            raise PassedOverError(DropReason.OTHER_GROUP, detail)
        hashes = self._hashes(origin.packer)
        if not hashes and named is not None:
            hashes = named.hash.to_bytes(8, "little")
        if not self.backend_id:
            raise EventError(DropReason.MALFORMED_EVENT, "Expected a backend_id, got none")
        owner = self.backend_id.encode() + b"\0"
        if self.object_key:
            if len(hashes) > 8:
                detail = f"Expected one hash of one object, got {len(hashes) // 8}"
                raise EventError(DropReason.BAD_HASHES, detail)
            name = xxh3_64_intdigest(owner + self.object_key.encode())
            return name.to_bytes(8, "little"), hashes
        # Without keys an object is what it has.
        names = (
            xxh3_64_intdigest(owner + hashes[at : at + 8]).to_bytes(8, "little")
            for at in range(0, len(hashes), 8)
        )
        return b"".join(names), hashes

    def _hashes(self, packer: ArrayPacker) -> bytes:
        """What the fields say of the engines' hashes; none where they say nothing."""
        told = [
            hashes
            for encoded in (self.seq_hashes, self.block_hashes)
            if bytes(encoded) != bytes(NIL) and (hashes := hashes_of(encoded, packer))
        ]
        if self.connector_block_hash:
            value = low64(self.connector_block_hash)
            if value is None:
                detail = "Expected at least 8 bytes in hex as connector_block_hash"
                raise EventError(
                    DropReason.BAD_HASHES, f"{detail}, got: {self.connector_block_hash[:80]}"
                )
            told.append(value.to_bytes(8, "little"))
        if len(set(told)) > 1:
            detail = "Expected seq_hashes, block_hashes and connector_block_hash to agree"
            raise EventError(DropReason.BAD_HASHES, f"{detail}, got {len(set(told))} different")
        return told[0] if told else b""

    def tier(self) -> Medium:
        """Where the object is."""
        medium = _MEDIA.get((self.medium or "").lower())
        if medium is None:
            detail = f"Expected medium `cpu` or `disk`, got: {(self.medium or 'none')[:80]}"
            raise EventError(DropReason.UNKNOWN_MEDIUM, detail)
        return medium


class _Stored(_OfObject, tag="stored", forbid_unknown_fields=True):
    parent_hash: msgspec.Raw = NIL
    token_ids: msgspec.Raw = NIL
    parent_block_hash: msgspec.Raw = NIL
    session_id: msgspec.Raw = NIL

    def left_out(self, sequence: int, origin: Origin, reason: str) -> StoredBlocks | None:
        """See `WireEvent`."""
        names, _ = self.objects(origin)
        return StoredBlocks(
            sequence=sequence, hashes=names, medium=self.tier(), shared=True, left_out=reason
        )

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        names, aliases = self.objects(origin)
        if not aliases:
            detail = f"Expected an object that names a block, got: {(self.object_key or '')[:80]}"
            raise PassedOverError(DropReason.NO_BLOCK, detail)
        return StoredBlocks(
            sequence=sequence,
            hashes=names,
            aliases=aliases,
            block_size=origin.registration.block_size,
            medium=self.tier(),
            shared=True,
            lora_name=lora_name_of(self.lora_name or UNSET, None, origin),
            group=self.shard(_model_in_keys(origin.registration)),
        )


class _Removed(_OfObject, tag="removed", forbid_unknown_fields=True):
    removes: ClassVar[bool] = True

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`. The key is enough to tell which object is gone."""
        names, _ = self.objects(origin)
        return RemovedBlocks(sequence=sequence, hashes=names, medium=self.tier(), shared=True)


class _Cleared(_Event, tag="cleared", forbid_unknown_fields=True):
    removes: ClassVar[bool] = True
    clears: ClassVar[bool] = True

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`. A master has one backend, and a tenant's objects go at once."""
        self.check_stream(origin)
        return ClearedBlocks(sequence=sequence)


_FORMS: Final = forms_of(maps=(_Stored, _Removed, _Cleared), tag_field="event_type")


class _PoolDecoder(BatchDecoder):
    """Batches that are numbered from 1, with times in milliseconds, and ranks that say nothing."""

    def decode(self, frames: Sequence[bytes]) -> DecodedBatch:
        """See `MessageDecoder`; the first batch has the number 0, as everywhere behind the
        bridge.
        """
        sequence, payload = read_frames(frames)
        if sequence < FIRST_NUMBER:
            detail = f"Expected a sequence from {FIRST_NUMBER} on, got: {sequence}"
            raise FrameError(DropReason.SEQUENCE_RANGE, detail)
        return super().decode([b"", (sequence - FIRST_NUMBER).to_bytes(8, "big"), payload])

    def decode_run(
        self, messages: list[list[bytes]] | MessageRun, sequence: int, bytes_max: int
    ) -> DecodedRun | None:
        """See `MessageDecoder`."""
        return None

    def _read(
        self, payload: bytes, values: int, dropped: list[WireError]
    ) -> tuple[float, Sequence[WireEvent]]:
        time_ms, events = super()._read(payload, values, dropped)
        return time_ms / _PER_SECOND, events

    def _ids_of(self, wire_events: Sequence[WireEvent]) -> EventIds | None:
        every: Numbers | None = None
        for one in wire_events:
            event = one.event if isinstance(one, UnknownStore) else one
            if not isinstance(event, _Event) or event.event_id is None:
                return None
            number = Numbers(event.event_id, event.event_id)
            every = number if every is None else every.then(number)
        return None if every is None else EventIds(every, every, start=_FIRST_ID)

    def _check_envelope(self, engine_time: float, rank: int | None, events: int) -> None:
        super()._check_envelope(engine_time, None, events)


def open_source(registration: Registration, packer: ArrayPacker) -> BatchDecoder:
    """The decoder of a master's messages."""
    return _PoolDecoder(registration, packer, forms=_FORMS)
