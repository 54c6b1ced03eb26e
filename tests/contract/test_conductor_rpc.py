"""Conductor's RPC before both forms of the service: by frames that its client sends, and by itself.

The latter is the module `_conductor` that Mooncake builds with its client (`WITH_CONDUCTOR`), for
the Python of these tests; REPRISE_CONDUCTOR_CLIENT may name its file, and its test is skipped where
that does not.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from query_api.rpc.messages import CacheHit, ErrorCode, RankHit, RegisterResult, UnregisterResult
from tests.conductor_rpc import RpcClient, service
from tests.contract.deployments import Tenant
from tests.contract.test_conductor_proxy import SIZE, TOKENS, removed, stored

pytestmark = pytest.mark.timeout(180)

VARIABLE = "REPRISE_CONDUCTOR_CLIENT"
MODULE = os.environ.get(VARIABLE, "")


@pytest.fixture
def publishers() -> Iterator[tuple[Publisher, Publisher]]:
    """Both ranks of an instance."""
    with (
        closing(Publisher(PublisherOptions())) as first,
        closing(Publisher(PublisherOptions(), dp_rank=1)) as second,
    ):
        yield first, second


@pytest.mark.both_forms
def test_engines_are_registered_asked_for_and_forgotten(
    tenant: Tenant, publishers: tuple[Publisher, Publisher]
) -> None:
    with RpcClient(tenant.deployment.conductor_rpc) as client:
        configs = [
            service("a", one.endpoint, tenant_id=tenant.tenant_id, dp_rank=rank)
            for rank, one in enumerate(publishers)
        ]
        for config in configs:
            assert client.register(config) == RegisterResult("a", True)
        tenant.until(lambda: len(tenant.services()) == 2, "both in /services")
        assert client.register(configs[0]) == RegisterResult("a", False)
        conflict = configs[0]._replace(instance_id="other")
        assert client.register(conflict) is ErrorCode.INVALID_PARAMS
        tenant.await_links(*publishers)
        publishers[1].publish([stored(TOKENS[:32])])
        tenant.await_longest(TOKENS, 32)
        nothing, all_of_it = RankHit(0, 0, 0, 0), RankHit(32, 32, 32, 32)
        ranks = {0: nothing, 1: all_of_it}
        hit = CacheHit(32, {0: 0, 1: 32}, ranks, 32, 32, 32, 32)
        assert client.query(TOKENS, tenant_id=tenant.tenant_id) == {"a": hit}
        [context] = [
            one for one in client.view().contexts if one.context.tenant_id == tenant.tenant_id
        ]
        assert (context.prefix_count, context.instance_ranks) == (2, {"a": [0, 1]})
        listed = [one for one in client.services() if one.tenant_id == tenant.tenant_id]
        assert [one.dp_rank for one in listed] == [0, 1]
        publishers[1].publish([removed(1, 2)])
        tenant.await_longest(TOKENS, 0)
        assert client.unregister("a", tenant.tenant_id, 1) == UnregisterResult(
            f"a|{tenant.tenant_id}|1"
        )
        tenant.until(lambda: len(tenant.services()) == 1, "one in /services")
        assert client.unregister("a", tenant.tenant_id, 1) is ErrorCode.SERVICE_NOT_FOUND
        assert client.query(TOKENS, model="", block_size=SIZE) is ErrorCode.INVALID_PARAMS
    calls = tenant.deployment.metric("reprise_conductor_rpc_calls_total", method="Query", code="OK")
    assert calls >= 1


PROGRAM = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("_conductor", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
client = module.ConductorClient()
assert client.setup(sys.argv[2]) == 0, "no connection"
assert client.health_check() == 0, "not healthy"
answers = [getattr(client, name)(**arguments) for name, arguments in json.load(sys.stdin)]
assert client.close() == 0
json.dump(answers, sys.stderr, default=sorted)
"""
"""Calls methods of the client in a process of its own, whose stdout is the module's log."""


def called(address: str, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    command = [sys.executable, "-c", PROGRAM, MODULE, address]
    done = subprocess.run(
        command, input=json.dumps(calls), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr + done.stdout
    answers: list[Any] = json.loads(done.stderr)
    return answers


@pytest.mark.both_forms
@pytest.mark.skipif(not MODULE, reason=f"no client of Conductor's; {VARIABLE} names its module")
def test_the_client_itself_registers_asks_and_forgets(
    tenant: Tenant, publishers: tuple[Publisher, Publisher]
) -> None:
    address = tenant.deployment.conductor_rpc
    profile = {
        "strategy": "vllm_v1",
        "algorithm": "sha256_cbor",
        "python_hash_seed": "0",
        "index_projection": "low64_be",
    }
    config = {
        "endpoint": publishers[0].endpoint,
        "instance_id": "a",
        "model_name": "m",
        "tenant_id": tenant.tenant_id,
        "block_size": SIZE,
        "hash_profile": profile,
    }
    sglang = config | {
        "endpoint": publishers[1].endpoint,
        "instance_id": "s",
        "publisher_type": "SGLang",
        "hash_profile": {
            "strategy": "sglang",
            "algorithm": "sha256_raw",
            "index_projection": "first64_be",
        },
    }
    asked = {"model_name": "m", "block_size": SIZE, "tenant_id": tenant.tenant_id}
    answers = called(
        address,
        ("register", {"config": config}),
        ("register", {"config": config}),
        ("register", {"config": sglang}),
        ("register", {"config": config | {"model_name": ""}}),
        ("query", asked | {"model_name": "", "token_ids": TOKENS}),
    )
    assert answers == [0, 0, 0, -600, {"ret": -600, "hits": {}}]
    tenant.await_links(*publishers)
    publishers[0].publish([stored(TOKENS[:48])])
    tenant.await_longest(TOKENS, 48)
    tiers = {"npu": 48, "cpu_local": 48, "cpu_share": 48, "disk": 48}
    held = {"longest_matched": 48, "dp": {"0": 48}, "rank_matches": {"0": tiers}} | tiers
    one_of, long, salted, services, view = called(
        address,
        ("query", asked | {"token_ids": TOKENS, "instance_filter": "a"}),
        ("query", asked | {"token_ids": TOKENS + [7] * 100_000}),
        ("query", asked | {"token_ids": TOKENS, "cache_salt": "x"}),
        ("list_services", {}),
        ("get_global_view", {}),
    )
    assert one_of == {"ret": 0, "hits": {"a": held}}
    assert long["hits"]["a"] == held
    assert long["hits"]["s"]["longest_matched"] == 0
    assert salted["hits"]["a"]["longest_matched"] == 0
    own = {
        one["InstanceID"]: one
        for one in services["services"]
        if one["TenantID"] == tenant.tenant_id
    }
    assert {name: one["Type"] for name, one in own.items()} == {"a": "vLLM", "s": "SGLang"}
    assert len(own["a"]["HashProfile"]["root_digest"]) == 64
    [context] = [one for one in view["contexts"] if one["tenant_id"] == tenant.tenant_id]
    assert context["prefix_count"] == 3
    assert sorted(context["instances"]) == ["a", "s"]
    forgotten = {"instance_id": "a", "tenant_id": tenant.tenant_id}
    assert called(address, ("unregister", forgotten), ("unregister", forgotten)) == [0, -2001]
