"""What one message of a stream says, whatever it was sent in."""

from typing import Final, NamedTuple

import msgspec

from bridge.engine_http.load_answers import RankLoad
from bridge.wire.batch import DecodedBatch
from bridge.wire.stream_marks import WholeMark

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


UNREADABLE: Final = StreamedMessage()
"""It is no message of the protocol."""


def encode_batch(engine_time: float, events: list[WireMap], rank: int) -> bytes:
    """A batch as engines encode theirs."""
    return msgspec.msgpack.encode([engine_time, events, rank])


def without_nothing(event: WireMap) -> WireMap:
    """The event without the fields that say nothing: what an engine of before did not have."""
    return {name: value for name, value in event.items() if value is not None}
