"""What every kernel does with objects of a shared pool, which others' hashes name."""

from typing import Any

import pytest

from schemas.errors import EventsFormatError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, encode_events
from schemas.identities import (
    GROUPS_DIFFER,
    HASHES_DIFFER,
    OBJECTS_WAIT,
    Medium,
    StreamKey,
    aliases_scope,
    waiting_scope,
)
from streams.kernel import Kernel, native_available, open_kernel
from streams.kernel.changes import CHANGE_BYTES
from streams.kernel.hashing import prefix_hashes
from streams.kernel.interface import InstanceMatch, PublisherId
from streams.table.rows.loader import net
from tests.contract.kernels import ALL, kernel_of
from tests.strategies import (
    BLOCK_SIZE,
    Prompt,
    context_of,
    object_key,
    prompt_hashes,
    prompt_key,
    prompt_tokens,
    scope_of,
    u64s,
)

SEED = 17
SCOPE = scope_of("")
ABC: Prompt = (0, 1, 2)
WAITING_MAX = 5
POOL = "pool"


class Pooled:
    """A kernel with engines and pools."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def publisher(self, instance: str, rank: int = 0) -> PublisherId:
        stream = StreamKey(SCOPE.tenant_id, SCOPE.model_name, BLOCK_SIZE, "", instance)
        return self.kernel.open_publisher(stream, rank)

    def apply(self, instance: str, *events: BlockEvent) -> None:
        self.kernel.apply(self.publisher(instance), encode_events([*events]), -1)

    def ask(self, prompt: Prompt = ABC, lora_name: str = "") -> dict[str, InstanceMatch]:
        scope = SCOPE._replace(lora_name=lora_name)
        answer = self.kernel.query(scope, prompt_tokens(prompt), (), None)
        return {match.instance_id: match for match in answer}

    def longest(self, prompt: Prompt = ABC, lora_name: str = "") -> dict[str, int]:
        """By instance, in blocks."""
        answer = self.ask(prompt, lora_name)
        return {name: match.longest // BLOCK_SIZE for name, match in answer.items()}

    def counted(self) -> dict[str, int]:
        return {name: count for name, count in self.kernel.counters().items() if count}

    def waiting(self) -> int:
        return self.kernel.stats()["waiting"]


@pytest.fixture(params=ALL)
def pooled(request: pytest.FixtureRequest) -> Pooled:
    made = Pooled(kernel_of(request, SEED, waiting_max=WAITING_MAX))
    made.kernel.register(made.publisher("engine"), "", True)
    made.kernel.register(made.publisher(POOL), "", False)
    return made


def announced(prompt: Prompt = ABC, lora_name: str = "", **fields: Any) -> StoredBlocks:
    """By an engine, with its tokens."""
    values: dict[str, Any] = {
        "sequence": 1,
        "hashes": prompt_hashes(prompt, lora_name),
        "tokens": prompt_tokens(prompt),
        "block_size": BLOCK_SIZE,
        "lora_name": lora_name,
    }
    return StoredBlocks(**(values | fields))


def evicted(prompt: Prompt = ABC) -> RemovedBlocks:
    return RemovedBlocks(sequence=1, hashes=prompt_hashes(prompt))


def objects(prompt: Prompt = ABC, backend: int = 0, **fields: Any) -> StoredBlocks:
    """One for each block, named by the engine's hashes."""
    values: dict[str, Any] = {
        "sequence": 1,
        "hashes": names(prompt, backend),
        "aliases": prompt_hashes(prompt),
        "block_size": BLOCK_SIZE,
        "medium": Medium.CPU,
        "shared": True,
    }
    return StoredBlocks(**(values | fields))


def dropped(prompt: Prompt = ABC, backend: int = 0, medium: Medium = Medium.CPU) -> RemovedBlocks:
    return RemovedBlocks(sequence=1, hashes=names(prompt, backend), medium=medium, shared=True)


