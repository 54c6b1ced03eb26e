"""What the caches hold, and what they evict."""

from array import array

import pytest

from simulation.whatif.caches.interface import Use
from simulation.whatif.caches.lru import LruCache
from simulation.whatif.caches.store import StoreCache
from simulation.whatif.setup import Leases

DEPTHS = array("I", range(100))
"""Block n stands at depth n."""


class TestLru:
    def test_the_least_recently_used_goes(self) -> None:
        cache = LruCache(3)
        assert cache.use([1, 2], 0.0) == Use([1, 2], [])
        assert cache.use([3], 0.0) == Use([3], [])
        assert cache.use([1], 0.0) == Use([], [])
        assert cache.use([4, 5], 0.0) == Use([4, 5], [2, 3])
        assert list(cache.held) == [1, 5, 4]

    def test_tails_go_before_the_heads_they_hang_on(self) -> None:
        cache = LruCache(4)
        cache.use([1, 2, 3, 4], 0.0)
        assert cache.use([9], 0.0) == Use([9], [4])

    def test_of_a_prompt_that_is_too_long_the_head_stays(self) -> None:
        cache = LruCache(3)
        cache.use([1, 8], 0.0)
        assert cache.use([1, 2, 3, 4, 5], 0.0) == Use([2, 3], [8])
        assert set(cache.held) == {1, 2, 3}

    def test_without_a_bound_nothing_goes(self) -> None:
        cache = LruCache(None)
        cache.use(range(1000), 0.0)
        assert cache.use(range(2000), 0.0) == Use(list(range(1000, 2000)), [])


class TestStore:
    """Capacity 10; above 9 blocks a fifth goes."""

    RULES = Leases(lease_s=10.0, watermark=0.9, share=0.2)

    def test_up_to_the_watermark_nothing_goes(self) -> None:
        cache = StoreCache(10, self.RULES, DEPTHS)
        assert cache.use(range(9), 0.0).evicted == []

    def test_above_it_those_whose_leases_ended_first_go(self) -> None:
        cache = StoreCache(10, self.RULES, DEPTHS)
        cache.use([1], 0.0)
        cache.use([2, 3], 1.0)
        cache.use(range(4, 10), 2.0)
        # 10 blocks, 0.1 above the watermark: 0.1 + 0.2 of them.
        assert cache.use([50], 3.0) == Use([50], [1, 3, 2])

    def test_a_read_protects_for_its_lease(self) -> None:
        cache = StoreCache(10, self.RULES, DEPTHS)
        cache.use([1], 0.0)
        cache.use([2, 3], 1.0)
        cache.use([1], 2.0)
        cache.use(range(4, 10), 3.0)
        assert cache.use([50], 12.0 - 0.001).evicted == [3, 2, 9]

    def test_the_lease_ends_and_does_not_delete(self) -> None:
        cache = StoreCache(10, self.RULES, DEPTHS)
        cache.use([1], 0.0)
        cache.use([1], 0.0)
        assert cache.use([1], 1e6) == Use([], [])

    def test_after_its_lease_a_block_goes_like_any_other(self) -> None:
        cache = StoreCache(10, self.RULES, DEPTHS)
        cache.use([1], 0.0)
        cache.use([1], 0.0)  # until 10
        cache.use(range(2, 10), 20.0)
        assert cache.use([50], 21.0).evicted == [1, 9, 8]

    def test_where_all_is_leased_what_comes_finds_no_room(self) -> None:
        cache = StoreCache(10, self.RULES, DEPTHS)
        cache.use(range(9), 0.0)
        cache.use(range(9), 1.0)
        assert cache.use([50, 51, 52], 2.0) == Use([], [], 2)  # 50 came and went
        assert all(block in cache for block in range(9))

    def test_soft_pins_outlive_leases(self) -> None:
        rules = Leases(lease_s=1.0, watermark=0.9, share=0.2, soft_pin_blocks=2, soft_pin_s=100.0)
        cache = StoreCache(10, rules, DEPTHS)
        cache.use(range(9), 0.0)
        assert cache.use([50], 50.0).evicted == [8, 7, 6]
        cache.use(range(60, 63), 50.0)
        assert {0, 1} <= {block for block in range(100) if block in cache}

    def test_soft_pins_go_where_nothing_else_can(self) -> None:
        rules = Leases(lease_s=1.0, watermark=0.9, share=0.2, soft_pin_blocks=50, soft_pin_s=100.0)
        cache = StoreCache(10, rules, DEPTHS)
        cache.use(range(9), 0.0)
        # Half of the share, at least.
        assert cache.use([49], 50.0).evicted == [8]

    def test_soft_pins_end(self) -> None:
        rules = Leases(lease_s=1.0, watermark=0.9, share=0.2, soft_pin_blocks=1, soft_pin_s=5.0)
        cache = StoreCache(10, rules, DEPTHS)
        cache.use([0], 0.0)
        cache.use(range(1, 9), 1.0)
        assert cache.use([50], 5.0).evicted == [0, 8, 7]


@pytest.mark.parametrize("watermark", [0.5, 0.9, 1.0])
def test_a_store_never_holds_more_than_its_capacity(watermark: float) -> None:
    cache = StoreCache(10, Leases(lease_s=3.0, watermark=watermark), DEPTHS)
    held: set[int] = set()
    for step in range(200):
        use = cache.use(range(step * 7 % 60, step * 7 % 60 + step % 13), float(step))
        assert not set(use.stored) & held
        assert set(use.evicted) <= held
        held = (held | set(use.stored)) - set(use.evicted)
        assert held == {block for block in range(100) if block in cache}
        assert len(cache) <= 10
