"""The curve of one pass is what a cache of each size does, request by request."""

from hypothesis import given
from hypothesis import strategies as st

from lab.miss_ratio.accesses import chain_of
from lab.miss_ratio.miss_ratio import MissRatios, Scope
from replay.traces.request import TraceRequest

SCOPE = Scope("a", "", "", 8)

# Few ids in short prompts, so that prefixes are shared, split, evicted and asked for again.
prompts = st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=40)


def hits_of(chains: list[list[int]], size: int) -> tuple[int, int]:
    """Blocks and tokens that a plain list of the most recently used blocks has of the prefixes;
    a block's tokens are its number modulo 7.
    """
    held: list[int] = []
    blocks = tokens = 0
    for chain in chains:
        for block in chain:
            if block not in held:
                break
            blocks += 1
            tokens += block % 7
        rest = [block for block in held if block not in chain]
        held = (chain + rest)[:size]
    return blocks, tokens


@given(prompts)
def test_every_size_hits_as_a_cache_of_it(prompts: list[list[int]]) -> None:
    chains = [chain_of(TraceRequest(0, 0, 0, prompt)) for prompt in prompts]
    ratios = MissRatios()
    for chain in chains:
        ratios.use(SCOPE, chain, [block % 7 for block in chain])
    sizes = list(range(1, 45))
    for curve in ratios.curves(lambda block_size: sizes):
        for point in curve.points:
            blocks, tokens = hits_of(chains, point.blocks)
            assert round(point.block_hit_rate * curve.accesses, 6) == blocks
            assert round(point.token_hit_rate * curve.tokens, 6) == tokens