def names(prompt: Prompt, backend: int = 0) -> bytes:
    return u64s([object_key(prompt[: i + 1], backend) for i in range(len(prompt))])


def test_an_object_is_the_block_that_an_engine_has_announced(pooled: Pooled) -> None:
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects())
    pooled.apply("engine", evicted())
    match = pooled.ask()["engine"]
    assert (match.longest, match.gpu, match.cpu, match.disk) == (3 * BLOCK_SIZE, 0, 6, 0)
    assert pooled.longest().keys() == {"engine"}, "a pool is no instance"
    assert pooled.counted() == {"stored": 6, "removed": 3}


def test_an_object_waits_for_the_engine_that_announces_its_block(pooled: Pooled) -> None:
    pooled.apply(POOL, objects())
    assert (pooled.longest(), pooled.waiting()) == ({"engine": 0}, 3)
    pooled.apply("engine", announced(), evicted())
    assert (pooled.longest(), pooled.waiting()) == ({"engine": 3}, 0)
    assert pooled.counted() == {"stored": 6, "removed": 3, "waiting": 3, "joined": 3}


def test_whichever_comes_first_the_digest_is_the_same(pooled: Pooled) -> None:
    pooled.apply(POOL, objects(), objects((0,), medium=Medium.DISK), objects((0,), backend=1))
    pooled.apply("engine", announced(), evicted((0,)))
    other = Pooled(open_kernel(SEED, name=pooled.kernel.name))
    other.apply("engine", announced())
    other.apply(POOL, objects((0,), backend=1), objects((0,), medium=Medium.DISK), objects())
    other.apply("engine", evicted((0,)))
    assert pooled.kernel.contexts() == other.kernel.contexts()
    assert [view.entries for view in pooled.kernel.contexts()] == [2, 5, 3]


def test_an_object_stays_until_the_pool_drops_it(pooled: Pooled) -> None:
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects())
    pooled.apply("engine", ClearedBlocks(sequence=2))
    assert pooled.longest() == {"engine": 3}
    pooled.apply(POOL, dropped((0, 1)))
    assert pooled.longest() == {"engine": 0}
    pooled.apply(POOL, objects((0,)))
    assert (pooled.longest(), pooled.waiting()) == ({"engine": 0}, 1), "nobody says what it is"
    pooled.apply("engine", announced((0,)), evicted((0,)))
    assert pooled.longest() == {"engine": 1}


def test_one_that_waits_is_dropped_too(pooled: Pooled) -> None:
    pooled.apply(POOL, objects(), dropped((0, 1)))
    assert pooled.waiting() == 1
    pooled.apply("engine", announced(), evicted())
    assert pooled.longest((2,)) == {"engine": 0}
    assert pooled.counted() == {
        "stored": 6, "removed": 5, "waiting": 3, "joined": 1,
    }  # fmt: skip


def test_an_object_is_held_once_however_often_it_is_stored(pooled: Pooled) -> None:
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects(), objects(), dropped())
    pooled.apply("engine", evicted())
    assert pooled.longest() == {"engine": 0}
    assert pooled.counted() == {"stored": 9, "repeated": 3, "removed": 6}


def test_one_that_waits_is_held_once_too(pooled: Pooled) -> None:
    pooled.apply(POOL, objects(), objects(), dropped())
    pooled.apply("engine", announced(), evicted())
    assert (pooled.longest(), pooled.waiting()) == ({"engine": 0}, 0)


def test_a_block_stays_while_one_of_its_objects_does(pooled: Pooled) -> None:
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects(), objects(backend=1))
    pooled.apply("engine", evicted())
    pooled.apply(POOL, dropped())
    assert pooled.longest() == {"engine": 3}
    pooled.apply(POOL, dropped(backend=1))
    assert pooled.longest() == {"engine": 0}


