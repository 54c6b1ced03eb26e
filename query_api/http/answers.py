"""Encoders of answers: the published JSON shape and Conductor's msgpack shape.

Published, in tokens:

    {"<tenant>": {"<instance>": {"longest_matched": n, "GPU": n, "CPU": n, "DISK": n,
        "DP": {"0": n}}}}

Conductor's, cumulative boundaries of its walk down the tiers, in tokens:

    {"instances": {"<instance>": {"longest_matched": n, "dp": {"0": n},
        "rank_matches": {"0": {"gpu": n, "cpu": n, "disk": n}}, "gpu": n, "cpu": n, "disk": n}}}
"""

import hashlib
import pickle
from collections.abc import Mapping
from typing import Any

import msgspec

from query_api.http.explanation_models import (
    BlockChangeDocument,
    EndedByDocument,
    ExplanationDocument,
)
from query_api.http.models import (
    ConductorMatches,
    DetailedMatch,
    DetailedWalk,
    InstanceWalk,
    PublishedMatch,
    RankWalk,
)
from query_api.http.wire import Wire, encode
from query_api.ports import ServiceView
from schemas.answer_states import AnswerState, Doubt, Standing
from schemas.identities import UNSURE, PrefixScope
from schemas.positions import Position
from schemas.registration import SGLANG_STRATEGIES, HashProfile
from streams.history.explain import BlockChange, EndedBy, Explanation, Question
from streams.kernel.interface import InstanceMatch, ScopeView

Document = dict[str, object]


def explanation_document(explained: Explanation, question: Question) -> ExplanationDocument:
    """The answer of `/explain`."""
    block_size, ended = question.scope.block_size, explained.ended_by
    match = explained.match
    return ExplanationDocument(
        instance_id=question.instance_id,
        position=str(Position(explained.partition, explained.offset)),
        prompt_tokens=explained.blocks * block_size,
        longest_matched=match.longest if match else 0,
        match=_published(match) if match else None,
        ended_by=None
        if ended is None
        else EndedByDocument(
            block=ended.block,
            tokens=[ended.block * block_size, (ended.block + 1) * block_size],
            prefix_hash="" if ended.prefix is None else str(ended.prefix),
            reason=_reason(ended, explained.left_out),
            group=ended.group,
            changes=[_change(explained.partition, change) for change in ended.changes],
            later=ended.later and _change(explained.partition, ended.later),
        ),
        left_out=dict(explained.left_out),
    )


def _reason(ended: EndedBy, left_out: Mapping[str, int]) -> str:
    """What ended it, of all holders: the last thing that became of it."""
    if ended.group is not None:
        return "cache_group"
    if ended.prefix is None:
        return "no_next_token"
    if not ended.changes:
        return "left_out" if left_out.keys() - set(UNSURE) else "not_stored"
    last = ended.changes[-1].what
    return "behind_a_missing_block" if last == "stored" else last


def _change(partition: int, change: BlockChange) -> BlockChangeDocument:
    fields = change._asdict()
    position = str(Position(partition, fields.pop("offset")))
    return BlockChangeDocument(position=position, **fields)


def encode_detailed(
    tenant_id: str,
    matches: list[InstanceMatch],
    standings: Mapping[str, Standing],
    groups: Mapping[str, int],
    wire: Wire,
) -> bytes:
    """The body of a query's answer with the standing of each instance, also of those that hold
    nothing of the prompt.

    Args:
        groups: the cache group that ended an instance's prefix, where one did.
    """

    def detail(name: str) -> dict[str, Any]:
        return _standing(standings, name) | {"ended_by_group": groups.get(name)}

    held = {match[0] for match in matches}
    nothing = [InstanceMatch(name, 0, 0, 0, 0, []) for name in standings if name not in held]
    matches = [*matches, *nothing]
    if wire is Wire.MSGPACK:
        walks = {
            name: DetailedWalk(**_fields(walk), **detail(name))
            for name, walk in _walks(matches).items()
        }
        return encode({"instances": walks}, wire)
    instances = {
        match[0]: DetailedMatch(**_fields(_published(match)), **detail(match[0]))
        for match in matches
    }
    return encode({tenant_id: instances} if instances else {}, wire)


