"""What has to be done so that what is wanted is registered, and nothing else of it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from query_api.http.models import Service
from reprise.discovery.engines import NAMESPACE_LABEL, UID_LABEL

RankKey = tuple[str, str, str, int]
"""Tenant, model, instance and rank: what `POST /unregister` can name."""


class RegistrationPlan(NamedTuple):
    """Bodies of `POST /unregister`, to be sent first, and of `POST /register`."""

    unregister: list[dict[str, Any]]
    register: list[dict[str, Any]]


def make_plan(
    wanted: Iterable[Mapping[str, Any]], services: Sequence[Service], namespace: str
) -> RegistrationPlan:
    """Cost O(both).

    Args:
        wanted: bodies of `POST /register`.
        namespace: of whose pods what is registered and not wanted is to be forgotten; what somebody
            else has registered is left alone.
    """
    bodies = {_key(body): dict(body) for body in wanted}
    unregister = []
    kept = set()
    for one in services:
        if one.Labels.get(NAMESPACE_LABEL) != namespace:
            continue
        key = (one.TenantID, one.ModelName, one.InstanceID, one.DPRank)
        body = bodies.get(key)
        if body is not None and _is_same(body, one):
            if _says(body, one):
                kept.add(key)
            else:  # of the same engine: what is known of it stays
                body["replace"] = True
            continue
        unregister.append(
            {
                "tenant_id": one.TenantID,
                "instance_id": one.InstanceID,
                "dp_rank": one.DPRank,
                "modelname": one.ModelName,
                "block_size": one.BlockSize,
            }
        )
    register = [body for key, body in sorted(bodies.items()) if key not in kept]
    return RegistrationPlan(unregister, register)


def _key(body: Mapping[str, Any]) -> RankKey:
    tenant_id = body.get("tenant_id") or "default"
    return tenant_id, body["modelname"], body["instance_id"], body["dp_rank"]


def _is_same(body: Mapping[str, Any], one: Service) -> bool:
    """Whether it is that pod, with those settings: a pod made anew under the old name and address
    has another uid, and an empty cache.
    """
    return bool(
        one.Labels.get(UID_LABEL) == body["labels"][UID_LABEL]
        and body["endpoint"] == one.Endpoint
        and body.get("replay_endpoint", "") == one.ReplayEndpoint
        and body.get("http_endpoint", "") == one.HttpEndpoint
        and body["block_size"] == one.BlockSize
        and body["type"].lower() == one.Type.lower()
    )


def _says(body: Mapping[str, Any], one: Service) -> bool:
    """Whether it says of its engine what is registered; a service that does not show that is of an
    older version.
    """
    registered = {
        "kv_offloading": one.KvOffloading,
        "kv_partial_reuse": one.KvPartialReuse,
        "kv_cache_groups": one.KvCacheGroups,
        "lora_reload": one.LoraReload,
    }
    reads_alike = one.Reads is UNSET or one.Reads == body.get("reads")
    return reads_alike and all(
        said in (UNSET, body.get(name, "")) for name, said in registered.items()
    )
