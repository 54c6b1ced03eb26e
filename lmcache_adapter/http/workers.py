"""The workers of LMCache as LMCache's own controller shows them, from a table.

What a table does not say: when a worker's last heartbeat came. For one that is confirmed it is now;
for others it is since when they are not. And chunks are counted by instance, so for one with
several workers its entries are looked through.
"""

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from lmcache_adapter.http.models import Worker
from query_api.ports import ServiceView, View
from schemas.answer_states import AnswerState
from schemas.clock import REAL_CLOCK
from schemas.identities import ModelContext
from schemas.limits import DUMP_CHUNK_ENTRIES_MAX
from schemas.registration import LMCACHE, Registration
from streams.kernel.changes import CHANGE_BYTES
from streams.kernel.interface import ReadOnlyKernel

_RANK: Final = struct.Struct("<16xI4x")
assert _RANK.size == CHANGE_BYTES


class WorkerSource(Protocol):
    """Who knows of workers more than a table."""

    async def lmcache_workers(self) -> Sequence[Worker]:
        """All of them, sorted by instance and rank."""
        ...


def worker_of(registration: Registration, heartbeat_at: float, keys: int) -> Worker:
    """One worker in LMCache's words; `heartbeat_at` in Unix seconds."""
    host, _, port = registration.endpoint.removeprefix("tcp://").rpartition(":")
    return Worker(
        instance_id=registration.instance_id,
        worker_id=registration.dp_rank,
        ip=host,
        port=int(port) if port.isascii() and port.isdigit() else 0,
        peer_init_url=registration.peer_url or None,
        registration_time=registration.registered_at,
        last_heartbeat_time=heartbeat_at,
        key_count=keys,
    )


def workers_of(view: View, *, clock: Callable[[], float] = REAL_CLOCK.unix) -> list[Worker]:
    """The workers of a table; the clock has Unix seconds. Cost O(contexts + entries of instances
    with several workers).
    """
    services = [one for one in view.services() if one.registration.kind == LMCACHE]
    ranks: dict[tuple[str, ...], list[ServiceView]] = defaultdict(list)
    for service in services:
        ranks[_names(service.registration)].append(service)
    counts: Counter[tuple[tuple[str, ...], int]] = Counter()
    for context, _, entries in view.kernel.contexts() if services else ():
        names = _context_names(context)
        found = ranks.get(names, [])
        if len(found) == 1:
            counts[names, found[0].registration.dp_rank] += entries
        elif found:
            for rank, count in _by_rank(view.kernel, context).items():
                counts[names, rank] += count
    now = clock()
    return sorted(
        (
            worker_of(
                service.registration,
                now if service.standing.state is AnswerState.EXACT else service.standing.since,
                counts[_names(service.registration), service.registration.dp_rank],
            )
            for service in services
        ),
        key=lambda worker: (worker.instance_id, worker.worker_id),
    )


def _names(registration: Registration) -> tuple[str, ...]:
    tenant_id, model_name, block_size, salt, instance_id = registration.stream
    return (tenant_id, model_name, str(block_size), salt, instance_id)


def _context_names(context: ModelContext) -> tuple[str, ...]:
    tenant_id, model_name, block_size, salt, instance_id = context.stream
    return (tenant_id, model_name, str(block_size), salt, instance_id)


def _by_rank(kernel: ReadOnlyKernel, context: ModelContext) -> Counter[int]:
    dump = kernel.open_dump(context)
    while dump.gather(DUMP_CHUNK_ENTRIES_MAX) >= DUMP_CHUNK_ENTRIES_MAX:
        pass
    counts: Counter[int] = Counter()
    while changes := dump.take(DUMP_CHUNK_ENTRIES_MAX):
        counts.update(rank for (rank,) in _RANK.iter_unpack(changes))
    return counts
