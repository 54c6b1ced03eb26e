"""The numbers that engines give their events, beside those that messages have."""

from typing import Final, NamedTuple

from bridge.wire.drop_reasons import DropReason
from schemas.errors import EventError

_FIRST_ID: Final = 1
"""Of Dynamo's events; those of TensorRT-LLM begin with 0."""


class EventIds(NamedTuple):
    """The numbers that an engine has given the events of a batch: consecutive in its stream,
    whoever forwards them.

    Attributes:
        first, last: of the batch.
        worker: whose stream it is; None where the events do not say.
    """

    first: int
    last: int
    worker: int | None = None


def check_worker(expected: int | None, worker: int | None) -> None:
    """Raises where events are of another worker than those before them.

    Raises:
        EventError: so it is.
    """
    if worker != expected:
        detail = f"Expected events of worker {expected}, as before, got those of: {worker}"
        raise EventError(DropReason.OTHER_WORKER, detail)


def check_ids(last: int, event_id: int) -> tuple[bool, list[EventError]]:
    """What the number of an event says, behind the last one of its stream: whether the engine has
    begun its cache again, for numbers that go back are of another one; and what is missing.
    """
    began_again = event_id <= last
    if began_again:
        last = _FIRST_ID - 1
    if event_id <= last + 1:
        return began_again, []
    detail = f"Expected event_id {last + 1}, got {event_id}: the engine has dropped what is between"
    return began_again, [EventError(DropReason.EVENTS_MISSING, detail)]
