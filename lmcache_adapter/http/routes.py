"""LMCache's routes over HTTP; errors are ours, with the status that fits, where LMCache has 500."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from struct import iter_unpack, pack

from starlette.requests import Request
from starlette.responses import Response

from lmcache_adapter.http import models
from lmcache_adapter.http.command_requests import read_ranks
from lmcache_adapter.http.hashes import chunk_hashes, unknown
from lmcache_adapter.http.workers import WorkerSource, workers_of
from query_api.http import openapi
from query_api.http.errors import RequestError, recovering, shown
from query_api.http.requests.bodies import Bodies
from query_api.http.requests.fields import read_name, read_tokens
from query_api.http.requests.options import read_parameters
from query_api.http.requests.queries import missing
from query_api.http.route_table import Routes
from query_api.http.routes import read_request, respond
from query_api.http.wire import Wire, split_fields
from query_api.ports import View
from schemas.identities import PrefixScope
from schemas.registration import LMCACHE, HashProfile, Registration

_Known = Callable[[], Awaitable[Sequence[models.Worker]]]
_LOOKUP_EXAMPLE = {"tokens": [101, 15, 100, 55]}


def lmcache_routes(
    view: View, workers: WorkerSource | None, bodies: Bodies, default_wire: Wire
) -> Routes:
    """The routes that only look.

    Args:
        workers: who knows more of the workers; None: nobody.
        default_wire: of requests that name none.
    """
    router = Routes(tags=["LMCache"])
    turn = asyncio.Lock()

    async def known() -> Sequence[models.Worker]:
        if workers is not None:
            return await workers.lmcache_workers()
        async with turn:  # it may look through a context
            return await asyncio.to_thread(workers_of, view)

    @router.post(
        "/lookup",
        summary="Which LMCache instances hold a prefix of these tokens",
        openapi_extra=openapi.operation(
            models.LookupResponse,
            *Wire,
            body=models.LookupRequest,
            example=_LOOKUP_EXAMPLE,
            refused=(400, 413, 503),
        ),
    )
    async def lookup(request: Request) -> Response:
        body, wire = await read_request(request, bodies, default_wire)
        tokens = _read_tokens(body, wire)
        if not view.ready:
            raise recovering(view.health().problem)
        found = await asyncio.to_thread(_look_up, view, tokens)
        return respond(models.LookupResponse(f"Lookup{uuid.uuid4()}", found), wire)

    @router.get(
        "/controller/workers",
        summary="LMCache's workers",
        openapi_extra=openapi.operation(
            models.WorkerList,
            refused=(400, 404),
            parameters=[
                openapi.parameter("instance_id"),
                openapi.parameter("worker_id", "integer"),
            ],
        ),
    )
    async def listed(request: Request) -> Response:
        return _listed(await known(), *_read_filter(request))

    @router.get(
        "/controller/key-stats",
        summary="How many chunks LMCache's instances hold",
        openapi_extra=openapi.operation(models.KeyStats),
    )
    async def key_stats() -> Response:
        return respond(_stats_of(await known()), Wire.JSON)

    _add_questions(router, known, bodies, default_wire)
    return router


def _add_questions(router: Routes, known: _Known, bodies: Bodies, default_wire: Wire) -> None:
    @router.post(
        "/query_instance",
        summary="Which LMCache instance has a worker at an IP address",
        openapi_extra=openapi.operation(
            models.QueryInstanceAnswer,
            *Wire,
            body=models.QueryInstanceRequest,
            example={"ip": "10.0.0.7"},
            refused=(400, 404, 413),
        ),
    )
    async def query_instance(request: Request) -> Response:
        body, wire = await read_request(request, bodies, default_wire)
        fields = {field.name: field for field in split_fields(body, wire)}
        if "ip" not in fields:
            raise missing("ip")
        ip = read_name(fields["ip"], wire)
        for one in await known():
            if one.ip == ip:
                event_id = f"QueryInst{uuid.uuid4()}"
                return respond(models.QueryInstanceAnswer(event_id, one.instance_id), wire)
        raise _not_found(f"No LMCache worker at {ip} is registered")

    @router.post(
        "/query_worker_info",
        summary="LMCache's workers, of one instance or of all",
        openapi_extra=openapi.operation(
            models.QueryWorkerInfoAnswer,
            *Wire,
            body=models.QueryWorkerInfoRequest,
            example={"instance_id": "all"},
            refused=(400, 404, 413),
        ),
    )
    async def query_worker_info(request: Request) -> Response:
        body, wire = await read_request(request, bodies, default_wire)
        fields = {field.name: field for field in split_fields(body, wire)}
        if "instance_id" not in fields:
            raise missing("instance_id")
        instance_id = read_name(fields["instance_id"], wire)
        ranks = read_ranks(fields.get("worker_ids"), wire)
        found = [one for one in await known() if instance_id in ("all", one.instance_id)]
        if not found and instance_id != "all":
            raise _not_found(f"No workers found for instance {instance_id}")
        return respond(_infos_of(found, ranks), wire)


def _infos_of(
    workers: Sequence[models.Worker], ranks: Collection[int] | None
) -> models.QueryWorkerInfoAnswer:
    """Of these ranks; of all where none is named."""
    infos = [
        models.WorkerInfo(
            one.instance_id,
            one.worker_id,
            one.ip,
            one.port,
            one.peer_init_url,
            one.registration_time,
            one.last_heartbeat_time,
        )
        for one in workers
        if not ranks or one.worker_id in ranks
    ]
    return models.QueryWorkerInfoAnswer(f"QueryWorkerInfo{uuid.uuid4()}", infos)


def _listed(
    workers: Sequence[models.Worker], instance_id: str | None, worker_id: int | None
) -> Response:
    if instance_id is not None:
        workers = [one for one in workers if one.instance_id == instance_id]
        if not workers:
            raise _not_found(f"No workers found for instance {instance_id}")
    if instance_id is None or worker_id is None:
        return respond(models.WorkerList(list(workers), len(workers)), Wire.JSON)
    for one in workers:
        if one.worker_id == worker_id:
            return respond(one, Wire.JSON)
    raise _not_found(f"Worker ({instance_id}, {worker_id}) not found")


def _stats_of(workers: Sequence[models.Worker]) -> models.KeyStats:
    instances: dict[str, models.InstanceKeys] = {}
    for worker in workers:
        name = worker.instance_id
        one = instances.setdefault(name, models.InstanceKeys(name, 0, 0))
        one.key_count += worker.key_count
        one.worker_count += 1
    return models.KeyStats(
        total_key_count=sum(one.key_count for one in instances.values()),
        total_instance_count=len(instances),
        total_worker_count=len(workers),
        instances=list(instances.values()),
    )


def _read_tokens(body: bytes, wire: Wire) -> bytes:
    tokens: bytes | None = None
    for field in split_fields(body, wire):
        if field.name == "tokens":  # LMCache ignores others
            tokens = read_tokens(field, wire)
    if tokens is None:
        raise missing("tokens")
    return tokens


def _read_filter(request: Request) -> tuple[str | None, int | None]:
    texts = dict(read_parameters(request.scope["query_string"]))
    worker_id = texts.get("worker_id")
    if worker_id is None:
        return texts.get("instance_id"), None
    if not (worker_id.isascii() and worker_id.isdigit() and len(worker_id) < 11):
        text = f"Expected worker_id to be a number, got: {shown(worker_id)}"
        raise RequestError("invalid_value", text, field="worker_id")
    return texts.get("instance_id"), int(worker_id)


def _not_found(message: str) -> RequestError:
    return RequestError("not_found", message, status=404)


def _look_up(view: View, packed: bytes) -> dict[str, tuple[str, int]]:
    """By instance, the longest prefix. Cost O(tokens) for each way in which chunks are hashed."""
    tokens = [token for (token,) in iter_unpack("<i", packed)]
    registrations = [one.registration for one in view.services()]
    known = {_hashing(one) for one in registrations if one.kind == LMCACHE}
    usable = [(scope, profile) for scope, profile in known if profile is not None]
    if known and not usable:
        raise unknown(
            "Expected hash_algorithm of LMCache's workers (and hash_seed), which is in no entry of"
            " lmcache.models: tokens cannot be hashed as they do it; ask /query_by_hash"
        )
    found: dict[str, tuple[str, int]] = {}
    for scope, profile in usable:
        hashes = chunk_hashes(tokens, scope.block_size, profile)
        for match in view.kernel.query_by_hash(scope, pack(f"<{len(hashes)}Q", *hashes), None):
            longest = min(match.longest, len(tokens))
            if longest > found.get(match.instance_id, ("", 0))[1]:
                location = "LocalCPUBackend" if match.cpu >= match.longest else "LocalDiskBackend"
                found[match.instance_id] = (location, longest)
    return found


def _hashing(registration: Registration) -> tuple[PrefixScope, HashProfile | None]:
    tenant_id, model_name, block_size, salt, _ = registration.stream
    scope = PrefixScope(tenant_id, model_name, registration.lora_name, block_size, salt)
    return scope, registration.hash_profile
