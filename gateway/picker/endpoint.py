"""Addresses of engines as proxies write them, `10.0.0.7:8000` and `[fd00::7]:8000`. Pure."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from google.protobuf.struct_pb2 import Struct

from bridge.engine_http.address import read_base_url
from gateway.errors import GatewayError
from gateway.fleet import EngineKey, EngineTarget, ServedModel
from gateway.picker.bounds import PICKER_FALLBACKS_MAX, PICKER_SUBSET_MAX
from schemas.errors import EndpointError

_SUBSET: Final = "x-gateway-destination-endpoint-subset"
_ENDPOINTS_KEPT: Final = 4096  # engines whose addresses are read once
_NO_SUBSET: Final = "No engine of the subset that the proxy names serves the model, of {0}"
_NO_ADDRESS: Final = (
    "Expected engines that are registered by their IP address, for a proxy can be told no other;"
    " got none of {0}"
)


@lru_cache(_ENDPOINTS_KEPT)
def endpoint_of(base_url: str) -> str:
    """The address; "" where the engine is known by a name, which no proxy takes."""
    try:
        found = read_base_url(base_url)
        ip_address(found.host)
    except (EndpointError, ValueError):
        return ""
    return found.authority


def subset_of(hints: Struct) -> list[str] | None:
    """The endpoints that a request may go to: a list, or a text with commas; None: all of them.

    Raises:
        GatewayError: there are too many.
    """
    if _SUBSET not in hints.fields:
        return None
    value = hints.fields[_SUBSET]
    texts = [value.string_value, *(one.string_value for one in value.list_value.values)]
    found = [one.strip() for text in texts for one in text.split(",") if one.strip()]
    if len(found) > PICKER_SUBSET_MAX:
        text = f"Expected a subset of at most {PICKER_SUBSET_MAX} endpoints, got {len(found):d}"
        raise GatewayError(503, "subset_too_large", text)
    return found


def reachable(model: ServedModel, subset: list[str] | None) -> ServedModel:
    """The model, with the engines that the proxy may be told.

    Args:
        model: as it is served.
        subset: endpoints, or addresses without a port: any of these; None: all.

    Raises:
        GatewayError: there are none.
    """
    allowed = None if subset is None else frozenset(subset)
    targets: dict[EngineKey, EngineTarget] = {}
    for key, target in model.targets.items():
        endpoint = endpoint_of(target.base_url)
        host = endpoint.rpartition(":")[0].strip("[]")
        if endpoint and (allowed is None or endpoint in allowed or host in allowed):
            targets[key] = target
    if not targets:
        text = _NO_SUBSET if subset is not None else _NO_ADDRESS
        raise GatewayError(
            503, "no_endpoint", text.format(len(model.targets)), headers={"retry-after": "1"}
        )
    has_all = model.has_all and len(targets) == len(model.targets)
    return model._replace(targets=targets, has_all=has_all, has_pairs=False)


def in_order(target: EngineTarget, fallbacks: Iterable[EngineTarget]) -> list[EngineTarget]:
    """The engines that a proxy is told, one for each endpoint.

    All of them understand the rank that the request has in its headers.
    """
    told = {endpoint_of(target.base_url): target}
    for one in fallbacks:
        if one.has_ranks != target.has_ranks or (one.has_ranks and one.key[1] != target.key[1]):
            continue
        told.setdefault(endpoint_of(one.base_url), one)
        if len(told) > PICKER_FALLBACKS_MAX:
            break
    return list(told.values())
