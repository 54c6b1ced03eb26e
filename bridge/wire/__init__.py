"""What engines send, one module for each kind of publisher; their wire versions end here.

A new kind is a module with a `Source` and an entry in `SOURCES`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from bridge.wire.batch import DecodedBatch
from bridge.wire.sglang import sglang_source
from bridge.wire.vllm import vllm_source
from schemas.arrays import ArrayPacker
from schemas.registration import PublisherKind, Registration

__all__ = ["SOURCES", "DecodedBatch", "Source", "SourceFactory", "open_source"]


class Source(Protocol):
    """Decodes one publisher's messages; one owner."""

    def decode(self, frames: Sequence[bytes]) -> DecodedBatch:
        """One message.

        Raises:
            FrameError: it has no place in the stream; whatever else is wrong stands in `dropped`.
        """
        ...


SourceFactory = Callable[[Registration, ArrayPacker], Source]

SOURCES: Final[Mapping[PublisherKind, SourceFactory]] = MappingProxyType(
    {PublisherKind.VLLM: vllm_source, PublisherKind.SGLANG: sglang_source}
)


def open_source(registration: Registration, packer: ArrayPacker) -> Source:
    """The decoder for a publisher of the registration's kind."""
    return SOURCES[registration.kind](registration, packer)
