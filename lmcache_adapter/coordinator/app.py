"""The HTTP routes of LMCache's coordinator, with its bodies, its statuses and its errors.

    POST   /instances                       register
    PUT    /instances/ID/heartbeat          404 has its server register again
    DELETE /instances/ID                    leave
    GET    /instances, /instances/usage, /instances/ID/usage
    POST   /events                          what has become of objects
    PUT    /config/chunk-size
    POST   /directory/lookup                where objects are, by keys or by tokens
    POST   /directory/blend-lookup          nothing: contents of chunks are not kept
    GET    /directory/keys, /directory/stats
    GET    /quota, /quota/SALT, /quota/config
    GET    /cache/pins                      none
    GET    /healthz

Whatever would have a server do something is answered by 501, and says what does it.

Source: lmcache 0.5.7rc2, `lmcache/v1/mp_coordinator/http_apis/` and
`controllers/eviction_http_api.py`.
"""

import asyncio
import base64
import binascii
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmcache_adapter.coordinator import wire
from lmcache_adapter.coordinator.members import Backend, Member
from lmcache_adapter.coordinator.service import CoordinatorService
from lmcache_adapter.coordinator.tokens import object_keys
from lmcache_adapter.coordinator.wire import CoordinatorError, not_served, unprocessable
from lmcache_adapter.topic.batches import Batch, BatchError, UnreadableBatch, decode
from query_api.http.errors import ClientGoneError, RequestError, shown
from query_api.http.requests.bodies import Bodies
from schemas.errors import StorageError

LISTED_MAX: Final = 10_000  # of one page, as LMCache has it: 422

_GIB: Final = 2**30
_DEFAULT_SALT: Final = "_default"
"""What LMCache calls the empty salt in a path."""

_TIERS: Final = ("l1", "l2")
_NO_CONTENT: Final = "unmodified servers are asked at their own address, `POST /cache/prefetches`"
_NO_EVICTION: Final = "it evicts nothing, so that a quota or a pin would change nothing"

_register: Final = msgspec.json.Decoder(wire.Register)
_chunk_size: Final = msgspec.json.Decoder(wire.ChunkSize)
_lookup: Final = msgspec.json.Decoder(wire.Lookup)
_blend_lookup: Final = msgspec.json.Decoder(wire.BlendLookup)

T = TypeVar("T")
_logger = logging.getLogger(__name__)
_Handler = Callable[[Request], Awaitable[Response]]


def coordinator_app(service: CoordinatorService) -> Starlette:
    """The routes over one service. Any loop may serve them."""
    routes = _Routes(service)
    described: list[tuple[str, str, _Handler]] = [
        ("POST", "/instances", routes.register),
        ("GET", "/instances", routes.instances),
        ("GET", "/instances/usage", routes.fleet_usage),
        ("GET", "/instances/{instance_id:path}/usage", routes.instance_usage),
        ("PUT", "/instances/{instance_id:path}/heartbeat", routes.heartbeat),
        ("DELETE", "/instances/{instance_id:path}", routes.leave),
        ("POST", "/events", routes.events),
        ("PUT", "/config/chunk-size", routes.bind_chunk_size),
        ("POST", "/directory/lookup", routes.lookup),
        ("POST", "/directory/blend-lookup", routes.blend_lookup),
        ("GET", "/directory/keys", routes.keys),
        ("GET", "/directory/stats", routes.stats),
        ("GET", "/quota/config", routes.quota_config),
        ("GET", "/quota", routes.quotas),
        ("GET", "/quota/{cache_salt:path}", routes.quota),
        ("GET", "/cache/pins", routes.pins),
        ("GET", "/healthz", routes.health),
        *(
            (method, path, _refusing(what, instead))
            for method, path, what, instead in (
                ("PUT", "/quota/config", "enforce quotas", _NO_EVICTION),
                ("PUT", "/quota/{cache_salt:path}", "enforce quotas", _NO_EVICTION),
                ("DELETE", "/quota/{cache_salt:path}", "enforce quotas", _NO_EVICTION),
                ("POST", "/cache/pins", "pin objects", _NO_EVICTION),
                ("DELETE", "/cache/pins", "pin objects", _NO_EVICTION),
                ("POST", "/cache/prefetches", "prefetch", _NO_CONTENT),
                ("GET", "/cache/prefetches/{of:path}", "prefetch", _NO_CONTENT),
                (
                    "POST",
                    "/cache/delete",
                    "delete objects",
                    "unmodified servers are asked at their own address, `DELETE /cache/objects`",
                ),
            )
        ),
    ]
    app = Starlette(
        routes=[
            Route(path, routes.answering(handler), methods=[method])
            for method, path, handler in described
        ],
        exception_handlers={HTTPException: _unknown},
    )
    app.state.counts = routes.answered
    return app


