"""What one message of a stream says, whatever it was sent in."""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from bridge.engine_http.load_answers import RankLoad
from bridge.grpc.shapes import Shape, check_shape
from bridge.wire.batch import DecodedBatch
from bridge.wire.stream_marks import WholeMark
from schemas.errors import BatchError

WireMap = dict[str, object]
"""One event as its engine's own publisher sends it."""


class StreamEnd(Enum):
    """What is to be done after a stream has ended."""

    AGAIN = "again"  # the next one asks for what comes from the last batch on
    WHOLE = "whole"  # the next one asks for all that there is
    BEYOND = "beyond"  # what comes next is not to be had: the next one begins behind it
    OTHER = "other"  # the server does not know the call: another one is tried
    REFUSED = "refused"  # and so is every other one, or the server has nothing to stream
    STOPPED = "stopped"


class StreamPing(NamedTuple):
    """A question whose answer is of no interest.

    Attributes:
        path: of the method, as it is on the wire.
    """

    path: str
    request: bytes


class StreamedMessage(NamedTuple):
    """See the module.

    Attributes:
        number: of its batch; None where it has none: it says a load alone, or cannot be read.
        skipped: how many numbers before this one are of nothing that is asked for.
        rank: whose it is; None where it does not say.
        engine_time: of its batch, Unix seconds; 0 where it has none.
        payload: the batch, as the engine's own publisher encodes it.
        mark: see `WholeMark`; None for an ordinary batch.
        load: what its engine carries; None where it does not say.
        unusable: in place of a payload, why there is none.
        is_latest: whether nothing else was there to be sent behind it.
        end: how the stream ends with it; None for most.
        error: why, in words for people; "" where there is nothing to say.
    """

    number: int | None = None
    skipped: int = 0
    rank: int | None = None
    engine_time: float = 0.0
    payload: bytes = b""
    mark: WholeMark | None = None
    load: RankLoad | None = None
    unusable: DecodedBatch | None = None
    is_latest: bool = False
    end: StreamEnd | None = None
    error: str = ""

    @property
    def is_first(self) -> bool:
        """Whether no other batch is before it."""
        return self.number is not None and self.number == self.skipped

    def is_of(self, rank: int) -> bool:
        """Whether it is a batch, and may be this rank's."""
        return self.number is not None and self.rank in (None, rank)


def with_payload(
    found: StreamedMessage, message: bytes, shape: Shape, encode: Callable[[bytes], bytes]
) -> StreamedMessage:
    """What was found of a message, with its batch, or why that cannot be used.

    Args:
        found: with the number of the batch.
        encode: makes a message of that shape the batch of an engine's own publisher; BatchError: it
            cannot be used.
    """
    assert found.number is not None
    try:
        check_shape(message, shape)
        return found._replace(payload=encode(message))
    except BatchError as error:
        digest = xxh3_64_intdigest(message)
        alone = BatchError(error.reason, error.detail)
        return found._replace(unusable=DecodedBatch.unusable(found.number, digest, alone))


UNREADABLE: Final = StreamedMessage()
"""It is no message of the protocol."""


def encode_batch(engine_time: float, events: list[WireMap], rank: int) -> bytes:
    """A batch as engines encode theirs."""
    return msgspec.msgpack.encode([engine_time, events, rank])


def without_nothing(event: WireMap) -> WireMap:
    """The event without the fields that say nothing: what an engine of before did not have."""
    return {name: value for name, value in event.items() if value is not None}