def _fields(answer: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(answer)


def _standing(standings: Mapping[str, Standing], name: str) -> dict[str, Any]:
    """Of an instance that has entries and no publisher: nobody follows it."""
    standing = standings.get(name, Standing(AnswerState.UNCONFIRMED, Doubt.NOT_FOLLOWED, 0.0))
    return standing._asdict() | {"state": standing.state.value, "reason": str(standing.reason)}


def encode_matches(tenant_id: str, matches: list[InstanceMatch], wire: Wire) -> bytes:
    """The body of a query's answer. An unknown scope is an empty answer, not an error."""
    if wire is Wire.MSGPACK:
        return encode(ConductorMatches(instances=_walks(matches)), wire)
    if not matches:
        return b"{}"
    instances = {match[0]: _published(match) for match in matches}
    return encode({tenant_id: instances}, wire)


def _published(match: InstanceMatch) -> PublishedMatch:
    _, longest, gpu, cpu, disk, ranks = match
    by_rank = {}
    for rank in ranks:
        by_rank[str(rank[0])] = rank[1]
    return PublishedMatch(longest, gpu, cpu, disk, by_rank)


def _walks(matches: list[InstanceMatch]) -> dict[str, InstanceWalk]:
    instances = {}
    for name, _longest, _gpu, _cpu, _disk, ranks in matches:
        gpu = cpu = disk = 0
        by_rank = {}
        rank_matches = {}
        for dp_rank, _matched, gpu_walk, cpu_walk, disk_walk in ranks:
            key = str(dp_rank)
            by_rank[key] = gpu_walk
            rank_matches[key] = RankWalk(gpu_walk, cpu_walk, disk_walk)
            gpu = gpu_walk if gpu_walk > gpu else gpu  # `max` costs four times as much
            cpu = cpu_walk if cpu_walk > cpu else cpu
            disk = disk_walk if disk_walk > disk else disk
        instances[name] = InstanceWalk(disk, by_rank, rank_matches, gpu, cpu, disk)
    return instances


def services_document(services: list[ServiceView]) -> Document:
    """The answer of `GET /services`: Conductor's field names, then ours."""
    return {"count": len(services), "services": [_service(service) for service in services]}


def _service(service: ServiceView) -> Document:
    registration = service.registration
    return {
        "Endpoint": registration.endpoint,
        "ReplayEndpoint": registration.replay_endpoint,
        "HttpEndpoint": registration.http_endpoint,
        "Type": registration.kind,
        "ModelName": registration.model_name,
        "LoraName": registration.lora_name,
        "TenantID": registration.tenant_id,
        "InstanceID": registration.instance_id,
        "BlockSize": registration.block_size,
        "DPRank": registration.dp_rank,
        "CacheGroup": None,
        "HashProfile": _hash_profile(registration.hash_profile),
        "AdditionalSalt": registration.additional_salt,
        "MemorySegment": registration.memory_segment,
        "Role": registration.role,
        "Labels": dict(registration.labels),
        "KvBytesPerToken": registration.kv_bytes_per_token,
        "MaxNumSeqs": registration.max_num_seqs,
        "KvCapacityTokens": registration.kv_capacity_tokens,
        "KvOffloading": registration.kv_offloading,
        "KvPartialReuse": registration.kv_partial_reuse,
        "KvCacheGroups": registration.kv_cache_groups,
        "LoraReload": registration.lora_reload,
        "Reads": registration.reads,
        "Url": registration.url,
        "CurveServerKey": registration.curve_server_key,
        "Incarnation": service.state.incarnation,
        "Sequence": service.state.sequence,
        "DegradedSince": service.state.degraded_since,
        "LeftOut": service.state.uncounted,
        "Connected": service.connected,
        "State": service.standing.state.value,
        "Reason": str(service.standing.reason),
        "Since": service.standing.since,
        "Activity": service.activity[0],
        "ActivitySince": service.activity[1],
    }


def _hash_profile(profile: HashProfile | None) -> Document | None:
    if profile is None:
        return None
    return {
        "strategy": profile.strategy,
        "algorithm": profile.algorithm,
        "python_hash_seed": profile.python_hash_seed,
        "root_digest": root_digest(profile),
        "index_projection": profile.index_projection,
    }


def root_digest(profile: HashProfile) -> str:
    """SHA-256 of the seed's text as the engine encodes it: what Conductor derives and shows. Of
    SGLang, whose chains begin without one, zeros.
    """
    if profile.strategy in SGLANG_STRATEGIES:
        return "0" * 64
    seed = profile.python_hash_seed
    if profile.algorithm == "sha256":
        return hashlib.sha256(pickle.dumps(seed, protocol=5)).hexdigest()
    text = seed.encode()
    size = len(text)
    if size < 24:
        head = bytes([0x60 + size])
    elif size < 256:
        head = bytes([0x78, size])
    else:
        head = b"\x79" + size.to_bytes(2, "big")
    return hashlib.sha256(head + text).hexdigest()


def view_document(scopes: list[ScopeView], services: list[ServiceView]) -> Document:
    """The answer of `GET /global_view`: Conductor's field names, and the namespace."""
    profiles: dict[PrefixScope, HashProfile] = {}
    for service in services:
        registration = service.registration
        if registration.hash_profile is not None:
            stream = registration.stream
            scope = PrefixScope(
                stream.tenant_id,
                stream.model_name,
                registration.lora_name,
                stream.block_size,
                stream.additional_salt,
            )
            profiles.setdefault(scope, registration.hash_profile)
    contexts = [_context(view, profiles.get(PrefixScope(*view.scope))) for view in scopes]
    return {"context_count": len(contexts), "contexts": contexts}


def _context(view: ScopeView, profile: HashProfile | None) -> Document:
    tenant_id, model_name, lora_name, block_size, additional_salt = view.scope
    return {
        "model_name": model_name,
        "lora_name": lora_name,
        "block_size": block_size,
        "tenant_id": tenant_id,
        "additional_salt": additional_salt,
        "prefix_count": view.blocks,
        "hash_profile": _hash_profile(profile),
        "instances": view.instances,
    }