def _json(document: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"detail": error.detail}, error.status_code)


def _refusing(what: str, instead: str) -> _Handler:
    async def refuse(request: Request) -> Response:
        raise not_served(what, instead)

    return refuse


class _Routes:
    """See the module.

    Attributes:
        answered: requests, by status.
    """

    def __init__(self, service: CoordinatorService) -> None:
        self._service = service
        self._bodies = Bodies()
        self._looking = asyncio.Semaphore(1)
        self.answered: Counter[int] = Counter()

    def answering(self, handler: _Handler) -> _Handler:
        """The handler, with its errors in LMCache's form."""

        async def answer(request: Request) -> Response:
            try:
                response = await handler(request)
            except CoordinatorError as error:
                response = _json({"detail": error.detail}, error.status)
            except RequestError as error:
                response = _json({"detail": error.message}, error.status)
            except StorageError as error:
                response = _json({"detail": str(error)}, 503)
            except ClientGoneError:
                response = Response(status_code=499)
            except Exception:
                self._service.faults += 1
                _logger.exception(
                    "Unexpected error in LMCache's coordinator; the request is answered by 500"
                )
                response = _json({"detail": "Internal Server Error"}, 500)
            self.answered[response.status_code] += 1
            return response

        return answer

    async def _body(self, request: Request, decoder: msgspec.json.Decoder[T]) -> T:
        return wire.read(await self._read(request), decoder)

    async def _read(self, request: Request) -> bytes:
        return await self._bodies.read(request.receive, request.scope["headers"])

    async def _looked(self, look: Callable[[], T]) -> T:
        """What takes as long as there are rows or tokens, one at a time, and holds nobody up."""
        async with self._looking:
            return await asyncio.to_thread(look)

    # Members

    async def register(self, request: Request) -> Response:
        """`POST /instances`."""
        body = await self._body(request, _register)
        service = self._service
        instance_id, known = await service.asked(lambda: service.register(body))
        return _json({"instance_id": instance_id, "re_registered": known})

    async def heartbeat(self, request: Request) -> Response:
        """`PUT /instances/ID/heartbeat`."""
        instance_id = request.path_params["instance_id"]
        if not await self._service.asked(lambda: self._service.beat(instance_id)):
            return _json({"error": f"unknown instance {instance_id}; re-register"}, 404)
        return _json({"instance_id": instance_id})

    async def leave(self, request: Request) -> Response:
        """`DELETE /instances/ID`."""
        instance_id = request.path_params["instance_id"]
        await self._service.asked(lambda: self._service.leave(instance_id))
        return Response(status_code=204)

    async def instances(self, request: Request) -> Response:
        """`GET /instances`, by which servers find their peers."""
        members = await self._service.asked(self._service.found)
        return _json({"instances": [_shown(member) for member in members]})

    async def instance_usage(self, request: Request) -> Response:
        """`GET /instances/ID/usage`."""
        instance_id = request.path_params["instance_id"]
        usage = await self._usage()
        if instance_id not in usage.names:
            raise CoordinatorError(404, f"unknown instance {shown(instance_id)}")
        return _json(usage.of(instance_id))

    async def fleet_usage(self, request: Request) -> Response:
        """`GET /instances/usage`."""
        usage = await self._usage()
        return _json(
            {
                "instances": [usage.of(name) for name in sorted(usage.names)],
                "shared_modules": usage.shared(),
            }
        )

    async def _usage(self) -> "_Usage":
        service = self._service

        def asked() -> _Usage:
            used: Counter[tuple[str, Backend]] = Counter()
            for use, size_bytes in service.directory.bytes.items():
                owner = "" if use.shared else use.instance_id
                used[owner, (use.tier, use.backend, use.shared)] += size_bytes
            capacities = {name: dict(said.of) for name, said in service.members.capacities.items()}
            return _Usage({one.instance_id for one in service.found()}, used, capacities)

        return await service.asked(asked)

    async def bind_chunk_size(self, request: Request) -> Response:
        """`PUT /config/chunk-size`."""
        tokens = (await self._body(request, _chunk_size)).chunk_size
        service = self._service
        return _json({"chunk_size": await service.asked(lambda: service.bind_chunk_size(tokens))})

    # Events

    async def events(self, request: Request) -> Response:
        """`POST /events`. A body of which anything cannot be read is refused as a whole."""
        body = await self._read(request)
        try:
            found = decode(body)
        except BatchError as error:
            raise unprocessable(error.detail) from error
        batches: list[Batch] = []
        for one in found:
            if isinstance(one, UnreadableBatch):
                raise unprocessable(one.detail)
            batches.append(one)
        service = self._service
        return _json(await service.asked(lambda: service.receive(batches)))

    # What is where

    async def lookup(self, request: Request) -> Response:
        """`POST /directory/lookup`."""
        body = await self._body(request, _lookup)
        if bool(body.keys) == bool(body.token_ids):
            raise unprocessable("Value error, supply exactly one of 'keys' or 'token_ids'")
        if body.token_ids and not body.model_name:
            raise unprocessable("Value error, 'model_name' is required with 'token_ids'")
        keys, chunks = body.keys, len(body.keys)
        if body.token_ids:
            model = self._service.model(body.model_name)
            keys, chunks = await self._looked(lambda: object_keys(body, model))
        found = await self._looked(lambda: self._service.directory.find(keys))
        results = [
            wire.KeyPlacements(key, placements) for key, placements in zip(keys, found, strict=True)
        ]
        return _json(wire.LookupAnswer(chunks, results))

    async def blend_lookup(self, request: Request) -> Response:
        """`POST /directory/blend-lookup`: as of a coordinator that was started without it."""
        body = await self._body(request, _blend_lookup)
        try:
            tokens = base64.b64decode(body.tokens_b64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise unprocessable("Value error, tokens_b64 is not valid base64") from error
        if len(tokens) % 4:
            raise unprocessable("Value error, tokens_b64 is not a multiple of 4 bytes long")
        if tokens and not body.model_name:
            raise unprocessable("Value error, 'model_name' is required with 'tokens_b64'")
        return _json({"matches": []})

    async def keys(self, request: Request) -> Response:
        """`GET /directory/keys`."""
        asked = request.query_params
        tier = asked.get("tier", "all")
        if tier not in (*_TIERS, "all"):
            raise unprocessable(f"Expected tier l1, l2 or all, got: {tier[:20]}", of="query")
        offset = _number(asked, "offset", 0, 0, 2**40)
        limit = _number(asked, "limit", 1000, 1, LISTED_MAX)
        total, page = await self._looked(
            lambda: self._service.directory.listed(
                tier="" if tier == "all" else tier,
                instance_id=asked.get("instance_id", ""),
                backend=asked.get("backend", ""),
                offset=offset,
                limit=limit,
            )
        )
        return _json(wire.KeyList(total, [wire.KeyInfo(*one) for one in page]))

    async def stats(self, request: Request) -> Response:
        """`GET /directory/stats`."""
        directory = self._service.directory
        keys, in_memory = await self._looked(directory.counted)
        placements, size_bytes = await self._service.asked(
            lambda: (dict(directory.placements), dict(directory.bytes))
        )
        sums = {
            f"{tier}_{name}": sum(value for use, value in counted.items() if use.tier == tier)
            for tier in _TIERS
            for name, counted in (("count", placements), ("size_bytes", size_bytes))
        }
        blend = ("num_contents", "num_chunks", "num_claims", "num_namespaces", "table_size")
        return _json(
            {
                "num_keys": keys,
                "num_placements": sum(placements.values()),
                "l1_keys_by_instance": in_memory,
                "blend": dict.fromkeys(blend, 0),
            }
            | sums
        )

    # Quotas, of which there are none

    async def quotas(self, request: Request) -> Response:
        """`GET /quota`."""
        used = await self._used_by_salt(_tier_of(request))
        return _json(
            {
                "total_gb": sum(used.values()) / _GIB,
                "by_cache_salt": [_quota(salt, used[salt]) for salt in sorted(used)],
            }
        )

    async def quota(self, request: Request) -> Response:
        """`GET /quota/SALT`."""
        salt = request.path_params["cache_salt"]
        salt = "" if salt == _DEFAULT_SALT else salt
        used = await self._used_by_salt(_tier_of(request))
        return _json(_quota(salt, used[salt]))

    async def quota_config(self, request: Request) -> Response:
        """`GET /quota/config`."""
        _tier_of(request)
        return _json({"default_limit_gb": None})

    async def _used_by_salt(self, tier: str) -> Counter[str]:
        directory = self._service.directory

        def asked() -> Counter[str]:
            used: Counter[str] = Counter()
            for use, size_bytes in directory.bytes.items():
                if use.tier == tier:
                    used[use.cache_salt] += size_bytes
            return used

        return await self._service.asked(asked)

    async def pins(self, request: Request) -> Response:
        """`GET /cache/pins`: none can be made."""
        return _json({"total": 0, "pins": []})

    async def health(self, request: Request) -> Response:
        """`GET /healthz`."""
        return _json({"status": "healthy"})


class _Usage:
    """What is used beside what was declared.

    Attributes:
        names: of all that are registered, hold something, or have declared something.
    """

    def __init__(
        self,
        registered: set[str],
        used: Mapping[tuple[str, Backend], int],
        capacities: Mapping[str, Mapping[Backend, int]],
    ) -> None:
        self._registered, self._used, self._capacities = registered, used, capacities
        self.names = registered | {owner for owner, _ in used if owner} | set(capacities)

    def of(self, name: str) -> dict[str, Any]:
        """One server."""
        declared = self._capacities.get(name, {})
        own = {one: size for one, size in declared.items() if not one[2]}
        backends = {one for owner, one in self._used if owner == name} | set(own)
        return {
            "instance_id": name,
            "registered": name in self._registered,
            "declared_capacity": bool(declared),
            "modules": [
                _module(one, self._used.get((name, one), 0), own.get(one, 0))
                for one in sorted(backends)
            ],
        }

    def shared(self) -> list[dict[str, Any]]:
        """Storage that servers share; of a capacity on which all who have said it agree."""
        said: dict[Backend, set[int]] = {}
        for declared in self._capacities.values():
            for one, size in declared.items():
                if one[2]:
                    said.setdefault(one, set()).add(size)
        agreed = {one: sizes.pop() for one, sizes in said.items() if len(sizes) == 1}
        used = {one: size for (owner, one), size in self._used.items() if not owner}
        return [_module(one, used[one], agreed.get(one, 0)) for one in sorted(used)]


def _module(backend: Backend, used: int, capacity: int) -> dict[str, Any]:
    tier, name, shared = backend
    return {
        "tier": tier,
        "backend": name,
        "shared": shared,
        "used_bytes": used,
        "capacity_bytes": capacity,
        "usage_ratio": used / capacity if capacity else None,
    }


def _shown(member: Member) -> dict[str, Any]:
    said = member.registration
    return {
        "instance_id": member.instance_id,
        "ip": said.ip.strip(),
        "http_port": said.http_port,
        "registration_time": member.registered_wall,
        "metadata": said.metadata,
        "p2p_advertised_url": said.p2p_advertised_url.strip(),
        "mq_port": said.mq_port,
    }


def _quota(salt: str, used: int) -> dict[str, Any]:
    return {
        "cache_salt": salt,
        "quota_limit_gb": 0.0,
        "quota_exists": False,
        "usage_gb": used / _GIB,
    }


def _tier_of(request: Request) -> str:
    tier = request.query_params.get("tier", "l2")
    if tier == "all":
        raise CoordinatorError(400, "tier 'all' has no usage accounting; only 'l1', 'l2'")
    if tier not in _TIERS:
        raise unprocessable(f"Expected tier l1 or l2, got: {tier[:20]}", of="query")
    return tier


def _number(asked: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = asked.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16 and least <= int(text) <= most):
        raise unprocessable(
            f"Expected {name} to be a number from {least} to {most}, got: {text[:20]}", of="query"
        )
    return int(text)
