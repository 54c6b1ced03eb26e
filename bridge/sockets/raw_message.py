"""What the bridge's sockets hand on: received messages, not yet decoded."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bridge.link_numbers import NO_LINK, LinkNumber
from schemas.arrays import MessageRun
from schemas.identities import PublisherKey


class RawMessage(NamedTuple):
    """One multipart message as it came; only `bridge.wire` knows what the frames mean.

    Attributes:
        publisher: whose socket it came from.
        frames: as received.
        received_at: monotonic seconds.
        link: that it was sent over.
        batch: what the frames were decoded to, where that has been done ahead; else None.
        counted_bytes: of all frames, where they were counted as they came; else 0.
    """

    publisher: PublisherKey
    frames: list[bytes]
    received_at: float
    link: LinkNumber = NO_LINK
    batch: object = None
    counted_bytes: int = 0

    @property
    def messages(self) -> int:
        """How many these are: one."""
        return 1

    @property
    def size_bytes(self) -> int:
        """The bytes of all frames."""
        return self.counted_bytes or sum(map(len, self.frames))


class RawRun(NamedTuple):
    """Several messages that came together, without an object for each; none of them is large.

    Attributes:
        publisher, received_at, link: as of each of them.
        run: their frames.
    """

    publisher: PublisherKey
    run: MessageRun
    received_at: float
    link: LinkNumber = NO_LINK

    @property
    def messages(self) -> int:
        """How many these are."""
        return len(self.run)

    @property
    def size_bytes(self) -> int:
        """The bytes of all frames of all of them."""
        return self.run.size_bytes

    def message(self, at: int) -> RawMessage:
        """One of them by itself. Cost O(bytes)."""
        return RawMessage(self.publisher, self.run.message(at), self.received_at, self.link)

    def first(self, count: int) -> "RawRun":
        """So many of the first."""
        return RawRun(self.publisher, self.run.first(count), self.received_at, self.link)

    def after(self, count: int) -> "RawRun":
        """Those behind so many of the first."""
        return RawRun(self.publisher, self.run.after(count), self.received_at, self.link)


Received = RawMessage | RawRun
"""What comes of a socket, in order."""


def count_of(received: Iterable[Received]) -> int:
    """How many messages these are."""
    return sum(one.messages for one in received)


def each_of(received: Iterable[Received]) -> Iterator[RawMessage]:
    """Every message by itself, in order."""
    for one in received:
        if isinstance(one, RawRun):
            yield from map(one.message, range(one.messages))
        else:
            yield one


def behind(received: Sequence[Received], count: int) -> list[Received]:
    """What comes behind so many of the first messages."""
    for at, one in enumerate(received):
        if count < one.messages:
            rest = one.after(count) if isinstance(one, RawRun) and count else one
            return [rest, *received[at + 1 :]]
        count -= one.messages
    return []
