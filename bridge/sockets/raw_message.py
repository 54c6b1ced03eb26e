"""What the bridge's sockets hand on: one received message, not yet decoded."""

from typing import NamedTuple

from bridge.link_numbers import NO_LINK, LinkNumber
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
    def size_bytes(self) -> int:
        """The bytes of all frames."""
        return self.counted_bytes or sum(map(len, self.frames))
