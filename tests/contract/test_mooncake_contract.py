"""A Mooncake master beside engines, in both forms of the service: its objects are part of what
every instance holds, wherever an engine has said which blocks they are.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import AllBlocksCleared, BlockRemoved, BlockStored
from tests.contract.deployments import Tenant
from tests.mooncake import Master, key_of

pytestmark = pytest.mark.timeout(180)

TOKENS = list(range(1000, 1064))
OTHERS = list(range(2000, 2064))
HASHES = [2**63 + 1, 2, 3, 4]
POOL = {"type": "Mooncake", "instance_id": "pool", "kv_offloading": "native"}


@pytest.fixture
def engines() -> Iterator[list[Publisher]]:
    opened = [Publisher(PublisherOptions()) for _ in range(2)]
    yield opened
    for one in opened:
        one.close()


@pytest.fixture
def masters() -> Iterator[list[Master]]:
    """Whatever a test puts there is closed after it."""
    opened: list[Master] = []
    yield opened
    for one in opened:
        one.close()


@pytest.fixture(params=["main", "dev"])
def master(request: pytest.FixtureRequest, tenant: Tenant) -> Iterator[Master]:
    told: dict[str, Any] = {"model_name": "m", "block_size": 16} if request.param == "dev" else {}
    opened = Master(tenant_id=tenant.tenant_id, **told)
    yield opened
    opened.close()


def announced(tokens: list[int], hashes: list[int]) -> BlockStored:
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=None,
        token_ids=tokens,
        block_size=16,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )


def connect(tenant: Tenant, master: Master, engines: list[Publisher]) -> None:
    """Engines `a` and `b`, and the pool, all of whose links are up."""
    for name, engine in zip("ab", engines, strict=True):
        tenant.connect(engine, instance_id=name)
    connect_pool(tenant, master)


def connect_pool(tenant: Tenant, master: Master) -> None:
    tenant.connect(master, **POOL)  # type: ignore[arg-type]
    await_pool_links(tenant, master)


def await_pool_links(tenant: Tenant, master: Master, *, models: int = 1) -> None:
    links = models * tenant.deployment.pool_links
    tenant.until(
        lambda: tenant.deployment.followed(tenant.tenant_id).count(master.endpoint) == links,
        f"{links} links to the pool",
    )
    tenant.await_links(master)


def is_followed(tenant: Tenant, master: Master) -> bool:
    return master.endpoint in tenant.deployment.followed(tenant.tenant_id)


def lost_batches(tenant: Tenant) -> list[tuple[int, int]]:
    """Of each publisher that the pool is; batches are numbered from 0."""
    status, answer = tenant.api.get(f"/gaps?tenant_id={tenant.tenant_id}")
    assert status == 200, answer
    return [
        (one["first"], one["last"])
        for publisher in answer["publishers"]
        if publisher["instance_id"].startswith("pool")
        for one in publisher["incarnations"][-1]["lost"]["intervals"]
    ]


def longest(tenant: Tenant, tokens: list[int] = TOKENS) -> dict[str, int]:
    return {name: one["longest_matched"] for name, one in tenant.query(tokens).items()}


def await_longest(tenant: Tenant, tokens: list[int] = TOKENS, **wanted: int) -> None:
    tenant.until(lambda: longest(tenant, tokens) == wanted, f"{wanted}")


def test_an_object_is_held_by_every_instance_once_an_engine_has_named_its_block(
    tenant: Tenant, master: Master, engines: list[Publisher]
) -> None:
    connect(tenant, master, engines)
    master.store(*map(key_of, HASHES))
    engines[0].publish([announced(TOKENS, HASHES)])
    await_longest(tenant, a=64, b=64)
    answer = tenant.query(TOKENS)
    assert (answer["a"]["GPU"], answer["b"]["GPU"]) == (64, 0)
    assert (answer["a"]["CPU"], answer["b"]["CPU"]) == (64, 64)
    assert answer.keys() == {"a", "b"}, "a pool is no instance"
    engines[0].publish([AllBlocksCleared()])
    tenant.until(lambda: tenant.query(TOKENS)["a"]["GPU"] == 0, "the engine to clear")
    assert longest(tenant) == {"a": 64, "b": 64}, "the pool still has them"
    master.remove(*map(key_of, HASHES[2:]))
    await_longest(tenant, a=32, b=32)


def test_an_object_is_found_by_what_any_engine_has_announced_before(
    tenant: Tenant, master: Master, engines: list[Publisher]
) -> None:
    """Two engines say what is in the pool, wherever their records stand in the log."""
    connect(tenant, master, engines)
    engines[0].publish([announced(TOKENS, HASHES)])
    engines[1].publish([announced(OTHERS, [11, 12, 13, 14])])
    await_longest(tenant, a=64, b=0)
    await_longest(tenant, OTHERS, a=0, b=64)
    master.store(*map(key_of, (HASHES[0], HASHES[1], 11, 12, 13)))
    await_longest(tenant, a=64, b=32)
    await_longest(tenant, OTHERS, a=48, b=64)
    engines[0].publish([BlockRemoved(block_hashes=HASHES, medium="GPU")])
    await_longest(tenant, a=32, b=32)


def test_what_only_the_pool_has_is_found_by_what_the_pool_knows(
    tenant: Tenant, master: Master, engines: list[Publisher]
) -> None:
    """A further rank stores its object of a block, or the block moves, after the engine's own."""
    connect(tenant, master, engines)
    engines[0].publish([announced(TOKENS, HASHES)])
    await_longest(tenant, a=64, b=0)
    master.store(*map(key_of, HASHES))
    await_longest(tenant, a=64, b=64)
    engines[0].publish([BlockRemoved(block_hashes=HASHES, medium="GPU")])
    tenant.until(lambda: tenant.query(TOKENS)["a"]["GPU"] == 0, "the engine to evict")
    master.store(*(key_of(one, rank=1) for one in HASHES))
    master.remove(*map(key_of, HASHES), key_of(HASHES[3], rank=1))
    await_longest(tenant, a=48, b=48)


