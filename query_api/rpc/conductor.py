"""Conductor's five methods, each answered by the request over HTTP that says the same.

What has no value is answered with a code. HTTP's reasons have no place in it, so they are logged:

    INVALID_PARAMS         400, 403, 413       what the arguments say cannot be taken
    SERVICE_NOT_FOUND      404; of Unregister 400, too: no publisher has such a name
    CONDUCTOR_UNAVAILABLE  503                 the table recovers, or cannot be written
    INTERNAL_ERROR         any other           as a publisher that can never be connected to
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from query_api.http.answers import root_digest
from query_api.http.models import ConductorMatches, InstanceWalk
from query_api.ports import View
from query_api.rpc.bounds import RPC_QUERY_BYTES_MAX, RPC_SMALL_BYTES
from query_api.rpc.frames import function_of
from query_api.rpc.in_process import InProcess, Reply
from query_api.rpc.messages import (
    OTHER_KIND,
    PUBLISHER_KINDS,
    QUERY,
    QUERY_ANSWER,
    REGISTER,
    REGISTER_ANSWER,
    SERVICES,
    UNREGISTER,
    UNREGISTER_ANSWER,
    VIEW,
    CacheHit,
    ContextKey,
    ContextView,
    ErrorCode,
    GlobalView,
    HashProfile,
    QueryResult,
    RankHit,
    RegisterResult,
    ServiceConfig,
    UnregisterResult,
)
from schemas import registration
from schemas.clock import REAL_CLOCK
from schemas.identities import DEFAULT_TENANT
from schemas.limits import NAME_BYTES_MAX

RPC_LOG_S: Final = 10.0  # between two lines about what was refused; others are counted alone

logger = logging.getLogger(__name__)

_SERVICE: Final = "mooncake::conductor::kvevent::ConductorService::"
_NO_ERROR: Final = "OK"
_SGLANG_SEED: Final = "0"  # its engines have none, and Conductor notes this one
_CODES: Final = {
    400: ErrorCode.INVALID_PARAMS,
    403: ErrorCode.INVALID_PARAMS,
    404: ErrorCode.SERVICE_NOT_FOUND,
    413: ErrorCode.INVALID_PARAMS,
    503: ErrorCode.CONDUCTOR_UNAVAILABLE,
}
_matches = msgspec.msgpack.Decoder(ConductorMatches)


class Answered(NamedTuple):
    """What a method has answered; `code` is a name, for the counts."""

    code: str
    body: bytes


class Method(NamedTuple):
    """One method; `answer` raises StructPackError where the arguments are none."""

    name: str
    body_bytes_max: int
    answer: Callable[[bytes], Awaitable[Answered]]


class Conductor:
    """All of them, over one application.

    Attributes:
        methods: by function.
    """

    def __init__(
        self,
        app: InProcess,
        view: View,
        *,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        """Args:
        app: what answers.
        view: of the same table.
        monotonic: seconds.
        """
        self._app = app
        self._view = view
        self._monotonic = monotonic
        self._logged_at: float | None = None
        self._large = asyncio.Lock()  # answers as long as the table: one at a time, in a thread
        methods = (
            Method("Query", RPC_QUERY_BYTES_MAX, self._query),
            Method("Register", RPC_SMALL_BYTES, self._register),
            Method("Unregister", RPC_SMALL_BYTES, self._unregister),
            Method("GetGlobalView", RPC_SMALL_BYTES, self._global_view),
            Method("ListServices", RPC_SMALL_BYTES, self._services),
        )
        self.methods: Mapping[int, Method] = {
            function_of(_SERVICE + method.name): method for method in methods
        }

    async def _query(self, body: bytes) -> Answered:
        context, token_ids, cache_salt, instance_filter = QUERY.unpack(body)
        fields: dict[str, object] = {
            "model": context.model_name,
            "block_size": context.block_size,
            "token_ids": token_ids,
            "tenant_id": context.tenant_id,
            "lora_name": context.lora_name,
            "cache_salt": cache_salt,
        }
        if instance_filter is not None:
            fields["instance_id"] = instance_filter
        reply = await self._app.post("/query", fields)
        if reply.status != 200:
            code = self._code("Query", reply)
            return Answered(code.name, QUERY_ANSWER.pack(code))
        walks = _matches.decode(reply.body).instances
        has_pool = bool(walks) and self._has_pool(context)
        hits = {name: _hit(walks[name], has_pool=has_pool) for name in sorted(walks)}
        return Answered(_NO_ERROR, QUERY_ANSWER.pack(QueryResult(hits)))

    def _has_pool(self, context: ContextKey) -> bool:
        tenant_id = context.tenant_id or DEFAULT_TENANT
        asked = (tenant_id, context.model_name, context.block_size)
        return any(
            one.is_pool and (one.tenant_id, one.model_name, one.block_size) == asked
            for one in self._view.registered()
        )

    async def _register(self, body: bytes) -> Answered:
        config = REGISTER.unpack(body)
        profile = config.hash_profile
        if config.publisher_kind not in range(len(PUBLISHER_KINDS)):
            text = f"Expected a publisher_kind from 0 to {len(PUBLISHER_KINDS) - 1}"
            return self._not_registered(f"{text}, got: {config.publisher_kind}")
        kind = PUBLISHER_KINDS[config.publisher_kind]
        if kind == "SGLang" and not profile.python_hash_seed:
            profile = profile._replace(python_hash_seed=_SGLANG_SEED)
        if profile.root_digest and profile.root_digest != _derived_digest(profile):
            text = "Expected the root_digest of the other fields of hash_profile, or none"
            return self._not_registered(f"{text}, got: {profile.root_digest[:NAME_BYTES_MAX]!r}")
        recipe = profile._asdict()
        del recipe["root_digest"]
        was_known = self._is_known(config)
        reply = await self._app.post(
            "/register",
            {
                "endpoint": config.endpoint,
                "type": kind,
                "modelname": config.model_name,
                "instance_id": config.instance_id,
                "block_size": config.block_size,
                "replay_endpoint": config.replay_endpoint,
                "lora_name": config.lora_name,
                "tenant_id": config.tenant_id,
                "dp_rank": config.dp_rank,
                "cache_group": config.cache_group,
                "hash_profile": recipe,
            },
        )
        if reply.status != 200:
            code = self._code("Register", reply)
            return Answered(code.name, REGISTER_ANSWER.pack(code))
        result = RegisterResult(config.instance_id, not was_known)
        return Answered(_NO_ERROR, REGISTER_ANSWER.pack(result))

    def _is_known(self, config: ServiceConfig) -> bool:
        tenant_id = config.tenant_id or DEFAULT_TENANT
        wanted = (tenant_id, config.instance_id, config.dp_rank, config.endpoint)
        return any(
            (one.tenant_id, one.instance_id, one.dp_rank, one.endpoint) == wanted
            for one in self._view.registered()
        )

    def _not_registered(self, text: str) -> Answered:
        self._log("Register", text)
        code = ErrorCode.INVALID_PARAMS
        return Answered(code.name, REGISTER_ANSWER.pack(code))

    async def _unregister(self, body: bytes) -> Answered:
        reply = await self._app.post("/unregister", UNREGISTER.unpack(body)._asdict())
        if reply.status != 200:
            code = self._code("Unregister", reply)
            if code is ErrorCode.INVALID_PARAMS:
                code = ErrorCode.SERVICE_NOT_FOUND
            return Answered(code.name, UNREGISTER_ANSWER.pack(code))
        [key, *_] = msgspec.msgpack.decode(reply.body)["removed_instances"]
        return Answered(_NO_ERROR, UNREGISTER_ANSWER.pack(UnregisterResult(key)))

    async def _global_view(self, _: bytes) -> Answered:
        return await self._whole("/global_view", _packed_view)

    async def _services(self, _: bytes) -> Answered:
        return await self._whole("/services", _packed_services)

    async def _whole(self, path: str, pack: Callable[[Any], bytes]) -> Answered:
        """An answer as long as the table, which has no place for a code.

        Raises:
            RuntimeError: the application has none; the client is told that a call has failed.
        """
        async with self._large:
            reply = await self._app.get(path)
            if reply.status != 200:
                raise RuntimeError(f"Expected status 200 of {path}, got {reply.status}")
            made = partial(_made, reply.body, pack)
            return Answered(_NO_ERROR, await asyncio.to_thread(made))

    def _code(self, method: str, reply: Reply) -> ErrorCode:
        """What a request that was refused is answered with; the log has the reason."""
        envelope = msgspec.msgpack.decode(reply.body)
        self._log(method, f"{envelope['error']} ({reply.status}, {envelope.get('reason', '')})")
        return _CODES.get(reply.status, ErrorCode.INTERNAL_ERROR)

    def _log(self, method: str, text: str) -> None:
        now = self._monotonic()
        if self._logged_at is None or now - self._logged_at >= RPC_LOG_S:
            self._logged_at = now
            logger.warning(
                "Conductor's RPC has refused %s, and its client is told a code alone: %s",
                *(method, text),
            )


def _hit(walk: InstanceWalk, *, has_pool: bool) -> CacheHit:
    """One instance's. The memory of hosts and that of pools are one tier here: where a pool of the
    model is registered, `cpu_local` is what is certain, that of the GPU.
    """
    ranks = {
        int(rank): RankHit(one.gpu, one.gpu if has_pool else one.cpu, one.cpu, one.disk)
        for rank, one in walk.rank_matches.items()
    }
    return CacheHit(
        walk.longest_matched,
        {int(rank): matched for rank, matched in walk.dp.items()},
        ranks,
        walk.gpu,
        walk.gpu if has_pool else walk.cpu,
        walk.cpu,
        walk.disk,
    )


def _made(body: bytes, pack: Callable[[Any], bytes]) -> bytes:
    return pack(msgspec.msgpack.decode(body))


def _packed_view(document: dict[str, Any]) -> bytes:
    contexts = [
        ContextView(
            ContextKey(one["tenant_id"], one["model_name"], one["lora_name"], one["block_size"]),
            _profile(one["hash_profile"]),
            one["instances"],
            one["prefix_count"],
        )
        for one in document["contexts"]
    ]
    return VIEW.pack(GlobalView(len(contexts), contexts))


def _packed_services(document: dict[str, Any]) -> bytes:
    return SERVICES.pack([_service(one) for one in document["services"]])


def _service(one: dict[str, Any]) -> ServiceConfig:
    kind = one["Type"]
    return ServiceConfig(
        one["Endpoint"],
        one["ReplayEndpoint"],
        PUBLISHER_KINDS.index(kind) if kind in PUBLISHER_KINDS else OTHER_KIND,
        one["ModelName"],
        one["LoraName"],
        one["TenantID"],
        one["InstanceID"],
        one["BlockSize"],
        one["DPRank"],
        one["CacheGroup"],
        _profile(one["HashProfile"]),
    )


def _profile(document: dict[str, str] | None) -> HashProfile:
    """That of a registration, which may have none."""
    return HashProfile(**document) if document else HashProfile("", "", "", "", "")


def _derived_digest(profile: HashProfile) -> str | None:
    """None of a seed that is too long to be one."""
    if len(profile.python_hash_seed) > NAME_BYTES_MAX:
        return None
    recipe = profile._asdict()
    del recipe["root_digest"]
    return root_digest(registration.HashProfile(**recipe))
