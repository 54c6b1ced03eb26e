"""How Reprise gets to know the engine inside a replica, under the name that the router asks for."""

import json
from typing import Any, Final

import httpx
from ray import serve

REGISTER_TIMEOUT_S: Final = 5.0

INSTANCE_KEY: Final = "reprise_instance_id"
"""What `record_routing_stats` of a deployment may return, where its engine has another name."""


def register_replica(
    url: str, *, endpoint: str, model: str, block_size: int, api_key: str = "", **fields: Any
) -> str:
    """Registers the engine of the replica that calls it, and returns its `instance_id`.

    That is the replica's unique id. `endpoint` is where the engine publishes its KV-cache events,
    as `tcp://10.0.0.7:5557`; `fields` are more of `/register` (`replay_endpoint`, `dp_rank`, ...;
    `type` is vLLM). A replica that is gone is `/unregister`ed by whoever stops it, or stays as a
    publisher that is away. Blocks for at most five seconds or so.

    Raises:
        RuntimeError: Reprise cannot be reached, or does not accept it; with its answer.
    """
    instance_id: str = serve.get_replica_context().replica_id.unique_id
    document = {
        "type": "vLLM",
        "endpoint": endpoint,
        "modelname": model,
        "block_size": block_size,
        "instance_id": instance_id,
        "dp_rank": 0,
        **fields,
    }
    try:
        response = httpx.post(
            f"{url.rstrip('/')}/register",
            content=json.dumps(document),
            headers={
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            },
            timeout=REGISTER_TIMEOUT_S,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        raise RuntimeError(f"Reprise at {url} cannot be reached to register: {error!r}") from error
    if response.status_code != 200:
        raise RuntimeError(
            f"Reprise at {url} does not register {instance_id}: expected 200, got"
            f" {response.status_code} {response.text[:200]!r}"
        )
    return instance_id