@pytest.mark.both_forms
@pytest.mark.parametrize("master", ["main"], indirect=True)
def test_what_no_engine_has_named_leaves_a_doubt_until_one_does(
    tenant: Tenant, master: Master, engines: list[Publisher]
) -> None:
    """Also one that has evicted it before the pool was heard."""
    connect(tenant, master, engines)
    evicted = BlockRemoved(block_hashes=HASHES, medium="GPU")
    engines[0].publish([announced(TOKENS, HASHES), evicted])
    engines[1].publish([announced(OTHERS, [11, 12, 13, 14])])
    master.store(*map(key_of, (11, 12, 13, 14)))
    await_longest(tenant, OTHERS, a=64, b=64)
    tenant.until(lambda: tenant.state() == "exact", "what other partitions find is no doubt")
    master.store(*map(key_of, HASHES))
    tenant.until(lambda: tenant.state() == "unconfirmed", "objects wait")
    assert longest(tenant) == {"a": 0, "b": 0}
    pool = next(one for one in tenant.services() if one["InstanceID"] == "pool")
    assert pool["Reason"] == "objects_wait"
    assert pool["LeftOut"]["objects_wait"] >= 4, "of a member with those that others find"
    engines[0].publish([announced(TOKENS, HASHES), evicted])
    await_longest(tenant, a=64, b=64)
    tenant.until(lambda: tenant.state() == "exact", "no doubt is left")


