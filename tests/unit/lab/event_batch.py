"""What a simulated engine publishes, decoded."""

import msgspec

from lab.engines.wire import AllBlocksCleared, BlockRemoved, BlockStored


class EventBatch(msgspec.Struct, array_like=True, frozen=True):
    """A batch of the map form: what `EventEncoder` of release 0.24 or newer wrote."""

    timestamp_s: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    dp_rank: int
