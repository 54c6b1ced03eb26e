"""The catalogue of workers: registrations of instances whose names are numbers."""

from collections.abc import Callable, Collection, Iterable
from itertools import groupby
from typing import NamedTuple

import msgspec

from query_api.http.errors import RequestError
from query_api.http.requests.queries import missing
from query_api.http.requests.registrations import read_registration
from query_api.http.wire import Wire
from query_api.ports import PublisherRegistry, View
from routing.bounds import TARGETS_KEPT_S
from routing.decisions.interface import OfferedCandidate
from routing.select.bodies import WorkerBody
from schemas.identities import DEFAULT_TENANT
from schemas.registration import NO_EVENTS, PublisherKind, Registration, Unregistration
from schemas.routing_records import Target


class WorkerDocument(msgspec.Struct, frozen=True):
    """A worker, as Dynamo's catalogue has it; `lifecycle` is `schedulable` or `unschedulable`."""

    worker_id: int
    model_name: str
    routing_group: str
    lifecycle: str
    endpoint: str | None
    kv_events_endpoint: str | None
    kv_events_endpoints: dict[str, str]
    replay_endpoint: str | None
    block_size: int
    data_parallel_start_rank: int
    data_parallel_size: int
    total_kv_blocks: int | None
    topology_domains: dict[str, str]
    not_schedulable_reasons: list[str] = []


class Partition(NamedTuple):
    """The workers of a model and a routing group.

    Attributes:
        ranks: the registrations, sorted by worker and rank.
    """

    model_name: str
    routing_group: str
    block_size: int
    ranks: list[Registration]

    @property
    def names(self) -> list[tuple[str, int]]:
        """Instance and rank of each."""
        return [(one.instance_id, one.dp_rank) for one in self.ranks]

    @property
    def targets(self) -> list[Target]:
        """What load is of."""
        return [Target(self.routing_group, *name) for name in self.names]

    def offered(self, allowed: Iterable[int] | None = None) -> tuple[OfferedCandidate, ...]:
        """As candidates; of those workers, or of all. One with an unknown number is none."""
        names = None if allowed is None else {str(one) for one in allowed}
        return tuple(
            OfferedCandidate(one.instance_id, one.dp_rank, endpoint=one.http_url)
            for one in self.ranks
            if names is None or one.instance_id in names
        )


def worker_id_of(registration: Registration) -> int | None:
    """Its number; None for an instance that has a name."""
    name = registration.instance_id
    if not (name.isascii() and name.isdecimal() and len(name) <= 19) or str(int(name)) != name:
        return None
    return int(name)


class Catalogue:
    """See the module. Every call costs O(publishers), but `partition` only once in TARGETS_KEPT_S.

    Args:
        view: that knows what is registered.
        registry: that registers.
        monotonic: seconds since some moment.
    """

    def __init__(
        self, view: View, registry: PublisherRegistry, monotonic: Callable[[], float]
    ) -> None:
        self._view = view
        self._monotonic = monotonic
        self._registry = registry
        self._until = float("-inf")
        self._known: dict[tuple[str, str], list[Partition]] = {}

    def partitions(
        self, model_name: str | None = None, routing_group: str | None = None
    ) -> list[Partition]:
        """Those that have workers, sorted by model and routing group."""
        found: dict[tuple[str, str, int], list[Registration]] = {}
        for service in self._view.services():
            one = service.registration
            if one.is_pool or worker_id_of(one) is None:
                continue
            if model_name in (None, one.model_name) and routing_group in (None, one.tenant_id):
                key = (one.model_name, one.tenant_id, one.block_size)
                found.setdefault(key, []).append(one)
        return [Partition(*key, sorted(found[key], key=_order)) for key in sorted(found)]

    def partition(self, model_name: str, routing_group: str) -> Partition:
        """The one of that name.

        Raises:
            RequestError: it has no worker, or workers of several block sizes.
        """
        if self._monotonic() >= self._until:
            self._known = {}
            for one in self.partitions():
                self._known.setdefault((one.model_name, one.routing_group), []).append(one)
            self._until = self._monotonic() + TARGETS_KEPT_S
        found = self._known.get((model_name, routing_group), [])
        of = f"model {model_name[:80]}, routing group {routing_group[:80]}"
        if not found:
            text = f"Expected a registered worker of {of}, got none"
            raise RequestError("no_candidate", text, field="model_name", status=503)
        if len(found) > 1:
            sizes = ", ".join(str(one.block_size) for one in found)
            text = f"Expected workers of one block size of {of}, got: {sizes}"
            raise RequestError("conflict", text, field="block_size", status=409)
        return found[0]

    def documents(self, model_name: str | None, routing_group: str | None) -> list[WorkerDocument]:
        """All workers, by model, routing group and number."""
        connected = {
            service.registration.publisher: service.connected is not False
            for service in self._view.services()
        }
        return [
            _document(ranks, [connected.get(one.publisher, True) for one in ranks])
            for partition in self.partitions(model_name, routing_group)
            for _, group in groupby(partition.ranks, key=worker_id_of)
            for ranks in [list(group)]
        ]

    async def add(self, asked: WorkerBody) -> WorkerDocument:
        """Registers each rank of a worker; where one is refused, those before it stay.

        Raises:
            RequestError, RegistrationError, EndpointError, StorageError: it cannot be.
        """
        ranks = registrations_of(asked, self._registry.kinds)
        for one in ranks:
            await self._registry.register(one)
            self._until = float("-inf")
        return _document(ranks, [True] * len(ranks))

    def worker(self, worker_id: int) -> tuple[WorkerDocument, list[Registration]]:
        """A worker and its ranks.

        Raises:
            RequestError: there is none, or one in each of several partitions.
        """
        found = [
            ranks
            for partition in self.partitions()
            if (ranks := [one for one in partition.ranks if worker_id_of(one) == worker_id])
        ]
        if not found:
            text = f"Expected the number of a worker, got: {worker_id}"
            raise RequestError("not_found", text, field="worker_id", status=404)
        if len(found) > 1:
            text = (
                f"Expected a worker of one model and routing group, got {worker_id}, which is in"
                f" {len(found)}"
            )
            raise RequestError("conflict", text, field="worker_id", status=409)
        return _document(found[0], [True] * len(found[0])), found[0]

    async def remove(self, worker_id: int) -> WorkerDocument:
        """Forgets a worker, with its blocks. Raises as `worker`, and StorageError."""
        document, ranks = self.worker(worker_id)
        for one in ranks:
            await self._registry.unregister(Unregistration.of(one))
            self._until = float("-inf")
        return document