def test_an_object_moves_from_medium_to_medium(pooled: Pooled) -> None:
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects(), objects(medium=Medium.DISK), dropped())
    pooled.apply("engine", evicted())
    match = pooled.ask()["engine"]
    assert (match.longest, match.cpu, match.disk) == (3 * BLOCK_SIZE, 0, 3 * BLOCK_SIZE)
    pooled.apply(POOL, dropped(medium=Medium.DISK))
    assert pooled.longest() == {"engine": 0}


def test_one_that_waits_moves_too(pooled: Pooled) -> None:
    pooled.apply(POOL, objects((0, 1)), objects((0, 1), medium=Medium.DISK), dropped((0, 1)))
    pooled.apply("engine", announced(), evicted())
    assert pooled.ask()["engine"].disk == 2 * BLOCK_SIZE


def test_tiers_of_an_object_come_together_whether_it_waits_or_not(pooled: Pooled) -> None:
    pooled.apply(POOL, objects((0,)))
    pooled.apply("engine", announced(), evicted())
    pooled.apply(POOL, objects((0,), medium=Medium.DISK), dropped((0,)))
    assert pooled.ask()["engine"].disk == BLOCK_SIZE
    assert pooled.waiting() == 0


def test_a_prefix_hash_needs_no_engine(pooled: Pooled) -> None:
    prefixes = u64s(list(prefix_hashes(prompt_tokens(ABC), BLOCK_SIZE, seed=SEED)))
    pooled.apply(POOL, objects(aliases=prefixes, by_hash=True))
    assert pooled.longest() == {"engine": 3}
    pooled.apply(POOL, dropped((0, 1)), objects((0,), aliases=prefixes[8:16], by_hash=True))
    assert pooled.longest() == {"engine": 0}
    assert pooled.counted() == {"stored": 4, "removed": 2}


def test_an_engines_hash_is_not_taken_for_a_prefix_hash(pooled: Pooled) -> None:
    """Nor the other way round: what is named wrongly is never found."""
    prefixes = u64s(list(prefix_hashes(prompt_tokens(ABC), BLOCK_SIZE, seed=SEED)))
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects(aliases=prefixes), objects(backend=1, by_hash=True))
    pooled.apply("engine", evicted())
    assert pooled.longest() == {"engine": 0}


def test_who_names_blocks_by_prefix_hashes_announces_no_tokens(pooled: Pooled) -> None:
    named = StoredBlocks(sequence=1, hashes=prompt_hashes(ABC), block_size=BLOCK_SIZE, by_hash=True)
    pooled.apply("other", named)
    pooled.apply(POOL, objects())
    assert pooled.waiting() == 3
    pooled.apply("engine", announced(), evicted())
    assert (pooled.longest(), pooled.waiting()) == ({"engine": 3, "other": 3}, 0)


def test_hashes_on_which_engines_disagree_join_nothing(pooled: Pooled) -> None:
    """As of engines that do not chain them: one hash is a page at any depth."""
    pooled.apply("engine", announced((0,)))
    pooled.apply("other", announced((1,), hashes=prompt_hashes((0,))))
    pooled.apply(POOL, objects((0,)))
    assert pooled.waiting() == 1
    pooled.apply("engine", announced((0,)))
    assert pooled.waiting() == 1
    pooled.apply("other", ClearedBlocks(sequence=1))
    pooled.apply("engine", announced((0,)))
    assert pooled.waiting() == 0
    pooled.apply("engine", ClearedBlocks(sequence=1))
    assert pooled.longest((0,)) == {"engine": 1}


def other_hashes(prompt: Prompt = ABC) -> bytes:
    """What an engine with another seed calls the blocks."""
    return u64s([prompt_key(prompt[: end + 1]) ^ 0xABCD for end in range(len(prompt))])


