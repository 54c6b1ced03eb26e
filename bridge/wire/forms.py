"""The forms of events on the wire: what an engine's versions send, as typed structs in which hashes
and tokens stay encoded.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar, Union

import msgspec

from bridge.wire.drop_reasons import DropReason
from bridge.wire.fields import NIL, Origin, is_nil, medium_of, stored_bits
from bridge.wire.opaque import is_empty
from schemas.errors import EventError
from schemas.events import OWNERS, BlockEvent, ClearedBlocks
from schemas.identities import Medium
from schemas.limits import BATCH_EVENTS_MAX

_OWNERS: Final = frozenset(map(msgspec.msgpack.encode, OWNERS))


class WireEvent(msgspec.Struct, gc=False):
    """One event as an engine sends it.

    Attributes:
        clears: whether all is gone by it: what is not known of it may say of what alone.
        removes: whether what it names is gone whatever else it says, so that it is applied though
            it has fields that are not known.
    """

    removes: ClassVar[bool] = False
    clears: ClassVar[bool] = False

    @property
    def medium_name(self) -> str | None:
        """As the engine calls it."""
        name: str | None = getattr(self, "medium", None)
        return name

    @property
    def settles_medium(self) -> bool:
        """Whether it says what is left on its medium, however much was announced there."""
        return False

    @property
    def has_origin(self) -> bool:
        """Whether it says itself whether its blocks were there before."""
        return False

    @property
    def is_owned(self) -> bool:
        """Whether it names who owns its blocks, beside the engine."""
        return not is_nil(getattr(self, "ownership", NIL))

    def has_set(self, medium: Medium | None, *, shared: bool = False) -> bool:
        """Whether its blocks, there, are a set of an owner that is known (`StoredBlocks.owned`)."""
        is_known = self.is_owned and bytes(getattr(self, "ownership", NIL)) in _OWNERS
        return is_known and medium is not Medium.GPU and not shared

    @property
    def stored_bits(self) -> int:
        """See `bridge.wire.fields.stored_bits`; of a store."""
        if not is_nil(getattr(self, "extra_keys", NIL)):
            return 0
        has_tokens = not is_empty(getattr(self, "token_ids", NIL))
        return stored_bits(self.medium_name, has_tokens=has_tokens, is_owned=self.is_owned)

    @property
    def says_all_gone(self) -> bool:
        """Whether its form is of a pool's master that says of every object that it is gone."""
        return False

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """The event as `schemas.events` has it.

        Raises:
            EventError: a field cannot be used.
        """
        raise NotImplementedError

    def events(self, sequence: int, origin: Origin) -> Sequence[BlockEvent]:
        """The same, of an event that is several.

        Raises:
            EventError: likewise.
        """
        return (self.canonical(sequence, origin),)

    def left_out(self, sequence: int, origin: Origin, reason: str) -> BlockEvent | None:
        """What is kept of an event that cannot be used: of a store the names of its blocks, of a
        removal what is sure, of a clear all that it may mean. None for nothing.

        Raises:
            EventError: not even its hashes and its place can be read.
        """
        return None


class UnknownStore(WireEvent):
    """A store with a field that is not known: it may change what its blocks are."""

    event: WireEvent
    detail: str

    @property
    def medium_name(self) -> str | None:
        """See `WireEvent`."""
        return self.event.medium_name

    @property
    def stored_bits(self) -> int:
        """See `WireEvent`."""
        return self.event.stored_bits

    @property
    def says_all_gone(self) -> bool:
        """See `WireEvent`."""
        return self.event.says_all_gone

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        raise EventError(DropReason.UNKNOWN_FIELD, self.detail)

    def left_out(self, sequence: int, origin: Origin, reason: str) -> BlockEvent | None:
        """See `WireEvent`."""
        return self.event.left_out(sequence, origin, reason)


EventT = TypeVar("EventT", bound=WireEvent, covariant=True)


Events = Annotated[Sequence[EventT], msgspec.Meta(max_length=BATCH_EVENTS_MAX)]
"""The length is looked at before anything is decoded."""


class ArrayBatch(msgspec.Struct, Generic[EventT], array_like=True):
    """A batch as an array, in every release so far."""

    ts: float
    events: Events[EventT]
    data_parallel_rank: int | None = None


class MapBatch(msgspec.Struct, Generic[EventT]):
    """A batch as a map, as vLLM's main branch had it between 0.23 and 0.24."""

    ts: float
    events: Events[EventT]
    data_parallel_rank: int | None = None


