"""The five methods: what each says, and which code where it has no value."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from query_api.access.access_settings import AccessSettings
from query_api.rpc import conductor
from query_api.rpc.messages import (
    OTHER_KIND,
    CacheHit,
    ContextKey,
    ErrorCode,
    HashProfile,
    RankHit,
    RegisterResult,
    UnregisterResult,
)
from reprise.roles.rpc_server import KEYLESS
from schemas.errors import EndpointError, StorageError
from schemas.identities import Medium
from tests.conductor_rpc import PROFILE, RpcClient, RpcFailedError, service
from tests.fakes import FakeTable, registration
from tests.unit.query_api.rpc.conftest import Served, serving

TOKENS = list(range(1, 65))
DIGEST = "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
"""Of the seed "0", as Conductor's own tests have it."""


def hold(table: FakeTable, blocks: int, medium: Medium = Medium.GPU, **fields: Any) -> None:
    """An engine, or a rank of one, that holds the first blocks of the prompt on a tier."""
    publisher = table.add(registration(block_size=16, **fields))
    hashes = range(1, 1 + blocks)
    table.store(publisher, TOKENS[: 16 * blocks], hashes=hashes, block_size=16, medium=medium)


def test_a_query_counts_each_tier_with_those_above(table: FakeTable, client: RpcClient) -> None:
    hold(table, 2)
    table.add(registration("b", block_size=16))
    publisher = table.kernel.open_publisher(registration("a", block_size=16).stream, 0)
    table.store(publisher, TOKENS[:48], hashes=range(1, 4), block_size=16, medium=Medium.CPU)
    table.store(publisher, TOKENS, hashes=range(1, 5), block_size=16, medium=Medium.DISK)
    held = CacheHit(64, {0: 32}, {0: RankHit(32, 48, 48, 64)}, 32, 48, 48, 64)
    nothing = CacheHit(0, {0: 0}, {0: RankHit(0, 0, 0, 0)}, 0, 0, 0, 0)
    assert client.query(TOKENS) == {"a": held, "b": nothing}
    assert client.query(TOKENS, tenant_id="default", instance_id="a") == {"a": held}
    assert client.query(TOKENS, instance_id="") == {}
    salted = client.query(TOKENS, salt="x")
    assert isinstance(salted, dict)
    assert salted["a"] == nothing
    assert client.query([]) == {"a": nothing, "b": nothing}


def test_where_a_pool_is_registered_a_hosts_memory_is_not_told_from_the_pools(
    table: FakeTable, client: RpcClient
) -> None:
    hold(table, 1)
    pool = registration("pool", block_size=16, endpoint="tcp://pool:1")
    table.add(msgspec.structs.replace(pool, kind="Mooncake"))
    publisher = table.kernel.open_publisher(registration("a", block_size=16).stream, 0)
    table.store(publisher, TOKENS[:32], hashes=range(1, 3), block_size=16, medium=Medium.CPU)
    found = client.query(TOKENS)
    assert isinstance(found, dict)
    assert found["a"].rank_matches == {0: RankHit(16, 16, 32, 32)}


@pytest.mark.parametrize(
    "fields", [{"model": ""}, {"block_size": 0}, {"block_size": -1}, {"model": "m" * 1025}]
)
def test_a_query_that_names_nothing_is_invalid(client: RpcClient, fields: dict[str, Any]) -> None:
    assert client.query(TOKENS, **fields) is ErrorCode.INVALID_PARAMS
    assert client.query(TOKENS, model="another") == {}


def test_an_engine_is_registered_once(table: FakeTable, client: RpcClient) -> None:
    config = service("a", "tcp://a:1")
    assert client.register(config) == RegisterResult("a", True)
    assert client.register(config) == RegisterResult("a", False)
    assert client.register(config._replace(tenant_id="default")) == RegisterResult("a", False)
    [known] = table.registered()
    assert (known.kind, known.model_name, known.block_size) == ("vLLM", "m", 16)
    [listed] = client.services()
    shown = config._replace(tenant_id="default", hash_profile=PROFILE._replace(root_digest=DIGEST))
    assert listed == shown
    assert client.register(listed) == RegisterResult("a", False), "what is shown can be sent"
    assert client.unregister("a") == UnregisterResult("a|default|0")
    assert client.unregister("a") is ErrorCode.SERVICE_NOT_FOUND
    assert client.services() == []