@pytest.mark.parametrize("waits", [False, True])
def test_blocks_that_engines_call_otherwise_are_told_until_the_pool_has_dropped_them(
    pooled: Pooled, waits: bool
) -> None:
    """Each finds only what engines of its own hashes have stored."""
    pool = pooled.publisher(POOL)
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects())
    assert pooled.kernel.left_out(pool) == []
    other = objects(backend=1, aliases=other_hashes())
    again = announced(hashes=other_hashes())
    for name, event in [(POOL, other), ("other", again)][:: 1 if waits else -1]:
        pooled.apply(name, event)
    assert pooled.kernel.left_out(pool) == [(HASHES_DIFFER, 3)]
    pooled.apply("engine", evicted())
    pooled.apply(POOL, dropped((0, 1), 1))
    assert pooled.kernel.left_out(pool) == [(HASHES_DIFFER, 3)]
    pooled.apply(POOL, dropped((0, 1)))
    assert pooled.kernel.left_out(pool) == [(HASHES_DIFFER, 1)]
    pooled.apply(POOL, dropped((0, 1, 2)), dropped((0, 1, 2), 1))
    assert pooled.kernel.left_out(pool) == []
    assert pooled.kernel.stats()["left_out"] == 0


def test_an_object_is_joined_within_its_adapter(pooled: Pooled) -> None:
    mine = objects(lora_name="adapter", aliases=prompt_hashes(ABC, "adapter"))
    pooled.apply("engine", announced(hashes=prompt_hashes(ABC, "adapter")))
    pooled.apply(POOL, mine)
    assert pooled.waiting() == 3
    pooled.apply("other", announced(lora_name="adapter"))
    assert pooled.waiting() == 0
    assert pooled.longest(lora_name="adapter") == {"other": 3}
    pooled.apply("other", RemovedBlocks(sequence=1, hashes=prompt_hashes((0, 1), "adapter")))
    assert pooled.longest(lora_name="adapter") == {"other": 3}
    pooled.apply("other", RemovedBlocks(sequence=1, hashes=prompt_hashes(ABC, "adapter")[16:]))
    pooled.apply(POOL, dropped())
    assert pooled.longest(lora_name="adapter") == {}


def test_a_hash_that_an_engine_has_of_another_adapter_names_no_block(pooled: Pooled) -> None:
    """The engine's entry is of another scope, with other slots than those that are looked at."""
    pooled.apply("engine", announced(lora_name="adapter", hashes=prompt_hashes(ABC)))
    pooled.apply("other", announced((5, 6)))
    pooled.apply("other", RemovedBlocks(sequence=1, hashes=prompt_hashes((5, 6))))
    pooled.apply(POOL, objects())
    assert pooled.waiting() == 3
    pooled.apply("other", announced())
    assert pooled.waiting() == 0
    assert pooled.longest()["other"] == 3


def test_objects_are_joined_within_their_domain(pooled: Pooled) -> None:
    pooled.kernel.set_domain(pooled.publisher("other"), 1)
    pooled.apply("other", announced())
    pooled.apply(POOL, objects((0, 1)))
    assert pooled.waiting() == 2
    pooled.apply("other", announced())
    assert pooled.waiting() == 2
    pooled.kernel.set_domain(pooled.publisher(POOL), 1)
    pooled.apply(POOL, objects((2,), aliases=prompt_hashes(ABC)[16:]))
    assert pooled.waiting() == 2, "found at once"
    pooled.apply("other", announced(), evicted(), evicted())
    assert (pooled.waiting(), pooled.longest()["engine"]) == (0, 3)


def test_objects_of_another_group_are_not_joined(pooled: Pooled) -> None:
    pooled.apply("engine", announced(group=1))
    pooled.apply(POOL, objects())
    assert pooled.waiting() == 3
    pooled.apply("engine", announced())
    assert pooled.waiting() == 0


