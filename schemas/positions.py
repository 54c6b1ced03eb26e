"""Where a fold stands: cursors of publishers, positions of logs."""

from enum import StrEnum
from typing import NamedTuple

import msgspec


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

    incarnation: int = 0
    sequence: int = -1
    engine_time: float = 0.0
    degraded_since: int | None = None

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

    README.md and docs/ say it in the same words. A replica cannot reach a log that it cannot read,
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