@pytest.mark.parametrize("strategy", ["sglang", "sglang_bigram"])
@pytest.mark.parametrize("seed", ["", "0", "any"])
def test_sglang_and_pools_are_registered(
    table: FakeTable, client: RpcClient, strategy: str, seed: str
) -> None:
    chain = HashProfile(strategy, "sha256_raw", seed, "", "first64_be")
    sglang = service("s", "tcp://s:1", publisher_kind=2, hash_profile=chain, cache_group=0)
    pool = service("p", "tcp://p:1", publisher_kind=1)
    assert client.register(sglang) == RegisterResult("s", True)
    assert client.register(pool) == RegisterResult("p", True)
    assert {one.instance_id: one.kind for one in table.registered()} == {
        "s": "SGLang",
        "p": "Mooncake",
    }
    listed = {one.instance_id: one for one in client.services()}
    assert listed["s"].publisher_kind == 2
    resolved = chain._replace(python_hash_seed=seed or "0", root_digest="0" * 64)
    assert listed["s"].hash_profile == resolved
    assert listed["p"].publisher_kind == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"endpoint": ""},
        {"model_name": ""},
        {"instance_id": ""},
        {"block_size": 0},
        {"dp_rank": -1},
        {"cache_group": 1},
        {"publisher_kind": 3},
        {"publisher_kind": -1},
        {"hash_profile": PROFILE._replace(strategy="xxh3")},
        {"hash_profile": PROFILE._replace(python_hash_seed="")},
        {"hash_profile": PROFILE._replace(root_digest="0" * 64)},
        {"hash_profile": PROFILE._replace(root_digest="0", python_hash_seed="9" * 2000)},
        {"hash_profile": HashProfile("", "", "", "", "")},
    ],
)
def test_what_cannot_be_registered_is_invalid(
    table: FakeTable, client: RpcClient, fields: dict[str, Any]
) -> None:
    config = service("a", "tcp://a:1")._replace(**fields)
    assert client.register(config) is ErrorCode.INVALID_PARAMS
    assert table.registered() == []


def test_a_conflict_is_invalid(client: RpcClient) -> None:
    assert client.register(service("a", "tcp://a:1")) == RegisterResult("a", True)
    other = service("b", "tcp://a:1")
    assert client.register(other) is ErrorCode.INVALID_PARAMS


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (EndpointError("tcp://a:1", "no"), ErrorCode.INTERNAL_ERROR),
        (StorageError("full"), ErrorCode.CONDUCTOR_UNAVAILABLE),
        (RuntimeError("a fault"), ErrorCode.INTERNAL_ERROR),
    ],
)
def test_what_fails_here_is_no_fault_of_the_client(
    table: FakeTable, client: RpcClient, failure: Exception, code: ErrorCode
) -> None:
    table.failure = failure
    assert client.register(service("a", "tcp://a:1")) is code


def test_an_index_that_recovers_is_unavailable(table: FakeTable, client: RpcClient) -> None:
    table.ready = False
    assert client.query(TOKENS) is ErrorCode.CONDUCTOR_UNAVAILABLE
    assert client.services() == []


@pytest.mark.parametrize("arguments", [("", "", 0), ("a", "", -1), ("a" * 1025, "", 0)])
def test_nothing_has_a_name_that_none_can_have(
    client: RpcClient, arguments: tuple[str, str, int]
) -> None:
    assert client.unregister(*arguments) is ErrorCode.SERVICE_NOT_FOUND


def test_the_view_has_all_contexts(table: FakeTable, client: RpcClient) -> None:
    client.register(service("a", "tcp://a:1"))
    client.register(service("a", "tcp://a:2", dp_rank=1))
    hold(table, 3, instance_id="z", model_name="n", tenant_id="t")
    view = client.view()
    assert view.context_count == len(view.contexts) == 2
    found = {one.context: one for one in view.contexts}
    first = found[ContextKey("default", "m", "", 16)]
    assert first.instance_ranks == {"a": [0, 1]}
    assert first.profile == PROFILE._replace(root_digest=DIGEST)
    other = found[ContextKey("t", "n", "", 16)]
    assert (other.prefix_count, other.profile) == (3, HashProfile("", "", "", "", ""))


def test_a_kind_that_conductor_has_not_is_another_one(table: FakeTable, client: RpcClient) -> None:
    known = registration("a", block_size=16, endpoint="tcp://a:1")
    table.add(msgspec.structs.replace(known, kind="TensorRT-LLM"))
    [listed] = client.services()
    assert listed.publisher_kind == OTHER_KIND


def test_why_is_logged_and_not_for_every_call(
    served: Served, client: RpcClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger=conductor.logger.name):
        for _ in range(3):
            client.query(TOKENS, model="")
        served.now = conductor.RPC_LOG_S
        client.register(service("a", "tcp://a:1", publisher_kind=9))
    first, second = (record.getMessage() for record in caplog.records)
    assert "has refused Query" in first
    assert "model must not be empty (400, invalid_value)" in first
    assert second.endswith("Expected a publisher_kind from 0 to 2, got: 9")
    assert served.counts.calls["Query", "INVALID_PARAMS"] == 3


def test_no_key_is_asked_for_and_files_are_for_who_may_do_all(
    table: FakeTable, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.touch()
    guard = AccessSettings(keys=keys).open_guard()
    with (
        serving(table, KEYLESS, guard=guard) as served,
        RpcClient(served.address) as client,
    ):
        assert client.query(TOKENS) == {}
        assert client.register(service("f", "ipc:///f")) is ErrorCode.INVALID_PARAMS
        assert client.register(service("a", "tcp://a:1")) == RegisterResult("a", True)
        assert [one.instance_id for one in client.services()] == ["a"]
        assert client.unregister("a") == UnregisterResult("a|default|0")
    with serving(FakeTable()) as served, RpcClient(served.address) as client:
        assert client.register(service("f", "ipc:///f")) == RegisterResult("f", True)


def test_a_fault_of_ours_is_told_as_one(
    table: FakeTable, client: RpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[Any]:
        raise RuntimeError("a fault")

    monkeypatch.setattr(table, "services", fail)
    with pytest.raises(RpcFailedError, match="its log says why") as caught:
        client.services()
    assert caught.value.args[0] == 10