def test_only_so_many_wait(pooled: Pooled) -> None:
    pooled.apply(POOL, objects(), objects(backend=1))
    assert pooled.waiting() == WAITING_MAX
    assert pooled.counted() == {"stored": 5, "waiting": 5, "waiting_overflow": 1}
    pooled.apply(POOL, objects((0,), medium=Medium.DISK))
    assert pooled.counted()["waiting_overflow"] == 2
    pooled.apply("engine", announced((0,)), evicted((0,)))
    assert pooled.longest((0,)) == {"engine": 1}
    pooled.apply(POOL, objects(backend=1))
    assert pooled.waiting() == 4


def test_an_adapter_whose_name_leaves_no_room_waits_for_nobody(pooled: Pooled) -> None:
    name = "l" * 1020
    assert waiting_scope(scope_of(name)) is None
    pooled.apply(POOL, objects(lora_name=name))
    pooled.apply("engine", announced(lora_name=name))
    assert pooled.counted() == {"stored": 3, "waiting_overflow": 3}
    pooled.apply(POOL, objects(lora_name=name, aliases=prompt_hashes(ABC, name)))
    assert pooled.counted()["stored"] == 6


def test_a_pool_that_clears_waits_for_nothing_any_more(pooled: Pooled) -> None:
    pooled.apply("engine", announced((0,)))
    pooled.apply(POOL, objects(), ClearedBlocks(sequence=1))
    assert pooled.waiting() == 0
    assert pooled.counted()["cleared"] == 3
    pooled.apply("engine", announced(), ClearedBlocks(sequence=1))
    assert pooled.longest() == {"engine": 0}
    pooled.apply(POOL, objects())
    assert pooled.waiting() == 3
    pooled.kernel.unregister(pooled.publisher(POOL))
    assert pooled.waiting() == 0


def test_two_pools_wait_for_one_block(pooled: Pooled) -> None:
    pooled.apply(POOL, objects((0,)))
    pooled.apply("other-pool", objects((0,)))
    pooled.apply("engine", announced((0,)), evicted((0,)))
    pooled.apply(POOL, dropped((0,)))
    assert pooled.longest((0,)) == {"engine": 1}
    pooled.apply("other-pool", dropped((0,)))
    assert pooled.longest((0,)) == {"engine": 0}


def test_an_object_of_another_block_keeps_the_first(pooled: Pooled) -> None:
    other = objects(aliases=prompt_hashes((2, 2, 2)))
    pooled.apply(POOL, objects(), other)
    assert pooled.counted() == {"stored": 3, "waiting": 3, "hash_conflict": 3}
    pooled.apply(POOL, objects(aliases=prompt_hashes(ABC), by_hash=True))
    assert pooled.counted()["hash_conflict"] == 6


def test_a_prefix_hash_of_another_block_keeps_the_first(pooled: Pooled) -> None:
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects())
    other = list(prefix_hashes(prompt_tokens((2, 2, 2)), BLOCK_SIZE, seed=SEED))
    pooled.apply(POOL, objects(by_hash=True, aliases=u64s(other)))
    assert pooled.counted()["hash_conflict"] == 3
    assert dict(pooled.kernel.left_out(pooled.publisher(POOL)))["hash_conflict"] == 3


@pytest.mark.parametrize("lora_name", ["", "adapter"])
def test_what_a_batch_forgets_is_of_its_adapter(pooled: Pooled, lora_name: str) -> None:
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects())
    pooled.apply("engine", evicted())
    pooled.apply(POOL, dropped(), objects(backend=1, lora_name=lora_name))
    assert pooled.waiting() == (3 if lora_name else 0)


def test_what_waits_is_no_block_and_no_scope_yet(pooled: Pooled) -> None:
    pooled.apply(POOL, objects())
    [view] = pooled.kernel.scopes()
    assert (view.scope, view.blocks) == (SCOPE, 0)
    stats = pooled.kernel.stats()
    assert (stats["blocks"], stats["scopes"], stats["entries"]) == (0, 1, 3)
    waiting = waiting_scope(SCOPE)
    assert waiting is not None
    assert not pooled.kernel.knows(waiting)
    [context] = pooled.kernel.contexts()
    assert context.context == context_of(waiting.lora_name, POOL)


