"""What is to be written into the routing log, in the order in which it came; bounded.

An answer never waits for it: what finds no room is dropped and counted. Then other services do not
know of it, and nothing is learned from it; this one goes by it all the same.
"""

import threading
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, Final, NamedTuple

from routing.bounds import ROUTING_QUEUE_ITEMS
from routing.sizes import OBJECT_SIZE, decision_bytes, target_bytes, text_bytes
from schemas.limits import KIB, MIB
from schemas.routing_records import (
    BriefDecisions,
    Decision,
    DecisionsRecord,
    FeedbackReport,
    LoadRecord,
    LoadSample,
    OutcomesRecord,
    RoutingRecord,
    UnregisteredEngine,
    UnregisteredEngines,
)

ROUTING_QUEUE_BYTES_MAX: Final = 128 * MIB  # of these, with all candidates: likewise
ROUTING_RECORD_BYTES: Final = 512 * KIB  # of a record, which has one decision at the least

RECORD_ITEMS: Final = 64
"""Decisions or reports in one record, at the most: one of 64 candidates has some KiB."""


class _BriefDecision(NamedTuple):
    decision: Decision
    encoded: bytes


_Item = Decision | _BriefDecision | FeedbackReport | LoadSample | UnregisteredEngine

_RECORDS: Final[dict[type, Callable[[int, float, tuple[Any, ...]], RoutingRecord]]] = {
    Decision: lambda run, at, its: DecisionsRecord(run=run, time=at, decisions=its),
    _BriefDecision: lambda run, at, its: BriefDecisions(
        run=run,
        time=at,
        decisions=tuple([one.decision for one in its]),
        encoded=tuple([one.encoded for one in its]),
    ),
    FeedbackReport: lambda run, at, its: OutcomesRecord(run=run, time=at, outcomes=its),
    LoadSample: lambda run, at, its: LoadRecord(run=run, time=at, samples=its),
    UnregisteredEngine: lambda run, at, its: UnregisteredEngines(run=run, time=at, engines=its),
}
"""What has items of a type in the log: of a run, written at a time."""


class RoutingQueue:
    """See the module. Any thread may call it, and none waits.

    Attributes:
        kept: items that found room; `dropped`: those that found none.
        before_taken: called by who takes what there is, before that.
        ahead: how many are there that it hands on then, of which a window takes `window_items` at
            most; 0: all.
    """

    def __init__(
        self,
        items_max: int = ROUTING_QUEUE_ITEMS,
        bytes_max: int = ROUTING_QUEUE_BYTES_MAX,
        *,
        window_items: int = 0,
    ) -> None:
        self.window_items = window_items
        self.ahead: Callable[[], int] = lambda: 0
        self.kept = self.dropped = 0
        self.before_taken: Callable[[], None] = lambda: None
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._items: list[tuple[int, int, _Item]] = []  # with their runs, and their bytes
        self._bytes = 0
        self._taken = 0  # by the last call, and perhaps not written yet
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many wait, those included that are being written."""
        return self._taken + len(self._items)

    @property
    def has_much(self) -> bool:
        """Whether there is enough for a window."""
        return 0 < self.window_items <= self.ahead() + len(self._items)

    def push_decision(self, run: int, decision: Decision, encoded: bytes = b"") -> bool:
        """A decision of this service; says whether it found room.

        Args:
            run: of it.
            decision: all of it, or with its chosen candidate alone.
            encoded: in the latter case all of it, see `BriefDecisions`.
        """
        if not encoded:
            return self._push(run, decision, decision_bytes(decision))
        return self._push(run, _BriefDecision(decision, encoded), 2 * OBJECT_SIZE + len(encoded))

    def push_outcomes(self, outcomes: Iterable[tuple[int, FeedbackReport]]) -> None:
        """Reports, each with the run that it is about."""
        for run, one in outcomes:
            self.push_outcome(run, one)

    def push_outcome(self, run: int, outcome: FeedbackReport) -> bool:
        """A report of a decision of that run; says whether it found room."""
        size = OBJECT_SIZE + text_bytes(outcome.instance_id or "", outcome.error)
        return self._push(run, outcome, size)

    def push_samples(self, samples: Iterable[LoadSample]) -> None:
        """What targets carry."""
        for one in samples:
            self._push(0, one, OBJECT_SIZE + target_bytes(one.target))

    def push_unregistered(self, engines: Iterable[UnregisteredEngine]) -> None:
        """Engines without events that are registered no more."""
        for one in engines:
            self._push(0, one, OBJECT_SIZE + target_bytes(one.target))

    def _push(self, run: int, item: _Item, size: int) -> bool:
        with self._lock:
            has_room = self._bytes + size <= self._bytes_max or not self._items
            if len(self._items) >= self._items_max or not has_room:
                self.dropped += 1
                return False
            self._items.append((run, size, item))
            self._bytes += size
            self.kept += 1
            return True

    def take(self, now: float) -> list[RoutingRecord]:
        """What has come since the last call, as records that are written now, Unix seconds. Who
        calls again has written, or lost, what it took before.
        """
        self.before_taken()
        with self._lock:
            items, self._items, self._bytes = self._items, [], 0
            self._taken = len(items)
        records: list[RoutingRecord] = []
        for (kind, run), its in groupby(items, _kind_of):
            some, total = list[_Item](), 0
            for _, size, item in its:
                if some and (len(some) >= RECORD_ITEMS or total + size > ROUTING_RECORD_BYTES):
                    records.append(_RECORDS[kind](run, now, tuple(some)))
                    some, total = [], 0
                some.append(item)
                total += size
            records.append(_RECORDS[kind](run, now, tuple(some)))
        return records


def items_of(record: RoutingRecord) -> int:
    """How many decisions, reports, samples or engines it has."""
    content: tuple[object, ...] = getattr(record, record.__struct_fields__[-1])
    return len(content)


def _kind_of(item: tuple[int, int, _Item]) -> tuple[type, int]:
    """Items of one kind, and of one run, may stand in one record."""
    return type(item[2]), item[0]