class BatchForm(Protocol):
    """A decoder of whole batches in one of their forms."""

    def decode(self, buf: bytes, /) -> ArrayBatch[WireEvent] | MapBatch[WireEvent]:
        """The batch; ValueError or RecursionError where it has another form, or a bad event."""
        ...


class EventForm(Protocol):
    """A decoder of single events in one of their forms."""

    def decode(self, buf: msgspec.Raw, /) -> WireEvent:
        """The event; ValueError or RecursionError where it has another form, or is bad."""
        ...


class WireForms(NamedTuple):
    """All that an engine's versions may send: batches whole, and events alone.

    Attributes:
        maps: by tag, the events as maps; a tag that no map has is missing.
        arrays: by tag, the events as arrays, likewise.
        tag_field: where maps have the tag.
    """

    batches: tuple[BatchForm, ...]
    events: tuple[EventForm, ...]
    maps: Mapping[str, type[WireEvent]]
    arrays: Mapping[str, type[WireEvent]]
    tag_field: str = "type"


def forms_of(
    *,
    maps: Sequence[type[WireEvent]] = (),
    arrays: Sequence[type[WireEvent]] = (),
    tag_field: str = "type",
) -> WireForms:
    """The forms of an engine whose events are these: maps, which have the tag as `tag_field`, or
    arrays, which begin with it, or both.
    """
    assert maps or arrays, "an engine's events have some form"
    unions = [Union[tuple(form)] for form in (maps, arrays) if form]  # noqa: UP007
    return WireForms(
        batches=(
            *(msgspec.msgpack.Decoder(ArrayBatch[union]) for union in unions),  # type: ignore[valid-type]
            *(msgspec.msgpack.Decoder(MapBatch[union]) for union in unions),  # type: ignore[valid-type]
        ),
        events=tuple(msgspec.msgpack.Decoder(union) for union in unions),
        maps={_tag(event): event for event in maps},
        arrays={_tag(event): event for event in arrays},
        tag_field=tag_field,
    )


def _tag(event: type[WireEvent]) -> str:
    return str(event.__struct_config__.tag)


class ClearedEvent(WireEvent):
    """The publisher holds nothing any more, or nothing on a medium; or its owner does not."""

    medium: str | None = None

    removes: ClassVar[bool] = True
    clears: ClassVar[bool] = True

    @property
    def settles_medium(self) -> bool:
        """See `WireEvent`."""
        return self.medium is not None

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        cleared = self._cleared(sequence)
        owner: msgspec.Raw = getattr(self, "ownership", NIL)
        if not (cleared.owned or is_empty(owner)):
            known = ", ".join(sorted(OWNERS))
            detail = f"Expected a clear by the engine or by {known}, got one by another owner"
            raise EventError(DropReason.UNKNOWN_FIELD, detail)
        return cleared

    def left_out(self, sequence: int, origin: Origin, reason: str) -> BlockEvent | None:
        """See `WireEvent`: what is cleared for an owner that is not known may be gone."""
        return self._cleared(sequence)

    def _cleared(self, sequence: int) -> ClearedBlocks:
        medium = None if self.medium is None else medium_of(self.medium)
        return ClearedBlocks(sequence=sequence, medium=medium, owned=self.has_set(medium))


class TierClearedEvent(ClearedEvent):
    """The publisher, or its owner, holds nothing on a medium any more."""

    medium: str


class ClearedArray(
    ClearedEvent, array_like=True, tag="AllBlocksCleared", forbid_unknown_fields=True
):
    """`["AllBlocksCleared"]`, of both engines; with a medium, what is on that."""


class ClearedMap(
    ClearedEvent, tag="AllBlocksCleared", tag_field="type", forbid_unknown_fields=True
):
    """`{"type": "AllBlocksCleared"}`, likewise; with an `ownership`, what its owner has."""

    ownership: msgspec.Raw = NIL


class TierClearedArray(
    TierClearedEvent, array_like=True, tag="TierBlocksCleared", forbid_unknown_fields=True
):
    """`["TierBlocksCleared", medium]`, which is proposed (vllm-project/vllm#57296)."""


class TierClearedMap(
    TierClearedEvent, tag="TierBlocksCleared", tag_field="type", forbid_unknown_fields=True
):
    """`{"type": "TierBlocksCleared", "medium": medium}`, likewise."""

    ownership: msgspec.Raw = NIL


CLEARED_MAPS: Final = (ClearedMap, TierClearedMap)
CLEARED_ARRAYS: Final = (ClearedArray, TierClearedArray)
