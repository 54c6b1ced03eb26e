"""What one engine removes from a pool, and others have stored there: no event says that both mean
one pool, so both kernels say that it is not known.
"""

from typing import Any

import pytest

from schemas.events import ClearedBlocks, RemovedBlocks
from schemas.identities import POOL_REMOVED, Medium, StreamKey
from streams.kernel import open_kernel
from streams.kernel.interface import PublisherId
from tests.contract.kernels import ALL, kernel_of
from tests.contract.test_kernel_contract import ABC, SCOPE, SEED, Bench
from tests.strategies import BLOCK_SIZE, prompt_hashes, scope_of

POOL: dict[str, Any] = {"medium": Medium.CPU, "shared": True}


@pytest.fixture(params=ALL)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(kernel_of(request, SEED))


def engine(bench: Bench, instance: str) -> PublisherId:
    publisher = bench.publisher(instance)
    bench.kernel.register(publisher, "", True)
    return publisher


def removed(start: int = 0, **fields: Any) -> RemovedBlocks:
    return RemovedBlocks(sequence=1, hashes=prompt_hashes(ABC, start=start), **POOL | fields)


def unsure(bench: Bench, publisher: PublisherId) -> int:
    left_out = dict(bench.kernel.left_out(publisher))
    blocks = left_out.pop(POOL_REMOVED, 0)
    assert not left_out
    return blocks


@pytest.mark.parametrize("fields", [{}, {"whole": True}, {"left": 2}])
def test_what_others_have_stored_there_may_be_gone(bench: Bench, fields: dict[str, Any]) -> None:
    stores, removes = engine(bench, "a"), engine(bench, "b")
    bench.store(stores, ABC, **POOL)
    for _ in range(2):
        bench.apply(removes, removed(1, **fields))
        assert bench.ask(ABC) == {"a": 3, "b": 3}, "of the pool of the one who has stored them"
        assert (unsure(bench, stores), unsure(bench, removes)) == (0, 2)


def test_it_is_known_again_where_the_same_engine_stores_it(bench: Bench) -> None:
    publisher = engine(bench, "a")
    bench.apply(publisher, removed())
    bench.store(publisher, ABC[:1], medium=Medium.DISK, shared=True)
    bench.store(publisher, ABC[:1])
    assert unsure(bench, publisher) == 3
    bench.store(publisher, ABC[:2], **POOL)
    assert unsure(bench, publisher) == 1
    bench.apply(publisher, removed(2))
    assert unsure(bench, publisher) == 1


@pytest.mark.parametrize("medium", [None, Medium.CPU])
def test_no_clear_ends_it_but_the_end_of_the_engine(bench: Bench, medium: Medium | None) -> None:
    publisher = engine(bench, "a")
    bench.store(publisher, ABC, **POOL)
    bench.apply(publisher, removed(), removed(1), ClearedBlocks(sequence=1, medium=medium))
    assert unsure(bench, publisher) == 2
    bench.kernel.clear(publisher)
    assert (unsure(bench, publisher), bench.kernel.contexts()) == (0, [])


def test_a_pool_knows_what_it_has_and_an_engine_its_own_tiers(bench: Bench) -> None:
    pool = bench.publisher("pool")
    bench.kernel.register(pool, "", False)
    bench.apply(pool, removed())
    publisher = engine(bench, "a")
    bench.apply(publisher, removed(shared=False))
    bench.store(publisher, ABC, group=1, spec_kind="mamba", **POOL)
    bench.apply(publisher, removed(group=1))
    assert (unsure(bench, pool), unsure(bench, publisher)) == (0, 0)


def test_what_could_not_be_used_was_stored_all_the_same(bench: Bench) -> None:
    publisher = engine(bench, "a")
    bench.store(publisher, ABC, **POOL | {"tokens": b"", "left_out": "unknown_field"})
    bench.apply(publisher, removed())
    assert bench.kernel.left_out(publisher) == []


def test_rows_have_it(bench: Bench) -> None:
    publisher = engine(bench, "a")
    bench.apply(publisher, removed(1), ClearedBlocks(sequence=1))
    again = Bench(open_kernel(SEED, name=bench.kernel.name))
    for context, changes in bench.kernel.take_changes():
        again.kernel.load(context, changes)
    assert again.kernel.contexts() == bench.kernel.contexts()
    assert unsure(again, again.publisher("a")) == 2
    assert bench.kernel.stats()["left_out"] == 2


def test_there_are_no_more_of_them_than_of_all_that_is_left_out(bench: Bench) -> None:
    few = Bench(open_kernel(SEED, name=bench.kernel.name, left_out_max=2))
    publisher = engine(few, "a")
    few.apply(publisher, removed())
    assert dict(few.kernel.left_out(publisher)) == {POOL_REMOVED: 2, "overflow": 1}


# Of an adapter


def adapted(bench: Bench, publisher: PublisherId, **fields: Any) -> None:
    bench.store(publisher, ABC, lora_name="x", **fields)


def test_of_an_adapters_blocks_in_a_pool_it_is_not_known_who_could_use_them(bench: Bench) -> None:
    stores, registered, other = engine(bench, "a"), engine(bench, "b"), engine(bench, "c")
    bench.kernel.register(registered, "x", True)
    scope = scope_of("x")
    adapted(bench, stores)
    assert bench.kernel.without_adapter(scope) == [], "nothing is there that others could use"
    adapted(bench, stores, **POOL)
    assert bench.kernel.without_adapter(scope) == ["c"]
    assert bench.ask(ABC, scope) == {"a": 3, "b": 3}
    assert bench.kernel.without_adapter(scope_of("y")) == bench.kernel.without_adapter(SCOPE) == []
    adapted(bench, other, medium=Medium.CPU)
    assert bench.kernel.without_adapter(scope) == []
    bench.apply(other, ClearedBlocks(sequence=1))
    assert bench.kernel.without_adapter(scope) == ["c"]
    bench.kernel.unregister(other)
    assert bench.kernel.without_adapter(scope) == []


def test_a_rank_that_holds_an_adapters_block_is_enough(bench: Bench) -> None:
    pool = bench.publisher("pool")
    bench.kernel.register(pool, "x", False)
    adapted(bench, pool, **POOL)
    ranks = [bench.publisher("b", rank) for rank in (0, 1)]
    for rank in ranks:
        bench.kernel.register(rank, "", True)
    assert bench.kernel.without_adapter(scope_of("x")) == ["b"]
    adapted(bench, ranks[1])
    assert bench.kernel.without_adapter(scope_of("x")) == []


def test_other_models_and_adapters_are_not_asked_for(bench: Bench) -> None:
    adapted(bench, engine(bench, "a"), **POOL)
    of_other = bench.kernel.open_publisher(StreamKey(SCOPE.tenant_id, "n", BLOCK_SIZE, "", "b"), 0)
    bench.kernel.register(of_other, "", True)
    bench.kernel.register(bench.publisher("c"), "y", True)
    assert bench.kernel.without_adapter(scope_of("x")) == ["a"]


def test_nor_who_does_not_read_what_is_there_of_an_adapter(bench: Bench) -> None:
    stores = engine(bench, "a")
    adapted(bench, stores)
    adapted(bench, stores, **POOL)
    for reads, unknown in ((["a"], ["b"]), (["pool"], []), ([], []), (None, ["b"])):
        bench.kernel.register(bench.publisher("b"), "", True, False, reads)
        assert bench.kernel.without_adapter(scope_of("x")) == unknown
