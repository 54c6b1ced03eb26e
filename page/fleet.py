"""What is known of each instance, joined from several documents of the API."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from query_api.gaps import GapsDocument
from query_api.http.memory_models import MemorySegment
from query_api.http.models import Service, TableDigest
from routing.http.documents import RoutingDocument, TargetDocument
from routing.http.models import PromiseRow, PromisesDocument
from schemas.answer_states import AnswerState
from schemas.identities import is_hidden

STATES: Final = {state.value: place for place, state in enumerate(AnswerState)}
"""From the best one to the worst."""

_ACTIVITIES: Final = ("disconnected", "replaying", "silent", "active", "")

InstanceKey = tuple[str, str]
"""Tenant and instance."""


class InstanceRow(msgspec.Struct, kw_only=True):
    """An instance, all of its ranks and models together; None: nobody says it.

    Attributes:
        state, reason, since: of the worst of its publishers; Unix seconds.
        activity: of the one that does least.
        publishers: how many it has.
        blocks: that the index has of it and answers count, each rank and tier apart.
        prompt_tokens, promised_tokens, cached_tokens: of the decisions of the last minute that were
            reported: of their prompts, said to be cached, and found to be.
        wait_ms: until its first rank would begin with another request.
        kv_usage: 0 to 1, of its fullest rank.
        pressure: of the memory that its KV cache is in, as kvcached says; 1 is full.
        lost_batches: that never came, since it was registered.
    """

    tenant_id: str
    instance_id: str
    models: list[str]
    publishers: int
    state: str
    reason: str
    since: float
    activity: str
    blocks: int | None = None
    prompt_tokens: int | None = None
    promised_tokens: int | None = None
    cached_tokens: int | None = None
    wait_ms: float | None = None
    requests: int | None = None
    kv_usage: float | None = None
    pressure: float | None = None
    lost_batches: int | None = None


class InstancesDocument(msgspec.Struct, kw_only=True):
    """All of them, by tenant and name."""

    count: int
    instances: list[InstanceRow]


class FleetDocuments(NamedTuple):
    """What the rows are joined from; None: it could not be had, and what it has is None in them.

    Attributes:
        promises: by instance, of the last minute.
    """

    services: Sequence[Service]
    table: TableDigest | None = None
    gaps: GapsDocument | None = None
    routing: RoutingDocument | None = None
    promises: PromisesDocument | None = None
    segments: Sequence[MemorySegment] = ()


def instance_rows(documents: FleetDocuments) -> list[InstanceRow]:
    """A row for each instance that is registered, by tenant and name. Cost O(what is in them)."""
    rows = _rows_of(documents.services)
    if documents.table is not None:
        _add_blocks(rows, documents.table)
    if documents.gaps is not None:
        _add_losses(rows, documents.gaps)
    if documents.routing is not None:
        _add_loads(rows, documents.routing.targets)
    if documents.promises is not None:
        _add_promises(rows, documents.promises.rows)
    _add_pressures(rows, documents.segments)
    return [rows[key] for key in sorted(rows)]


def _rows_of(services: Iterable[Service]) -> dict[InstanceKey, InstanceRow]:
    rows: dict[InstanceKey, InstanceRow] = {}
    for one in services:
        key = (one.TenantID, one.InstanceID)
        row = rows.get(key)
        if row is None:
            rows[key] = InstanceRow(
                tenant_id=one.TenantID,
                instance_id=one.InstanceID,
                models=[one.ModelName],
                publishers=1,
                state=one.State,
                reason=one.Reason,
                since=one.Since,
                activity=one.Activity,
            )
            continue
        row.publishers += 1
        if one.ModelName not in row.models:
            row.models.append(one.ModelName)
        if STATES[one.State] > STATES[row.state]:
            row.state, row.reason, row.since = one.State, one.Reason, one.Since
        if _ACTIVITIES.index(one.Activity) < _ACTIVITIES.index(row.activity):
            row.activity = one.Activity
    return rows


def _add_blocks(rows: dict[InstanceKey, InstanceRow], table: TableDigest) -> None:
    for row in rows.values():
        row.blocks = 0
    for context in table.contexts:
        row_of = rows.get((context.tenant_id, context.instance_id))
        # How often blocks were announced again, or what is left out, is no block of it.
        if row_of is not None and not is_hidden(context.lora_name):
            row_of.blocks = (row_of.blocks or 0) + context.entries


def _add_losses(rows: dict[InstanceKey, InstanceRow], gaps: GapsDocument) -> None:
    for one in gaps.publishers:
        row = rows.get((one.tenant_id, one.instance_id))
        if row is not None:
            row.lost_batches = (row.lost_batches or 0) + sum(one.totals.lost.values())


def _add_loads(rows: dict[InstanceKey, InstanceRow], targets: Iterable[TargetDocument]) -> None:
    for row in rows.values():  # of whom nothing is said, nothing is known to be under way
        row.requests = 0
    for one in targets:
        known = rows.get((one.tenant_id, one.instance_id))
        if known is None:
            continue
        known.requests = (known.requests or 0) + one.requests
        if known.wait_ms is None or one.wait_ms < known.wait_ms:
            known.wait_ms = one.wait_ms
        if one.kv_usage is not None:
            known.kv_usage = max(known.kv_usage or 0.0, one.kv_usage)


def _add_promises(rows: dict[InstanceKey, InstanceRow], promises: Iterable[PromiseRow]) -> None:
    for one in promises:
        row = rows.get((one.tenant_id, one.name))
        if row is not None:
            row.prompt_tokens = one.tokens.prompt
            row.promised_tokens = one.tokens.promised
            row.cached_tokens = one.tokens.actual


def _add_pressures(rows: dict[InstanceKey, InstanceRow], segments: Iterable[MemorySegment]) -> None:
    for segment in segments:
        if segment.state != "live":
            continue
        for one in segment.instances:
            row = rows.get((one.tenant_id, one.instance_id))
            if row is not None:
                row.pressure = max(row.pressure or 0.0, segment.pressure)
