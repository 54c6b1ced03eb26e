"""What engines send, one module for each kind of publisher; their wire versions end here.

A new kind is one module in this folder with two names, as `vllm` and `sglang` have them, and one
entry in `SOURCES`:

    KIND          how `/register` names it
    open_source   makes the decoder of one publisher's messages

What else is known of kinds stands in `schemas.registration.PUBLISHER_KINDS`. A kind that publishes
tokens by ZMQ takes no more; CONTRIBUTING.md names what others take, and docs/publishers.md shows
how, by two examples.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from xxhash import xxh3_64_intdigest

from bridge.wire import atom, dynamo, lmcache, mooncake, sglang, tokenspeed, trtllm, vllm
from bridge.wire.batch import DecodedBatch, DecodedRun, read_frames
from bridge.wire.drop_reasons import DropReason
from bridge.wire.stream_marks import read_topic
from schemas.arrays import ArrayPacker, MessageRun
from schemas.errors import BatchError
from schemas.registration import PublisherKind, Registration

__all__ = [
    "KINDS",
    "SOURCES",
    "DecodedBatch",
    "DecodedRun",
    "MessageDecoder",
    "SourceFactory",
    "open_source",
]


class MessageDecoder(Protocol):
    """Decodes one publisher's messages; one owner."""

    def decode(self, frames: Sequence[bytes]) -> DecodedBatch:
        """One message.

        Raises:
            FrameError: it has no place in the stream; whatever else is wrong stands in `dropped`.
        """
        ...

    def decode_run(
        self, messages: list[list[bytes]] | MessageRun, sequence: int, bytes_max: int
    ) -> DecodedRun | None:
        """As many of the first messages as are plain batches that follow on one another, at a
        fraction of what each costs alone; None where `decode` has to look at the first.

        Args:
            messages: their frames, or a run.
            sequence: that the first is to have.
            bytes_max: of their events.
        """
        ...


SourceFactory = Callable[[Registration, ArrayPacker], MessageDecoder]


SOURCES: Final[Mapping[PublisherKind, SourceFactory]] = MappingProxyType(
    {
        vllm.KIND: vllm.open_source,
        trtllm.KIND: trtllm.open_source,
        sglang.KIND: sglang.open_source,
        mooncake.KIND: mooncake.open_source,
        dynamo.KIND: dynamo.open_source,
        tokenspeed.KIND: tokenspeed.open_source,
        atom.KIND: atom.open_source,
        lmcache.KIND: lmcache.open_source,
    }
)
"""The decoder of each kind, in the order in which errors name the kinds."""

KINDS: Final = tuple(SOURCES)
"""Those that `/register` accepts, in the same order."""


class _UnknownKind:
    """A publisher that a newer version registered: its batches are dropped, counted as such."""

    def __init__(self, kind: PublisherKind) -> None:
        self._detail = f"Expected a publisher of type {' or '.join(KINDS)}, got: {kind}"

    def decode(self, frames: Sequence[bytes]) -> DecodedBatch:
        """See `MessageDecoder`."""
        sequence, payload = read_frames(frames)
        unusable = BatchError(DropReason.UNKNOWN_KIND, self._detail)
        return DecodedBatch.unusable(sequence, xxh3_64_intdigest(payload), unusable)

    def decode_run(
        self, messages: list[list[bytes]] | MessageRun, sequence: int, bytes_max: int
    ) -> DecodedRun | None:
        """See `MessageDecoder`."""
        return None


class _Streamed:
    """The messages of a stream: those of its engine's kind, and marks (`stream_marks`)."""

    def __init__(self, source: MessageDecoder) -> None:
        self._source = source

    def decode(self, frames: Sequence[bytes]) -> DecodedBatch:
        """See `MessageDecoder`."""
        batch = self._source.decode(frames)
        mark, skipped = read_topic(frames[0])
        return batch._replace(mark=mark, skipped=skipped) if mark or skipped else batch

    def decode_run(
        self, messages: list[list[bytes]] | MessageRun, sequence: int, bytes_max: int
    ) -> DecodedRun | None:
        """See `MessageDecoder`: what is marked is decoded alone."""
        if not isinstance(messages, list) or any(frames[0] for frames in messages):
            return None
        return self._source.decode_run(messages, sequence, bytes_max)


def open_source(registration: Registration, packer: ArrayPacker) -> MessageDecoder:
    """The decoder for a publisher of the registration's kind."""
    factory = SOURCES.get(registration.kind)
    if factory is None:
        return _UnknownKind(registration.kind)
    source = factory(registration, packer)
    return _Streamed(source) if registration.has_stream else source