def test_media_shards_and_numbers(tenant: Tenant, master: Master, engines: list[Publisher]) -> None:
    connect(tenant, master, engines)
    engines[0].publish([announced(TOKENS, HASHES)])
    master.store(str(HASHES[0]), hex(HASHES[1]))
    shards = [key_of(HASHES[0], rank=rank) for rank in (0, 1)]
    master.store(*shards, medium="disk")
    tenant.until(lambda: tenant.query(TOKENS)["b"]["DISK"] == 16, "a block on disk")
    answer = tenant.query(TOKENS)["b"]
    assert (answer["GPU"], answer["CPU"], answer["longest_matched"]) == (0, 32, 32)
    master.remove(shards[0], medium="disk")
    master.remove(hex(HASHES[1]))
    await_longest(tenant, a=64, b=16)
    assert tenant.query(TOKENS)["b"]["DISK"] == 16, "a rank still has its part"
    master.remove(shards[1], medium="disk")
    tenant.until(lambda: tenant.query(TOKENS)["b"]["DISK"] == 0, "no block on disk")
    assert longest(tenant) == {"a": 64, "b": 16}


def test_what_no_engine_announces_waits_and_is_counted(
    tenant: Tenant, master: Master, engines: list[Publisher]
) -> None:
    connect(tenant, master, engines)
    engines[0].publish([announced(TOKENS, HASHES)])
    master.store(*map(key_of, HASHES), *map(key_of, (101, 102)), key_of(103, model="other"))
    await_longest(tenant, a=64, b=64)
    tenant.until(
        lambda: (
            tenant.metric("reprise_bridge_passed_over_total", reason="other_stream")
            == tenant.deployment.pool_links
        ),
        "the object of another model to be counted",
    )
    await_longest(tenant, OTHERS, a=0, b=0)
    engines[1].publish([announced(OTHERS[:32], [101, 102]), AllBlocksCleared()])
    await_longest(tenant, OTHERS, a=32, b=32)


def test_a_master_that_clears_or_restarts_holds_nothing(
    tenant: Tenant, engines: list[Publisher], masters: list[Master]
) -> None:
    master = Master(model_name="m", block_size=16, tenant_id=tenant.tenant_id)
    masters.append(master)
    connect(tenant, master, engines)
    engines[0].publish([announced(TOKENS, HASHES)])
    master.store(*map(key_of, HASHES))
    await_longest(tenant, a=64, b=64)
    master.clear()
    await_longest(tenant, a=64, b=0)
    master.store(*map(key_of, HASHES[:3]))
    await_longest(tenant, a=64, b=48)
    master.close()
    tenant.until(lambda: not is_followed(tenant, master), "links to end")
    told = {"tenant_id": tenant.tenant_id, "endpoint": master.endpoint}
    again = Master(model_name="m", block_size=16, **told)
    masters.append(again)
    await_pool_links(tenant, again)
    again.store(key_of(HASHES[0]))
    await_longest(tenant, a=64, b=16)


def test_a_master_whose_new_run_was_not_heard_from_its_beginning_has_lost_batches(
    tenant: Tenant, engines: list[Publisher], masters: list[Master]
) -> None:
    """It has no replay, and its numbers alone do not tell the new run: nothing is guessed."""
    master = Master(model_name="m", block_size=16, tenant_id=tenant.tenant_id)
    masters.append(master)
    connect(tenant, master, engines)
    engines[0].publish([announced(TOKENS, HASHES)])
    master.store(key_of(HASHES[0]))
    await_longest(tenant, a=64, b=16)
    master.close()
    tenant.until(lambda: not is_followed(tenant, master), "links to end")
    told = {"tenant_id": tenant.tenant_id, "endpoint": master.endpoint}
    again = Master(model_name="m", block_size=16, **told)
    masters.append(again)
    for one in HASHES[:3]:
        again.send(("stored", key_of(one), "cpu"), lost=True)
    await_pool_links(tenant, again)
    again.store(key_of(HASHES[1]))
    lost = [(1, 2)] * tenant.deployment.pool_links
    tenant.until(lambda: lost_batches(tenant) == lost, "the loss in the ledger")
    assert tenant.state() == "degraded"


