"""What a store holds is what it says that it has stored and not evicted, within its capacity."""

from array import array

import pytest

from lab.whatif.caches.store import StoreCache
from lab.whatif.setup import Leases

DEPTHS = array("I", range(100))
"""Block n stands at depth n."""


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