def waits(pooled: Pooled, instance: str = POOL) -> dict[str, int]:
    return dict(pooled.kernel.left_out(pooled.publisher(instance)))


def test_what_waits_is_known_to_the_pool_until_it_is_joined_or_dropped(pooled: Pooled) -> None:
    """An engine had announced it, and evicted it before the pool was heard."""
    pooled.apply("engine", announced(), evicted())
    pooled.apply(POOL, objects())
    assert (pooled.longest(), waits(pooled)) == ({"engine": 0}, {OBJECTS_WAIT: 3})
    assert waits(pooled, "engine") == {}
    pooled.apply("engine", announced((0,)))
    assert waits(pooled) == {OBJECTS_WAIT: 2}
    pooled.apply(POOL, objects((0, 1), medium=Medium.DISK))
    assert waits(pooled) == {OBJECTS_WAIT: 3}
    pooled.apply(POOL, dropped(), dropped(medium=Medium.DISK))
    assert waits(pooled) == {}
    pooled.apply(POOL, objects((1,)), ClearedBlocks(sequence=1))
    assert waits(pooled) == {}


def test_a_further_object_of_a_block_that_only_the_pool_has(pooled: Pooled) -> None:
    """As of another rank: the pool knows which block it is."""
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects())
    pooled.apply("engine", evicted())
    pooled.apply(POOL, objects(backend=1))
    pooled.apply(POOL, dropped())
    assert (pooled.longest(), pooled.waiting()) == ({"engine": 3}, 0)
    pooled.apply(POOL, objects(backend=2), dropped(backend=1))
    assert (pooled.longest(), waits(pooled)) == ({"engine": 3}, {})
    pooled.apply(POOL, dropped(backend=2))
    assert pooled.longest() == {"engine": 0}
    pooled.apply(POOL, objects())
    assert (pooled.longest(), waits(pooled)) == ({"engine": 0}, {OBJECTS_WAIT: 3})


def test_one_that_waited_says_so_of_further_ones_too(pooled: Pooled) -> None:
    pooled.apply(POOL, objects())
    pooled.apply("engine", announced(), evicted())
    pooled.apply(POOL, objects(backend=1), dropped())
    assert (pooled.longest(), pooled.waiting()) == ({"engine": 3}, 0)


def test_another_pool_may_know_the_block(pooled: Pooled) -> None:
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects())
    pooled.apply("engine", evicted())
    pooled.apply("other-pool", objects())
    pooled.apply(POOL, dropped())
    assert (pooled.longest(), pooled.waiting()) == ({"engine": 3}, 0)
    pooled.kernel.set_domain(pooled.publisher("far"), 1)
    pooled.apply("far", objects())
    assert waits(pooled, "far") == {OBJECTS_WAIT: 3}


@pytest.mark.parametrize("backend", [0, 1])
def test_a_block_that_one_batch_removes_and_stores_has_moved(pooled: Pooled, backend: int) -> None:
    """From medium to medium, or from object to object; so it is within one batch alone."""
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects())
    pooled.apply("engine", evicted())
    pooled.apply(POOL, dropped(), objects(backend=backend, medium=Medium.DISK))
    match = pooled.ask()["engine"]
    assert (match.longest, match.cpu, match.disk) == (3 * BLOCK_SIZE, 0, 3 * BLOCK_SIZE)
    back = objects(sequence=2, backend=backend)
    pooled.apply(POOL, dropped(backend=backend, medium=Medium.DISK), back)
    assert (pooled.longest(), waits(pooled)) == ({"engine": 0}, {OBJECTS_WAIT: 3})


