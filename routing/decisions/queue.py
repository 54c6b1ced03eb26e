"""What is to be written into the routing log, in the order in which it came; bounded.

An answer never waits for it: what finds no room is dropped and counted. Then other services do not
know of it, and nothing is learned from it; this one goes by it all the same.
"""

import threading
from collections.abc import Iterable
from typing import Final

from routing.bounds import ROUTING_QUEUE_ITEMS
from routing.sizes import OBJECT_SIZE, decision_bytes, target_bytes, text_bytes
from schemas.limits import KIB, MIB
from schemas.routing_records import (
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

_Item = tuple[int, Decision] | tuple[int, FeedbackReport] | LoadSample | UnregisteredEngine


class RoutingQueue:
    """See the module. Any thread may call it, and none waits.

    Attributes:
        kept: items that found room; `dropped`: those that found none.
    """

    def __init__(
        self, items_max: int = ROUTING_QUEUE_ITEMS, bytes_max: int = ROUTING_QUEUE_BYTES_MAX
    ) -> None:
        self.kept = self.dropped = 0
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._items: list[tuple[int, _Item]] = []  # with what each takes, bytes
        self._bytes = 0
        self._taken = 0  # by the last call, and perhaps not written yet
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many wait, those included that are being written."""
        return self._taken + len(self._items)

    def push_decision(self, run: int, decision: Decision) -> None:
        """A decision of this service."""
        self._push([(run, decision)])

    def push_outcomes(self, outcomes: Iterable[tuple[int, FeedbackReport]]) -> None:
        """Reports, each with the run that it is about."""
        self._push(outcomes)

    def push_samples(self, samples: Iterable[LoadSample]) -> None:
        """What targets carry."""
        self._push(samples)

    def push_unregistered(self, engines: Iterable[UnregisteredEngine]) -> None:
        """Engines without events that are registered no more."""
        self._push(engines)

    def _push(self, items: Iterable[_Item]) -> None:
        with self._lock:
            for item in items:
                size = _size_of(item)
                has_room = self._bytes + size <= self._bytes_max or not self._items
                if len(self._items) >= self._items_max or not has_room:
                    self.dropped += 1
                else:
                    self._items.append((size, item))
                    self._bytes += size
                    self.kept += 1

    def take(self, now: float) -> list[RoutingRecord]:
        """What has come since the last call, as records that are written now, Unix seconds. Who
        calls again has written, or lost, what it took before.
        """
        with self._lock:
            items, self._items, self._bytes = self._items, [], 0
            self._taken = len(items)
        records: list[RoutingRecord] = []
        some: list[_Item] = []
        total = 0
        for size, item in items:
            is_other = bool(some) and _name_of(some[0]) != _name_of(item)
            is_full = len(some) >= RECORD_ITEMS or total + size > ROUTING_RECORD_BYTES
            if some and (is_other or is_full):
                records.append(_record_of(some, now))
                some, total = [], 0
            some.append(item)
            total += size
        if some:
            records.append(_record_of(some, now))
        return records


def items_of(record: RoutingRecord) -> int:
    """How many decisions, reports, samples or engines it has."""
    content: tuple[object, ...] = getattr(record, record.__struct_fields__[-1])
    return len(content)


def _size_of(item: _Item) -> int:
    """Bytes, about."""
    if isinstance(item, LoadSample | UnregisteredEngine):
        return OBJECT_SIZE + target_bytes(item.target)
    content = item[1]
    if isinstance(content, Decision):
        return decision_bytes(content)
    return OBJECT_SIZE + text_bytes(content.instance_id or "", content.error)


def _name_of(item: _Item) -> tuple[type, int]:
    if isinstance(item, LoadSample | UnregisteredEngine):
        return type(item), 0
    return type(item[1]), item[0]


def _record_of(items: list[_Item], now: float) -> RoutingRecord:
    decisions: list[Decision] = []
    outcomes: list[FeedbackReport] = []
    samples: list[LoadSample] = []
    engines: list[UnregisteredEngine] = []
    run = 0
    for item in items:
        if isinstance(item, LoadSample):
            samples.append(item)
            continue
        if isinstance(item, UnregisteredEngine):
            engines.append(item)
            continue
        run, content = item
        if isinstance(content, Decision):
            decisions.append(content)
        else:
            outcomes.append(content)
    if decisions:
        return DecisionsRecord(run=run, time=now, decisions=tuple(decisions))
    if outcomes:
        return OutcomesRecord(run=run, time=now, outcomes=tuple(outcomes))
    if engines:
        return UnregisteredEngines(run=0, time=now, engines=tuple(engines))
    return LoadRecord(run=0, time=now, samples=tuple(samples))
