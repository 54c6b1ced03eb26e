"""The numbers that engines give their events, beside those that messages have.

A stream may have the events of several ranks, and then an engine numbers all of them, or those of
each rank (TensorRT-LLM's API the latter, a publisher of Dynamo the former): no event says which. So
something is missing where numbers are left out either way. Where one of both has a hole, it is not
how they are counted.

The first number of an engine that has just begun is known, too, by its kind (`EventIds.start`): so
the first events are missing where the first number that comes is above it.
"""

from typing import Annotated, NamedTuple

import msgspec

from bridge.wire.drop_reasons import DropReason
from schemas.errors import EventError

EventId = Annotated[int, msgspec.Meta(ge=0)]
"""As an engine sends it. One below 0 would say that it has begun its cache again."""


class Numbers(NamedTuple):
    """Numbers of events, in the order in which these came.

    Attributes:
        has_hole: whether they are not consecutive.
    """

    first: int
    last: int
    has_hole: bool = False

    def then(self, after: "Numbers") -> "Numbers":
        """These, and those that came behind them."""
        has_hole = self.has_hole or after.has_hole or after.first != self.last + 1
        return Numbers(self.first, after.last, has_hole)

    def begun_again(self, first: int, start: int) -> "Numbers":
        """These of an engine that has begun again, in place of numbers that began with `first`; its
        own begin with `start`.
        """
        return Numbers(first, self.last, self.has_hole or self.first > start)


class EventIds(NamedTuple):
    """The numbers that an engine has given the events of a batch, whoever forwards them.

    Attributes:
        own: of the publisher's rank; None where there is none of it.
        every: whatever the rank.
        worker: whose stream it is; None where the events do not say.
        start: with which number such an engine begins.
    """

    own: Numbers | None
    every: Numbers
    worker: int | None = None
    start: int = 0

    @property
    def beginning(self) -> "EventIds":
        """What these follow on where they are the first ones of their engine."""
        before = Numbers(self.start - 1, self.start - 1)
        return EventIds(before, before, self.worker, self.start)

    def then(self, after: "EventIds") -> tuple["EventIds", bool]:
        """The numbers of both; and whether the engine has begun its cache again between them, for
        numbers that go back are of another one.

        Raises:
            EventError: the latter are of another worker.
        """
        every = self.every.then(after.every)
        if self.own is None or after.own is None:
            known = self if after.own is None else after
            return EventIds(known.own, every, known.worker, self.start), False
        if self.worker != after.worker:
            detail = f"Expected events of worker {self.worker}, as before, got those of:"
            raise EventError(DropReason.OTHER_WORKER, f"{detail} {after.worker}")
        if after.own.first > self.own.last:
            return EventIds(self.own.then(after.own), every, after.worker, self.start), False
        own = after.own.begun_again(self.own.first, self.start)
        every = after.every.begun_again(self.every.first, self.start)
        return EventIds(own, every, after.worker, self.start), True

    @property
    def has_hole(self) -> bool:
        """Whether numbers are left out, however they are counted."""
        return self.own is not None and self.own.has_hole and self.every.has_hole

    @property
    def told(self) -> "EventIds":
        """The same, once it is known what is missing."""
        own = None if self.own is None else self.own._replace(has_hole=False)
        return self._replace(own=own, every=self.every._replace(has_hole=False))
