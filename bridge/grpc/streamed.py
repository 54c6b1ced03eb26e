"""What one message of a stream says, whatever it was sent in."""

from collections.abc import Callable
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


class StreamedMessage(NamedTuple):
    """See the module.

    Attributes:
        number: of its batch; None where it has none: it says a load alone, or cannot be read.
        rank: whose it is; None where it does not say.
        engine_time: of its batch, Unix seconds; 0 where it has none.
        payload: the batch, as the engine's own publisher encodes it.
        mark: see `WholeMark`; None for an ordinary batch.
        load: what its engine carries; None where it does not say.
        unusable: in place of a payload, why there is none.
        error: why the stream ends with it, in its server's words; "" for most.
    """

    number: int | None = None
    rank: int | None = None
    engine_time: float = 0.0
    payload: bytes = b""
    mark: WholeMark | None = None
    load: RankLoad | None = None
    unusable: DecodedBatch | None = None
    error: str = ""


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
