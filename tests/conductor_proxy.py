"""A consumer as Conductor ships one: what its example proxy sends, how it judges the reply.

Source: Mooncake, mooncake-conductor/example/cache_aware_disagg_proxy.py (commit 39cccf941).
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import httpx
import msgspec

PROFILE = {
    "strategy": "vllm_v1",
    "algorithm": "sha256_cbor",
    "python_hash_seed": "0",
    "index_projection": "low64_be",
}
"""The proxy always sends one."""


class ProxyProtocolError(Exception):
    """What makes the proxy fall back, or its startup fail."""


class Prefills(NamedTuple):
    """What the proxy's configuration says of the instances.

    Attributes:
        endpoints: of each instance, by its name: of each rank.
    """

    endpoints: Mapping[str, Sequence[str]]
    block_size: int
    tenant_id: str = "default"
    model_name: str = "m"


class Proxy:
    """Registers at startup, then picks an instance for each prompt."""

    def __init__(self, client: httpx.AsyncClient, prefills: Prefills) -> None:
        self._client = client
        self._prefills = prefills
        self._ties: dict[tuple[str, ...], int] = {}

    async def _post(self, path: str, document: dict[str, Any], **headers: str) -> dict[str, Any]:
        response = await self._client.post(
            path,
            content=msgspec.msgpack.encode(document),
            headers={"Content-Type": "application/msgpack", **headers},
            timeout=5.0 if path == "/register" else 1.0,
        )
        response.raise_for_status()
        body = msgspec.msgpack.decode(response.content)
        if not isinstance(body, dict):
            raise ProxyProtocolError("expected a map")
        return body

    async def start(self) -> None:
        for instance_id, endpoints in self._prefills.endpoints.items():
            for dp_rank, endpoint in enumerate(endpoints):
                body = await self._post(
                    "/register",
                    {
                        "endpoint": endpoint,
                        "type": "vLLM",
                        "modelname": self._prefills.model_name,
                        "instance_id": instance_id,
                        "block_size": self._prefills.block_size,
                        "dp_rank": dp_rank,
                        "tenant_id": self._prefills.tenant_id,
                        "lora_name": "",
                        "hash_profile": PROFILE,
                    },
                )
                echoed = body.get("status"), body.get("instance_id")
                if echoed != ("registered successfully", instance_id):
                    raise ProxyProtocolError("unexpected success body")

    async def choose(self, request: dict[str, Any], tokens: list[int]) -> str | None:
        """The instance to send the prompt to; None for the proxy's round-robin."""
        payload = {
            "model": request["model"],
            "block_size": self._prefills.block_size,
            "token_ids": struct.pack(f"<{len(tokens)}i", *tokens),
            "tenant_id": self._prefills.tenant_id,
            "lora_name": "",
        }
        if "cache_salt" in request:
            payload["cache_salt"] = request["cache_salt"]
        headers = {"X-Request-Id": "4a8b0a4c"}
        answer = (await self._post("/query", payload, **headers)).get("instances")
        if not isinstance(answer, dict):
            raise ProxyProtocolError("expected instances")
        hits: dict[str, int] = {}
        for instance_id, result in answer.items():
            if instance_id in self._prefills.endpoints and isinstance(result, dict):
                longest = result.get("longest_matched")
                if type(longest) is int and longest >= 0:
                    hits[instance_id] = longest
        best = max(hits.values(), default=0)
        if not best:
            return None
        leaders = tuple(sorted(name for name, hit in hits.items() if hit == best))
        turn = self._ties.get(leaders, 0)
        self._ties[leaders] = turn + 1
        return leaders[turn % len(leaders)]