def registrations_of(asked: WorkerBody, kinds: Collection[PublisherKind]) -> list[Registration]:
    """One of each rank, checked as the bodies of `POST /register` are.

    Raises:
        RequestError: something is missing, or is not as it must be.
    """
    if asked.block_size is None:
        raise missing("block_size")
    if not asked.endpoint:
        raise missing("endpoint")
    first, count = asked.data_parallel_start_rank or 0, asked.data_parallel_size or 1
    endpoints = asked.kv_events_endpoints
    if not endpoints and asked.kv_events_endpoint and count == 1:
        endpoints = {str(first): asked.kv_events_endpoint}
    found = []
    has_events = bool(asked.kv_events_endpoint or asked.kv_events_endpoints)
    for rank in range(first, first + count):
        if has_events and str(rank) not in endpoints:
            text = (
                "Expected an address in kv_events_endpoints for each rank, or for none, got none"
                f" for rank {rank}"
            )
            raise RequestError("unsupported", text, field="kv_events_endpoints", status=501)
        body = {
            "endpoint": endpoints[str(rank)] if has_events else "",
            "type": asked.type if has_events else NO_EVENTS,
            "modelname": asked.model_name,
            "instance_id": str(asked.worker_id),
            "block_size": asked.block_size,
            "dp_rank": rank,
            "tenant_id": asked.routing_group or DEFAULT_TENANT,
            # It replays what one rank has published: of which, it does not say.
            "replay_endpoint": (asked.replay_endpoint or "") if has_events and count == 1 else "",
            "http_endpoint": asked.endpoint,
            "labels": asked.topology_domains,
            "kv_capacity_tokens": (asked.total_kv_blocks or 0) * asked.block_size,
        }
        found.append(read_registration(msgspec.json.encode(body), Wire.JSON, kinds))
    return found


def _order(registration: Registration) -> tuple[int, int]:
    return (worker_id_of(registration) or 0, registration.dp_rank)


def _document(ranks: list[Registration], connected: list[bool]) -> WorkerDocument:
    one = ranks[0]
    is_there = any(connected)
    single = len(ranks) == 1
    return WorkerDocument(
        int(one.instance_id),
        one.model_name,
        one.tenant_id,
        "schedulable" if is_there else "unschedulable",
        one.http_url or None,
        (one.endpoint or None) if single else None,
        {str(each.dp_rank): each.endpoint for each in ranks if each.endpoint},
        one.replay_endpoint or None,
        one.block_size,
        one.dp_rank,
        ranks[-1].dp_rank - one.dp_rank + 1,
        one.kv_capacity_tokens // one.block_size or None,
        {label.name: label.value for label in one.labels},
        [] if is_there else ["its events cannot be received"],
    )
