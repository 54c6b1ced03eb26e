"""A checkpoint of the routing fold as messages of a compacted topic, and these as a checkpoint.

A state may be larger than a message. It is cut into chunks, each with the number of its place as
its key, so that the chunks of the next checkpoint replace these. A value is a msgpack array:

    version   int    1; a newer one is refused
    offset    int    of the last record that the checkpoint has
    count     int    of its chunks
    sum       int    XXH3-64 of the whole state
    content   bytes  of this chunk

A checkpoint counts once its last chunk has come, all others are there, and the sum is right. So one
that was cut off counts never, whatever the cleaner has left of the one before; chunks of one
transaction are there all or none, so that does not happen.
"""

from typing import Annotated, Final

import msgspec
import xxhash
from msgspec import Meta

from routing.bounds import ROUTING_CHUNKS_MAX
from schemas.codec import check_state_version
from schemas.errors import NewerVersionError
from schemas.limits import KAFKA_BATCH_BYTES, KIB

ROUTING_CHUNK_BYTES: Final = 512 * KIB  # of a checkpoint in one message

assert ROUTING_CHUNK_BYTES + KIB < KAFKA_BATCH_BYTES, "a chunk of a checkpoint fits a batch"

CHUNK_VERSION: Final = 1


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """See the module."""

    version: Annotated[int, Meta(ge=1)]
    offset: Annotated[int, Meta(ge=-1)]
    count: Annotated[int, Meta(ge=1, le=ROUTING_CHUNKS_MAX)]
    sum: Annotated[int, Meta(ge=0)]
    content: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Chunk)


def chunks_of(
    offset: int, state: bytes, *, chunk_bytes: int = ROUTING_CHUNK_BYTES
) -> list[tuple[bytes, bytes]]:
    """Keys and values, in the order in which they are to be written.

    Args:
        offset: of the last record that the state has.
        state: as the fold has dumped it.
        chunk_bytes: of the state in one of them.
    """
    starts = range(0, max(len(state), 1), chunk_bytes)
    total = xxhash.xxh3_64_intdigest(state)
    return [
        (
            b"%d" % place,
            _encoder.encode(
                Chunk(CHUNK_VERSION, offset, len(starts), total, state[start : start + chunk_bytes])
            ),
        )
        for place, start in enumerate(starts)
    ]


class ChunkReader:
    """The last whole checkpoint of the messages that were put, in the order of the topic.

    Attributes:
        state: of it; None while there is none.
        newer: why the last checkpoint cannot be read, where a newer Reprise wrote it.
        skipped: messages that are no chunks, and checkpoints whose sum is wrong.
    """

    def __init__(self) -> None:
        self.state: bytes | None = None
        self.newer: NewerVersionError | None = None
        self.skipped = 0
        self._chunks: dict[int, Chunk] = {}

    def put(self, key: bytes | None, value: bytes | None) -> None:
        """The next message. Cost O(bytes)."""
        if value is None:
            return
        try:
            check_state_version(value, "a checkpoint of routing", CHUNK_VERSION)
        except NewerVersionError as error:
            self.newer = error
            return
        try:
            chunk = _decoder.decode(value)
            place = int(key or b"")
        except (msgspec.DecodeError, ValueError):
            self.skipped += 1
            return
        if not 0 <= place < chunk.count:
            self.skipped += 1
            return
        self._chunks[place] = chunk
        if place == chunk.count - 1:
            self._complete(chunk)

    def _complete(self, last: Chunk) -> None:
        found = [self._chunks.get(place) for place in range(last.count)]
        whole = [
            chunk.content
            for chunk in found
            if chunk is not None and (chunk.offset, chunk.sum) == (last.offset, last.sum)
        ]
        if len(whole) < last.count:
            return
        state = b"".join(whole)
        if xxhash.xxh3_64_intdigest(state) == last.sum:
            self.state, self.newer = state, None
        else:
            self.skipped += 1
