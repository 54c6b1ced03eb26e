"""The numbers that engines give their events, beside those that messages have.

A stream may have the events of several ranks, and then an engine numbers all of them, or those of
each rank (TensorRT-LLM's API the latter, a publisher of Dynamo the former): no event says which. So
something is missing where numbers are left out either way. Where one of both has a hole, it is not
how they are counted.
"""

from typing import Final, NamedTuple

from bridge.wire.drop_reasons import DropReason
from schemas.errors import EventError

_FIRST_ID: Final = 1
"""Of Dynamo's events; those of TensorRT-LLM begin with 0."""


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

    def from_the_first(self, first: int) -> "Numbers":
        """These of an engine that has begun again, in place of numbers that began with `first`."""
        return Numbers(first, self.last, self.has_hole or self.first > _FIRST_ID)


class EventIds(NamedTuple):
    """The numbers that an engine has given the events of a batch, whoever forwards them.

    Attributes:
        own: of the publisher's rank; None where there is none of it.
        every: whatever the rank.
        worker: whose stream it is; None where the events do not say.
    """

    own: Numbers | None
    every: Numbers
    worker: int | None = None

    def then(self, after: "EventIds") -> tuple["EventIds", bool]:
        """The numbers of both; and whether the engine has begun its cache again between them, for
        numbers that go back are of another one.

        Raises:
            EventError: the latter are of another worker.
        """
        every = self.every.then(after.every)
        if self.own is None or after.own is None:
            known = self if after.own is None else after
            return EventIds(known.own, every, known.worker), False
        if self.worker != after.worker:
            detail = f"Expected events of worker {self.worker}, as before, got those of:"
            raise EventError(DropReason.OTHER_WORKER, f"{detail} {after.worker}")
        if after.own.first > self.own.last:
            return EventIds(self.own.then(after.own), every, after.worker), False
        own = after.own.from_the_first(self.own.first)
        every = after.every.from_the_first(self.every.first)
        return EventIds(own, every, after.worker), True

    @property
    def has_hole(self) -> bool:
        """Whether numbers are left out, however they are counted."""
        return self.own is not None and self.own.has_hole and self.every.has_hole

    @property
    def told(self) -> "EventIds":
        """The same, once it is known what is missing."""
        own = None if self.own is None else self.own._replace(has_hole=False)
        return EventIds(own, self.every._replace(has_hole=False), self.worker)
