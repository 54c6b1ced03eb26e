import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.engines.cache import BlockChain, CacheRun, CacheSizes, EngineCache, Offload
from lab.engines.wire import CPU, GPU, AllBlocksCleared, BlockRemoved, BlockStored
from tests.unit.lab.demo.stub_service import NaiveFollower

BLOCK_SIZE = 2
# Few tokens and short prompts: prefixes are shared, and tiers of a few blocks overflow.
prompts = st.lists(st.integers(0, 2), max_size=14)
requests = st.lists(st.tuples(prompts, st.lists(st.integers(0, 2), max_size=4)), max_size=30)
sizes = st.builds(CacheSizes, st.just(BLOCK_SIZE), st.integers(1, 12), st.integers(0, 12))
offloads = st.sampled_from(Offload)


def follow(follower: NaiveFollower, run: CacheRun) -> None:
    for event in run.events:
        follower.apply(event)


@settings(max_examples=150, deadline=None)
@given(requests, sizes, offloads)
def test_events_rebuild_what_the_cache_holds(
    served: list[tuple[list[int], list[int]]], room: CacheSizes, offload: Offload
) -> None:
    cache = EngineCache(room, offload=offload)
    follower = NaiveFollower()
    for prompt, answer in served:
        follow(follower, cache.run(prompt, answer))
        held = cache.snapshot().held
        assert follower.held == held
        assert sum(medium == GPU for _, medium in held) <= room.gpu_blocks
        assert sum(medium == CPU for _, medium in held) <= room.cpu_blocks
        for medium in (None, GPU, CPU):
            asked = tuple(prompt + answer)
            assert cache.longest_held(asked, medium) == follower.longest(asked, BLOCK_SIZE, medium)


@settings(max_examples=150, deadline=None)
@given(requests, sizes)
def test_a_hit_is_the_longest_prefix_that_was_held_and_can_be_reused(
    served: list[tuple[list[int], list[int]]], room: CacheSizes
) -> None:
    cache = EngineCache(room)
    for prompt, answer in served:
        on_gpu = cache.longest_held(prompt, GPU)
        anywhere = cache.longest_held(prompt)
        reusable = max(len(prompt) - 1, 0) // BLOCK_SIZE * BLOCK_SIZE
        cached = cache.run(prompt, answer).cached_tokens
        assert min(on_gpu, reusable) <= cached <= min(anywhere, reusable)
        if anywhere <= room.gpu_blocks * BLOCK_SIZE:
            assert cached == min(anywhere, reusable)


@settings(max_examples=100, deadline=None)
@given(requests, sizes, offloads)
def test_gpu_stores_are_one_chained_event_for_each_request(
    served: list[tuple[list[int], list[int]]], room: CacheSizes, offload: Offload
) -> None:
    cache = EngineCache(room, offload=offload)
    for prompt, answer in served:
        events = cache.run(prompt, answer).events
        stored = [e for e in events if isinstance(e, BlockStored) and e.medium == GPU]
        assert len(stored) <= 1
        for event in stored:
            assert len(event.token_ids) == len(event.block_hashes) * event.block_size
            hashes = cache.chain.hashes(prompt + answer)
            first = hashes.index(int(event.block_hashes[0]))
            assert event.parent_block_hash == (hashes[first - 1] if first else None)
            assert list(event.block_hashes) == hashes[first : first + len(event.block_hashes)]


def test_the_tail_of_the_least_recent_prompt_is_evicted_first() -> None:
    cache = EngineCache(CacheSizes(block_size=1, gpu_blocks=4))
    old = cache.chain.hashes([1, 2])
    cache.run([1, 2])
    cache.run([3, 4])
    (removed, stored) = cache.run([5]).events
    assert isinstance(removed, BlockRemoved)
    assert removed.block_hashes == [old[1]]
    assert isinstance(stored, BlockStored)
    assert cache.longest_held([1, 2]) == 1


