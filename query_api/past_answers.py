"""What the HTTP API asks of the past, answered from past tables."""

import asyncio
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from query_api.past_view import PastTableView
from query_api.ports import AsOf, PastQuestion, Positions
from query_api.table_view import TableView
from schemas.errors import PastError
from schemas.identities import Offset, PublisherKey, StreamKey
from schemas.limits import STALE_S
from streams.history.explain import Explanation, Question, explain
from streams.history.past_fold import Blocks
from streams.history.past_tables import PastTable, PastTables
from streams.table.scope_states import (
    NO_CONTRADICTIONS,
    Contradiction,
    Contradictions,
    FreshUntil,
    scope_of,
)

HISTORY_ANSWERS_MAX: Final = 8  # answers that wait for their turn: reason="as_of_busy"

T = TypeVar("T")


class PastAnswers:
    """Implements `query_api.ports.History`.

    Args:
        positions_at: of a time, by the log; Unix seconds. Called in a thread, as `look`.
        partition_of: which partition has a stream's records.
        look: called before each answer, to see how far the log goes by then.
        is_of_one_writer: whether this service writes all records: each says that it was up then,
            and heartbeats are written where they have news alone.
    """

    def __init__(
        self,
        tables: PastTables,
        *,
        positions_at: Callable[[float], Positions],
        partition_of: Callable[[StreamKey], int] = lambda stream: 0,
        look: Callable[[], None] = lambda: None,
        is_of_one_writer: bool = False,
    ) -> None:
        self._tables = tables
        self._positions_at = positions_at
        self._partition_of = partition_of
        self._look = look
        self._is_of_one_writer = is_of_one_writer
        self._contradictions = NO_CONTRADICTIONS
        self._turn = asyncio.Lock()
        self._waiting = 0

    def contradict(self, contradictions: Contradictions) -> None:
        """Outcomes contradict this of the table now. From any thread."""
        self._contradictions = contradictions

    async def view_as_of(self, as_of: AsOf, asked: PastQuestion) -> TableView:
        """See `History`."""
        return await self._in_turn(lambda: self._view(as_of, asked))

    async def explain(self, as_of: AsOf, question: Question) -> Explanation:
        """See `History`."""
        return await self._in_turn(lambda: self._explained(as_of, question))

    async def _in_turn(self, answer: Callable[[], T]) -> T:
        """Calls it in a thread, once those before it are done."""
        if self._waiting >= HISTORY_ANSWERS_MAX:
            raise PastError(
                "as_of_busy",
                f"Expected at most {HISTORY_ANSWERS_MAX} queries of the past at once, got one"
                " more; try"
                " again",
                status=503,
            )
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(answer)
        finally:
            self._waiting -= 1

    def _view(self, as_of: AsOf, asked: PastQuestion) -> TableView:
        self._look()
        blocks = Blocks(asked.prefixes(), asked.lora_name)
        positions = self._positions(as_of)
        table = self._tables.as_of(positions, asked.includes, name=asked[:3], blocks=blocks)
        moment = as_of.seconds
        if moment is None:
            view = PastTableView(table, dict.fromkeys(table.heartbeats, math.inf))
        else:
            view = PastTableView(table, self._fresh_until(table), moment=moment)
        if found := self._contradictions.publishers:
            until = self._until(positions) if moment is None else moment
            view.contradict(_known_by(found, until))
        return view

    def _fresh_until(self, table: PastTable) -> FreshUntil:
        """Until when heartbeats count, by the clock of the bridge that wrote each."""
        heard = {source: one.time - one.age for source, one in table.heartbeats.items()}
        if self._is_of_one_writer:
            ((_, offset),), (past,) = table.positions, self._tables.pasts
            written_at = past.written_at(offset)
            heard = dict.fromkeys(heard, -math.inf if written_at is None else written_at)
        return {source: seconds + STALE_S for source, seconds in heard.items()}

    def _until(self, positions: Positions) -> float:
        """When the log had more than these positions, Unix seconds; inf where it has not."""
        pasts = zip(self._tables.pasts, positions, strict=True)
        following = (past.written_at(offset + 1) for past, (_, offset) in pasts)
        return min((one for one in following if one is not None), default=math.inf)

    def _explained(self, as_of: AsOf, question: Question) -> Explanation:
        self._look()
        partition = self._partition_of(question.context.stream)
        offset = self._positions(as_of)[partition].offset
        return explain(self._tables.pasts[partition], question, Offset(offset))

    def _positions(self, as_of: AsOf) -> Positions:
        if as_of.seconds is not None:
            return self._positions_at(as_of.seconds)
        positions = as_of.positions or ()
        partitions = [past.partition for past in self._tables.pasts]
        if [position.partition for position in positions] != partitions:
            named = ",".join(f"{partition}:OFFSET" for partition in partitions[:3])
            more = ",..." if len(partitions) > 3 else ""
            raise PastError(
                "as_of_of_another_log",
                f"Expected a position of this log, which has {len(partitions)} partitions:"
                f" {named}{more}; got: {','.join(map(str, positions[:8])) or 'none'}",
            )
        return positions


def _known_by(found: Mapping[PublisherKey, Contradiction], moment: float) -> Contradictions:
    """Those of them that were known at a moment."""
    known = {publisher: one for publisher, one in found.items() if one.since <= moment}
    scopes = frozenset(scope_of(publisher.stream) for publisher in known)
    return Contradictions(MappingProxyType(known), scopes)
