"""What waits of a publisher while it is held, and what is known to be missing meanwhile."""

from typing import NamedTuple

from bridge.wire import DecodedBatch
from schemas.positions import Cursor


class Held(NamedTuple):
    """A batch that waits, and the bytes of its message; over which link it came, 0 for unknown."""

    batch: DecodedBatch
    size_bytes: int
    link: int


class Missing(NamedTuple):
    """Batches that are known to have been sent, and become a gap unless a replay brings them.

    Attributes:
        cursor: everything up to it.
        reason: of the gap.
    """

    cursor: Cursor
    reason: str