def test_a_batch_that_is_lost_is_told(
    tenant: Tenant, master: Master, engines: list[Publisher]
) -> None:
    connect(tenant, master, engines)
    engines[0].publish([announced(TOKENS, HASHES)])
    master.store(key_of(HASHES[0]))
    await_longest(tenant, a=64, b=16)
    master.send(("stored", key_of(HASHES[1]), "cpu"), lost=True)
    master.store(key_of(HASHES[2]))
    lost = [(1, 1)] * tenant.deployment.pool_links
    tenant.until(lambda: lost_batches(tenant) == lost, "the loss in the ledger")
    assert tenant.state() == "degraded"
    assert longest(tenant) == {"a": 64, "b": 16}


@pytest.mark.both_forms
@pytest.mark.parametrize("master", ["main"], indirect=True)
def test_a_pool_is_one_service(tenant: Tenant, master: Master, engines: list[Publisher]) -> None:
    connect(tenant, master, engines)
    engines[0].publish([announced(TOKENS, HASHES)])
    master.store(*map(key_of, HASHES))
    await_longest(tenant, a=64, b=64)

    def services() -> dict[str, tuple[str, int]]:
        """Type and sequence; of the pool the sequence of the member that is least far."""
        return {one["InstanceID"]: (one["Type"], one["Sequence"]) for one in tenant.services()}

    known = {"a": ("vLLM", 0), "b": ("vLLM", -1), "pool": ("Mooncake", 0)}
    tenant.until(lambda: services() == known, f"{known}")
    status, answer = tenant.register(master, **POOL)  # type: ignore[arg-type]
    assert (status, answer["instance_id"]) == (200, "pool")
    status, _ = tenant.register(engines[0], instance_id="pool", modelname="m")
    assert status == 400
    status, answer = tenant.unregister(instance_id="pool")
    assert (status, answer["removed_instances"]) == (200, [f"pool|{tenant.tenant_id}|0"])
    await_longest(tenant, a=64, b=0)
    assert tenant.unregister(instance_id="pool")[0] == 404


def test_a_pool_counts_for_an_instance_as_long_as_that_is_registered_to_read_it(
    tenant: Tenant, master: Master, engines: list[Publisher]
) -> None:
    connect(tenant, master, engines)
    for engine, tokens, hashes in zip(engines, (TOKENS, OTHERS), (HASHES, [11]), strict=True):
        engine.publish([announced(tokens[: 16 * len(hashes)], hashes)])
    master.store(*map(key_of, HASHES))
    await_longest(tenant, a=64, b=64)
    for reads, held in ((["other"], 0), (["pool"], 64), ([], 0), (None, 64)):
        status, answer = tenant.register(engines[1], instance_id="b", reads=reads, replace=True)
        assert status == 200, answer
        await_longest(tenant, a=64, b=held)
        shown = {one["InstanceID"]: one["Reads"] for one in tenant.services()}
        assert shown == {"a": None, "b": reads, "pool": None}
        assert longest(tenant, OTHERS) == {"a": 0, "b": 16}, "its own blocks stay"


def test_one_master_serves_two_models(
    tenant: Tenant, engines: list[Publisher], masters: list[Master]
) -> None:
    master = Master(tenant_id=tenant.tenant_id)
    masters.append(master)
    tenant.connect(engines[0], instance_id="a")
    tenant.connect(engines[1], instance_id="a", modelname="n")
    connect_pool(tenant, master)
    status, answer = tenant.register(master, **POOL, modelname="n")  # type: ignore[arg-type]
    assert status == 200, answer
    await_pool_links(tenant, master, models=2)
    for engine in engines:
        engine.publish([announced(TOKENS, HASHES)])
    master.store(key_of(HASHES[0]), key_of(HASHES[0], model="n"), key_of(HASHES[1], model="n"))
    for model, held in (("m", 16), ("n", 32)):
        tenant.until(
            lambda: tenant.query(TOKENS, model=model)["a"]["CPU"] == held,  # noqa: B023 -- at once
            f"{held} tokens of {model}",
        )