def test_what_engines_call_a_block_stays_while_any_medium_has_it(pooled: Pooled) -> None:
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects(), objects(backend=1, medium=Medium.DISK))
    pooled.apply("engine", evicted())
    pooled.apply(POOL, ClearedBlocks(sequence=1, medium=Medium.CPU))
    pooled.apply(POOL, objects(backend=2))
    assert (pooled.longest(), pooled.waiting()) == ({"engine": 3}, 0)
    pooled.apply(POOL, ClearedBlocks(sequence=1, medium=Medium.CPU))
    pooled.apply(POOL, ClearedBlocks(sequence=1, medium=Medium.DISK), objects())
    assert (pooled.longest(), pooled.waiting()) == ({"engine": 3}, 0), "one batch"
    pooled.apply(POOL, ClearedBlocks(sequence=1, medium=Medium.CPU))
    pooled.apply(POOL, objects())
    assert (pooled.longest(), pooled.waiting()) == ({"engine": 0}, 3)
    assert pooled.counted()["cleared"] == 12


def test_engines_that_mean_another_block_than_the_pool_join_nothing(pooled: Pooled) -> None:
    pooled.apply("engine", announced((0,)))
    pooled.apply(POOL, objects((0,)))
    pooled.apply("engine", evicted((0,)), announced((1,), hashes=prompt_hashes((0,))))
    pooled.apply(POOL, objects((0,), backend=1))
    assert (pooled.longest((0,)), pooled.waiting()) == ({"engine": 1}, 1)
    pooled.apply(POOL, dropped((0,)))
    pooled.apply("engine", announced((1,), hashes=prompt_hashes((0,))))
    assert (pooled.longest((1,)), pooled.waiting()) == ({"engine": 1}, 0)


def test_what_is_remembered_of_names_is_no_block_and_in_no_answer(pooled: Pooled) -> None:
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects())
    names_scope = aliases_scope(SCOPE)
    assert names_scope is not None
    contexts = {view.context.scope: view.entries for view in pooled.kernel.contexts()}
    assert contexts[names_scope] == 3
    stats = pooled.kernel.stats()
    assert (stats["blocks"], stats["entries"], stats["scopes"]) == (3, 6, 1)
    assert not pooled.kernel.knows(names_scope)
    assert pooled.kernel.clear(pooled.publisher(POOL)) == 3
    assert [view.context.instance_id for view in pooled.kernel.contexts()] == ["engine"]


def test_objects_wait_together_where_no_member_of_a_pool_finds_them(pooled: Pooled) -> None:
    """Each member is in a partition, and hears the engines of that."""
    members = [pooled.publisher(f"pool#{number}") for number in range(2)]
    pooled.kernel.set_domain(members[1], 1)
    pooled.kernel.set_domain(pooled.publisher("other"), 1)
    assert not pooled.kernel.wait_together(members)
    pooled.apply("engine", announced((0,)))
    pooled.apply("other", announced(ABC))
    for number in range(2):
        pooled.apply(f"pool#{number}", objects((0, 1)))
    assert waits(pooled, "pool#0") == {OBJECTS_WAIT: 1}
    assert not pooled.kernel.wait_together(members)
    for number in range(2):
        pooled.apply(f"pool#{number}", objects((3,)))
    assert pooled.kernel.wait_together(members)
    pooled.apply("other", announced((3,)))
    assert not pooled.kernel.wait_together(members)
    assert pooled.kernel.wait_together(members[:1])


