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
from collections.abc import Callable
from typing import Final

import msgspec

from query_api.view import ServiceView
from query_api.wire import Wire, encode
from schemas.identities import PrefixScope
from schemas.registration import HashProfile
from streams.kernel.interface import InstanceMatch, ScopeView

Document = dict[str, object]

_KEYS_MAX: Final = 8192
_encode_text: Final[Callable[[str], bytes]] = msgspec.json.Encoder().encode


class _JsonKeys(dict[str, str]):
    """Names as JSON object keys with their colon; a memo that starts over when it is full."""

    def __missing__(self, name: str) -> str:
        if len(self) >= _KEYS_MAX:
            self.clear()
        key = self[name] = _encode_text(name).decode() + ":"
        return key


_keys = _JsonKeys()


def encode_matches(tenant_id: str, matches: list[InstanceMatch], wire: Wire) -> bytes:
    """The body of a query's answer. An unknown scope is an empty answer, not an error."""
    if wire is Wire.JSON:
        return published_matches(tenant_id, matches)
    return encode({"instances": _walks(matches)}, wire)


def published_matches(tenant_id: str, matches: list[InstanceMatch]) -> bytes:
    """The published shape. Written by hand: half the cost of building a dict and encoding it."""
    if not matches:
        return b"{}"
    keys = _keys
    instances = []
    for name, longest, gpu, cpu, disk, ranks in matches:
        by_rank = ",".join([f'"{rank[0]}":{rank[1]}' for rank in ranks])
        instances.append(
            f'{keys[name]}{{"longest_matched":{longest},"GPU":{gpu},"CPU":{cpu},"DISK":{disk},'
            f'"DP":{{{by_rank}}}}}'
        )
    return f"{{{keys[tenant_id]}{{{','.join(instances)}}}}}".encode()


def _walks(matches: list[InstanceMatch]) -> Document:
    instances: Document = {}
    for name, _longest, _gpu, _cpu, _disk, ranks in matches:
        gpu = cpu = disk = 0
        by_rank: dict[str, int] = {}
        rank_matches: dict[str, dict[str, int]] = {}
        for dp_rank, _matched, gpu_walk, cpu_walk, disk_walk in ranks:
            key = str(dp_rank)
            by_rank[key] = gpu_walk
            rank_matches[key] = {"gpu": gpu_walk, "cpu": cpu_walk, "disk": disk_walk}
            gpu, cpu, disk = max(gpu, gpu_walk), max(cpu, cpu_walk), max(disk, disk_walk)
        instances[name] = {
            "longest_matched": disk,
            "dp": by_rank,
            "rank_matches": rank_matches,
            "gpu": gpu,
            "cpu": cpu,
            "disk": disk,
        }
    return instances


def services_document(services: list[ServiceView]) -> Document:
    """The answer of `GET /services`: Conductor's field names, then ours."""
    return {"count": len(services), "services": [_service(service) for service in services]}


def _service(service: ServiceView) -> Document:
    registration = service.registration
    return {
        "Endpoint": registration.endpoint,
        "ReplayEndpoint": registration.replay_endpoint,
        "Type": registration.kind.value,
        "ModelName": registration.model_name,
        "LoraName": registration.lora_name,
        "TenantID": registration.tenant_id,
        "InstanceID": registration.instance_id,
        "BlockSize": registration.block_size,
        "DPRank": registration.dp_rank,
        "CacheGroup": None,
        "HashProfile": _hash_profile(registration.hash_profile),
        "AdditionalSalt": registration.additional_salt,
        "Incarnation": service.state.incarnation,
        "Sequence": service.state.sequence,
        "DegradedSince": service.state.degraded_since,
        "Connected": service.connected,
    }


def _hash_profile(profile: HashProfile | None) -> Document | None:
    if profile is None:
        return None
    return {
        "strategy": profile.strategy,
        "algorithm": profile.algorithm,
        "python_hash_seed": profile.python_hash_seed,
        "root_digest": _root_digest(profile),
        "index_projection": profile.index_projection,
    }


def _root_digest(profile: HashProfile) -> str:
    """SHA-256 of the seed's text as the engine encodes it: what Conductor derives and shows."""
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
