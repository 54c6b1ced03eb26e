"""What the decoder of a kind makes of events, one at a time."""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from bridge.wire import open_source
from bridge.wire.batch import BatchDecoder
from bridge.wire.drop_reasons import DropReason
from bridge.wire.opaque import DECODING_ERRORS
from doctor.publishers.payload import SentEvent
from schemas.arrays import ArrayPacker
from schemas.errors import (
    BatchError,
    FrameError,
    LeftOutError,
    PassedOverError,
    ToleratedError,
    WireError,
)
from schemas.events import BlockEvent, StoredBlocks
from schemas.registration import Registration


class Effect(StrEnum):
    """What becomes of an event; docs/compatibility.md has the rules."""

    USED = "used"
    TOLERATED = "used, but for what is not known of it, which says nothing"
    PASSED_OVER = "passed over: it is about something else"
    LEFT_OUT = "left out: its blocks are known by name, and no answer counts them"
    DOUBTED = "applied, and its publisher is `degraded` until it clears or restarts"
    DROPPED = "dropped, and its publisher is `degraded` until it clears or restarts"
    LOST = "lost with its batch, of which nothing could be read"
    NO_PLACE = "dropped: its message has no place in the stream"


USABLE: Final = (Effect.USED, Effect.TOLERATED)

_WORTH: Final = {
    **{Effect.USED: 1.0, Effect.TOLERATED: 0.9, Effect.DOUBTED: 0.4},
    **{Effect.PASSED_OVER: 0.4, Effect.LEFT_OUT: 0.3},
}
"""Of an event that a decoder could read as far as that, to choose among the decoders."""


_HEADS: Final = (b"", (1).to_bytes(8, "big"))
"""A topic and a number, as most publishers send them."""


class Outcome(NamedTuple):
    """What became of one event, or of one message that could not be taken apart.

    Attributes:
        reason: why it is not used as it is, a `DropReason`; "" where it is.
        detail: what was expected, and what came.
        events: what it means.
    """

    effect: Effect
    reason: str = ""
    detail: str = ""
    events: Sequence[BlockEvent] = ()

    @property
    def unknown_fields(self) -> list[str]:
        """Those that its kind does not know, by name."""
        if self.reason != DropReason.UNKNOWN_FIELD:
            return []
        return self.detail.rpartition("got: ")[2].split(", ")


class Trial:
    """A decoder of one kind, on one publisher's events; one owner.

    Attributes:
        tried: events by what became of them.
        worth: how well it reads them, from 0 to 1 for each.
    """

    def __init__(self, registration: Registration, packer: ArrayPacker) -> None:
        self.registration = registration
        self.tried: Counter[Effect] = Counter()
        self.worth = 0.0
        self._decoder = open_source(registration, packer)

    @property
    def used(self) -> int:
        """How many events of those that were tried are used."""
        return sum(self.tried[effect] for effect in USABLE)

    def try_payload(self, heads: Sequence[bytes], payload: bytes) -> Outcome:
        """What becomes of a payload behind these frames; counted. Of one whose frames are wrong it
        is said what it would mean behind right ones.
        """
        outcome = self.outcome(heads, payload)
        self.tried[outcome.effect] += 1
        if outcome.effect is Effect.NO_PLACE:
            inner = self.outcome(_HEADS, payload)
            self.worth += _WORTH.get(inner.effect, 0.0) / 2
            return outcome._replace(events=inner.events)
        self.worth += _WORTH.get(outcome.effect, 0.0)
        return outcome

    def outcome(self, heads: Sequence[bytes], payload: bytes) -> Outcome:
        """The same, not counted."""
        try:
            batch = self._decoder.decode([*heads, payload])
        except FrameError as error:
            return Outcome(Effect.NO_PLACE, error.reason, error.detail)
        events = batch.events
        if batch.dropped:
            found = [(_effect_of(one, events), one) for one in batch.dropped]
            effect, worst = min(found, key=lambda one: _WORTH.get(one[0], 0.0))
            return Outcome(effect, worst.reason, worst.detail, events)
        stores = [one for one in events if isinstance(one, StoredBlocks)]
        reason = next((one.left_out for one in stores if one.left_out), "")
        return Outcome(Effect.LEFT_OUT if reason else Effect.USED, reason, "", events)

    def field_effects(
        self, heads: Sequence[bytes], event: SentEvent, unknown: Sequence[str]
    ) -> Iterator[tuple[str, Outcome]]:
        """What each of its unknown fields alone does to an event; several may hide one another."""
        for name in unknown:
            others = frozenset(unknown) - {name}
            try:
                encoded = event.encode(_without(event.value, others))
            except (*DECODING_ERRORS, TypeError, OverflowError):
                continue
            yield name, self.outcome(heads, event.wrap(encoded))

    def field_names(self, tag: str) -> Sequence[str]:
        """The fields of an event as an array, in order; none where its kind has no such event."""
        if not isinstance(self._decoder, BatchDecoder):
            return ()
        form = self._decoder.forms.arrays.get(tag)
        return () if form is None else form.__struct_fields__


def _effect_of(error: WireError, events: Sequence[BlockEvent]) -> Effect:
    if isinstance(error, ToleratedError):
        return Effect.TOLERATED
    if isinstance(error, PassedOverError):
        return Effect.PASSED_OVER
    if isinstance(error, LeftOutError):
        return Effect.LEFT_OUT
    if isinstance(error, BatchError):
        return Effect.LOST
    return Effect.DOUBTED if events else Effect.DROPPED


def _without(value: object, names: frozenset[str]) -> object:
    if isinstance(value, list):
        return [_without(one, names) for one in value]
    if isinstance(value, dict):
        return {key: _without(one, names) for key, one in value.items() if key not in names}
    return value