def test_a_hit_protects_its_blocks_from_eviction() -> None:
    cache = EngineCache(CacheSizes(block_size=1, gpu_blocks=4))
    cache.run([1, 2])
    cache.run([3, 4])
    assert cache.run([1, 2, 9]).cached_tokens == 2
    assert cache.longest_held([1, 2, 9]) == 3
    assert cache.longest_held([3, 4]) == 1


def test_cpu_copy_is_a_placeholder_after_the_store() -> None:
    cache = EngineCache(CacheSizes(block_size=2, gpu_blocks=4, cpu_blocks=4))
    gpu, cpu = cache.run([1, 2, 3, 4]).events
    assert isinstance(gpu, BlockStored)
    assert isinstance(cpu, BlockStored)
    assert (gpu.medium, cpu.medium) == (GPU, CPU)
    assert (list(cpu.token_ids), cpu.block_size, cpu.parent_block_hash) == ([], 0, None)
    assert cpu.block_hashes == gpu.block_hashes


def test_offload_on_eviction_is_announced_before_the_removal() -> None:
    room = CacheSizes(block_size=1, gpu_blocks=1, cpu_blocks=1)
    cache = EngineCache(room, offload=Offload.ON_EVICTION)
    cache.run([1])
    kinds = [(type(e).__name__, getattr(e, "medium", None)) for e in cache.run([2]).events]
    assert kinds == [("BlockStored", CPU), ("BlockRemoved", GPU), ("BlockStored", GPU)]
    kinds = [(type(e).__name__, getattr(e, "medium", None)) for e in cache.run([3]).events]
    assert kinds[0] == ("BlockRemoved", CPU)


def test_blocks_that_only_the_cpu_holds_are_hits_and_come_back_to_the_gpu() -> None:
    cache = EngineCache(CacheSizes(block_size=1, gpu_blocks=2, cpu_blocks=8))
    cache.run([1, 2])
    cache.run([3, 4])
    assert cache.longest_held([1, 2], GPU) == 0
    run = cache.run([1, 2])
    assert run.cached_tokens == 1
    assert cache.longest_held([1, 2], GPU) == 2


def test_one_token_is_always_computed() -> None:
    cache = EngineCache(CacheSizes(block_size=2, gpu_blocks=8))
    cache.run([1, 2, 3, 4])
    assert cache.run([1, 2, 3, 4]) == CacheRun(2, [])
    assert cache.run([1, 2, 3, 4, 5]).cached_tokens == 4


def test_answer_is_cached_for_the_next_turn() -> None:
    cache = EngineCache(CacheSizes(block_size=2, gpu_blocks=8))
    assert cache.run([1, 2, 3], [4, 5, 6]).cached_tokens == 0
    assert cache.run([1, 2, 3, 4, 5, 6, 7]).cached_tokens == 6


def test_clear_forgets_both_tiers() -> None:
    cache = EngineCache(CacheSizes(block_size=1, gpu_blocks=2, cpu_blocks=2))
    cache.run([1, 2])
    assert cache.clear() == [AllBlocksCleared()]
    assert cache.snapshot().held == frozenset()


def test_hashes_are_chained_and_opaque() -> None:
    chain = BlockChain(2)
    hashes = chain.hashes([7, 7, 7, 7, 7])
    assert len(set(hashes)) == 2
    assert BlockChain(2).hashes([7, 7]) != hashes[:1]
    assert all(0 <= block < 2**64 for block in hashes)
    pairs = itertools.combinations(([1, 2, 3, 4], [3, 4, 1, 2], [1, 2, 1, 2]), 2)
    assert all(chain.hashes(a)[1] != chain.hashes(b)[1] for a, b in pairs)


@pytest.mark.parametrize("room", [CacheSizes(16, 0, 0), CacheSizes(16, 4, -1), CacheSizes(0, 4)])
def test_a_cache_without_room_is_refused(room: CacheSizes) -> None:
    with pytest.raises(ValueError, match="Expected"):
        EngineCache(room)


def test_a_chain_of_another_block_size_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected a chain of block size 16"):
        EngineCache(CacheSizes(), chain=BlockChain(8))