@pytest.mark.parametrize("loaded", ["reference", "rust"])
def test_who_goes_on_from_rows_joins_alike(pooled: Pooled, loaded: str) -> None:
    if loaded == "rust" and not native_available():
        pytest.skip("the Rust kernel is not built")
    pooled.apply(POOL, objects(), objects((0,), backend=1), objects((0,), medium=Medium.DISK))
    pooled.apply("engine", announced((0, 1)))
    pooled.apply(POOL, dropped((0,)), objects((2,)))
    pooled.apply("engine", evicted((0, 1)))
    copies = [Pooled(open_kernel(SEED, name=loaded)) for _ in range(2)]
    for context, changes in pooled.kernel.take_changes():
        copies[0].kernel.load(context, net(changes))
    for view in pooled.kernel.contexts():
        for chunk in pooled.kernel.dump(view.context, 2):
            copies[1].kernel.load(view.context, chunk)
    for copy in copies:
        assert copy.kernel.contexts() == pooled.kernel.contexts()
        assert copy.waiting() == pooled.waiting()
    everybody = [pooled, *copies]
    for kernel in everybody:
        kernel.apply(POOL, objects((0, 1), backend=2))
        kernel.apply("engine", announced(ABC), evicted(ABC), announced((2,)))
        kernel.apply(POOL, dropped((1,)), objects((1,)))
    rows = [dict(kernel.kernel.take_changes()) for kernel in everybody]
    assert rows[0] == rows[1] == rows[2]
    assert len({len(part) % CHANGE_BYTES for taken in rows for part in taken.values()}) == 1
    assert everybody[0].kernel.contexts() == everybody[1].kernel.contexts()


@pytest.mark.parametrize("aliases", [b"x", prompt_hashes((0,)), prompt_hashes((0, 1, 2, 3))])
def test_another_number_of_aliases_is_no_event(pooled: Pooled, aliases: bytes) -> None:
    with pytest.raises(EventsFormatError):
        pooled.apply(POOL, objects(aliases=aliases))
    assert not pooled.counted()


def test_an_object_with_tokens_or_of_another_size_is_left_out(pooled: Pooled) -> None:
    pooled.apply(POOL, objects(tokens=prompt_tokens(ABC)))
    pooled.apply(POOL, objects(block_size=BLOCK_SIZE + 1))
    pooled.apply(POOL, objects(spec_kind="mamba"))
    assert pooled.counted() == {
        "token_count_mismatch": 3, "block_size_mismatch": 3, "skipped_group": 3,
    }  # fmt: skip


def differing(pooled: Pooled) -> int:
    return dict(pooled.kernel.left_out(pooled.publisher(POOL))).get(GROUPS_DIFFER, 0)


def test_a_block_of_which_a_shard_is_gone_is_counted_and_told(pooled: Pooled) -> None:
    pooled.apply("engine", announced())
    for number, tp_rank in enumerate((0, 77)):
        pooled.apply(POOL, objects(backend=number, group=tp_rank))
    pooled.apply("engine", evicted())
    assert (differing(pooled), pooled.longest().get("engine", 0)) == (0, 3)
    pooled.apply(POOL, dropped((0,), backend=1))
    assert (differing(pooled), pooled.longest().get("engine", 0)) == (1, 3)
    pooled.apply(POOL, objects((0,), backend=1, group=77))
    assert differing(pooled) == 0
    pooled.apply(POOL, dropped(backend=0), dropped(backend=1))
    assert (differing(pooled), pooled.longest().get("engine", 0)) == (0, 0)


def test_an_object_that_is_not_of_the_first_shard_lacks_that(pooled: Pooled) -> None:
    """As one that engines with a prefix have stored, where nothing says which these are."""
    pooled.apply("engine", announced())
    pooled.apply(POOL, objects(group=77))
    assert differing(pooled) == 3
    pooled.apply(POOL, objects(backend=1))
    assert differing(pooled) == 0


def test_the_key_of_an_object_is_its_own(pooled: Pooled) -> None:
    """An engine may call a block by what the pool calls another one."""
    pooled.apply("engine", announced((0,), hashes=u64s([object_key((1,))])))
    pooled.apply("engine", announced((1,)))
    pooled.apply(POOL, objects((1,)))
    pooled.apply("engine", evicted((1,)))
    assert pooled.longest((1,)) == {"engine": 1}
    assert prompt_key((1,)) != object_key((1,))
