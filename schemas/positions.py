"""Where a fold stands: cursors of publishers, positions of logs."""

import sys
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from schemas.limits import INCARNATION_MAX, OFFSET_MAX, SEQUENCE_MAX

IncarnationNumber = Annotated[int, Meta(ge=0, le=INCARNATION_MAX)]
"""0 before a publisher's first batch."""

SequenceNumber = Annotated[int, Meta(ge=-1, le=SEQUENCE_MAX)]
"""-1 before an incarnation's first batch."""

LogOffset = Annotated[int, Meta(ge=-1, le=OFFSET_MAX)]
"""-1 for nothing."""

Seconds = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Unix seconds; finite."""


class Cursor(NamedTuple):
    """The last batch of a publisher that is in the log, or that a table has folded.

    Cursors order as tuples do: a higher incarnation is later whatever the sequence.
    """

    incarnation: int
    sequence: int


NO_CURSOR = Cursor(0, -1)
"""Before the first batch of the first incarnation."""


class PublisherState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a table remembers of one publisher.

    Attributes:
        incarnation, sequence: the cursor.
        engine_time: the engine's timestamp of that batch, Unix seconds; 0 where none came.
        degraded_since: sequence of the first lost batch, or None: the table may miss blocks of this
            publisher, and may list blocks that it has evicted, until a reset or a clear.
    """

    incarnation: IncarnationNumber = 0
    sequence: SequenceNumber = -1
    engine_time: Seconds = 0.0
    degraded_since: SequenceNumber | None = None

    @property
    def cursor(self) -> Cursor:
        """The last folded batch."""
        return Cursor(self.incarnation, self.sequence)


class AnswerState(StrEnum):
    """How far an answer can be trusted; sent with every answer, the worst of its scope.

        exact       nothing is known to be missing
        degraded    something is known to be missing: batches of a publisher in the scope were lost
        stale       the table is behind its log: by more than 5 s or 100,000 records, or for as long
                    as the log cannot be reached

    README.md and docs/ use the same words. A replica cannot reach a log that it cannot read,
    the embedded service one that it cannot append to: what was received since is not in the table.
    """

    EXACT = "exact"
    DEGRADED = "degraded"
    STALE = "stale"


class Position(NamedTuple):
    """A table has folded every record of `partition` up to and including `offset` (-1: none)."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class LogBounds(NamedTuple):
    """What a log, or one partition of it, has: everything from `start` on, up to before `end`."""

    start: int
    end: int
