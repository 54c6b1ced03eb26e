"""What a worker says beside the offset that its group commits: what it folded last, and how long
that took. Bridges write no further ahead of it than that allows (`bridge.delivery.partition_lag`).

It stands in the offset's metadata, which Kafka keeps and nobody else reads. A worker of another
version may say nothing.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

_Count = Annotated[int, Meta(ge=0, le=2**53)]


class FoldedWork(msgspec.Struct, frozen=True):
    """Of one partition, since the offset before.

    Attributes:
        records, size_bytes: that were folded; encoded.
        took_s: to fold them and to write what they changed, without the wait for brokers.
    """

    records: _Count
    size_bytes: _Count
    took_s: Annotated[float, Meta(ge=0.0, le=86_400.0)]


_decoder = msgspec.json.Decoder(FoldedWork)


def encode_work(work: FoldedWork) -> str:
    """The offset's metadata."""
    return msgspec.json.encode(work).decode()


def read_work(metadata: Any) -> FoldedWork | None:
    """What an offset's metadata says; None where it says nothing, or what is not of ours."""
    if not metadata or not isinstance(metadata, str):
        return None
    try:
        return _decoder.decode(metadata)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
