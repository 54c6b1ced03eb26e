"""Curves of known accesses, and how far off samples are."""

import random
from functools import cache

import pytest
from xxhash import xxh3_64_intdigest

from lab.miss_ratio import accesses
from lab.miss_ratio.accesses import chain_of, tokens_of, use_trace
from lab.miss_ratio.miss_ratio import Curve, MissRatios, Scope, sizes_up_to
from lab.whatif.caches.lru import LruCache
from replay.traces.request import TraceRequest
from replay.traces.session_hits import SessionHits

SCOPE = Scope("a", "", "", 16)


def block(number: int) -> int:
    return xxh3_64_intdigest(number.to_bytes(8, "little"))


def curve_of(ratios: MissRatios, sizes: list[int]) -> Curve:
    [curve] = ratios.curves(lambda block_size: sizes)
    return curve


def rates(curve: Curve) -> list[float]:
    return [point.block_hit_rate for point in curve.points]


def test_a_curve_by_hand() -> None:
    """a b c | a b c | a: the second three hit from three blocks on, the last one as well."""
    ratios = MissRatios()
    for number in (1, 2, 3, 1, 2, 3, 1):
        ratios.use(SCOPE, [block(number)], [16])
    curve = curve_of(ratios, [1, 2, 3, 4])
    assert rates(curve) == pytest.approx([0, 0, 4 / 7, 4 / 7])
    assert (curve.accesses, curve.tokens, curve.distinct_blocks) == (7, 112, 3)
    assert (curve.full_at_blocks, curve.sample_rate, curve.error) == (3, 1, 0)
    assert [point.tokens for point in curve.points] == [16, 32, 48, 64]


def test_a_request_is_looked_up_before_it_changes_the_cache() -> None:
    """Of five blocks a cache of three keeps the first three, and the same prompt finds them."""
    ratios = MissRatios()
    prompt = [block(number) for number in range(5)]
    for _ in range(2):
        ratios.use(SCOPE, prompt, [16] * 5)
    found = rates(curve_of(ratios, [1, 2, 3, 4, 5]))
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_tokens_weigh_what_a_block_has() -> None:
    ratios = MissRatios()
    for _ in range(2):
        ratios.use(SCOPE, [block(1), block(2)], [16, 4])
    ratios.use(SCOPE, [block(3)], [10])
    curve = curve_of(ratios, [1, 2])
    assert rates(curve) == pytest.approx([1 / 5, 2 / 5])
    assert [point.token_hit_rate for point in curve.points] == pytest.approx([16 / 50, 20 / 50])


def test_scopes_have_caches_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.miss_ratio.miss_ratio.CURVE_GROUPS_MAX", 2)
    ratios = MissRatios()
    for model in ("x", "y", "x", "z"):
        ratios.use(Scope("a", "t", model, 16), [block(1)], [16])
    x, y = ratios.curves()
    assert (x.scope.model, x.block_hit_rate) == ("x", 0.5)
    assert (y.scope.model, y.block_hit_rate) == ("y", 0)
    assert ratios.other_groups == 1


def test_nothing_that_hits_is_a_curve_without_sizes() -> None:
    ratios = MissRatios()
    ratios.use(SCOPE, [block(1)], [16])
    [curve] = ratios.curves()
    assert (curve.points, curve.full_at_blocks, curve.block_hit_rate) == ((), 0, 0)


def test_sizes_are_in_equal_ratios() -> None:
    assert sizes_up_to(1) == [1]
    assert sizes_up_to(0) == []
    assert sizes_up_to(10_000, 5) == [1, 10, 100, 1000, 10_000]


def test_an_id_behind_two_others_is_two_blocks() -> None:
    one, other = (TraceRequest(0, 24, 1, ids) for ids in ([1, 5, 9], [2, 5, 9]))
    assert not set(chain_of(one)) & set(chain_of(other))
    assert tokens_of(one, 10) == [10, 10, 4]
    assert tokens_of(one, 5) == [5, 5, 5]
    assert tokens_of(one, 20) == [20, 4, 0]


def zipf(requests: int, seed: int) -> list[list[int]]:
    """Prompts with popular beginnings, as those of a service are."""
    source = random.Random(seed)
    made = []
    for number in range(requests):
        family = min(int(source.paretovariate(0.9)), 4000)
        depth = source.randrange(2, 14)
        shared = [1, *(10_000 * family + at for at in range(depth))]
        made.append([*shared, *(10**9 + 100 * number + at for at in range(6))])
    return made


def naive_rates(prompts: list[list[int]], sizes: list[int]) -> list[float]:
    """A cache of each size, block by block."""
    found = []
    for size in sizes:
        cache = LruCache(size)
        hits = 0
        for prompt in prompts:
            for one in prompt:
                if one not in cache.held:
                    break
                hits += 1
            cache.use(prompt, 0.0)
        found.append(hits / sum(map(len, prompts)))
    return found


SIZES = [300, 1000, 3000, 10_000, 30_000]


@cache
def workload(seed: int) -> tuple[list[list[int]], Curve]:
    """Prompts, and their exact curve."""
    prompts = [[block(one) for one in prompt] for prompt in zipf(4000, seed)]
    exact = MissRatios()
    for prompt in prompts:
        exact.use(SCOPE, prompt, [16] * len(prompt))
    return prompts, curve_of(exact, SIZES)


def test_a_large_curve_is_that_of_caches() -> None:
    prompts, curve = workload(0)
    assert rates(curve) == pytest.approx(naive_rates(prompts, SIZES), abs=1e-12)
    assert 0.1 < rates(curve)[0] < rates(curve)[-1] - 0.05, "there is something to tell apart"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", [0.3, 0.1, 0.03])
def test_samples_are_within_their_stated_error(rate: float, seed: int) -> None:
    """Within three standard errors, and what ranks that are whole multiples of 1 / rate cost."""
    prompts, truth = workload(seed)
    ratios = MissRatios(sample=rate)
    for prompt in prompts:
        ratios.use(SCOPE, prompt, [16] * len(prompt))
    found = curve_of(ratios, SIZES)
    assert found.accesses == truth.accesses
    assert 0.5 * rate < found.sampled_blocks / truth.distinct_blocks < 2 * rate
    for right, one in zip(truth.points, found.points, strict=True):
        assert 0 < one.error < 0.06
        assert abs(one.block_hit_rate - right.block_hit_rate) < 3 * one.error + 0.002


def test_a_block_that_all_use_costs_a_sample_nothing() -> None:
    """Whether it is among the sampled or not, the totals are those of all accesses."""
    for seed in range(8):
        ratios = MissRatios(sample=0.1)
        for number in range(2000):
            blocks = [block(seed), block(10**6 * (seed + 1) + number)]
            ratios.use(SCOPE, blocks, [16, 16])
        curve = curve_of(ratios, [100])
        assert abs(curve.points[0].block_hit_rate - 0.5) < 0.15


def test_more_blocks_than_there_is_room_for_are_sampled() -> None:
    prompts, truth = workload(1)
    small = MissRatios(blocks_max=3000)
    for prompt in prompts:
        small.use(SCOPE, prompt, [16] * len(prompt))
    assert small.was_full
    found = curve_of(small, SIZES)
    assert 1000 < found.sampled_blocks <= 3000
    assert found.sample_rate == 1 / 16
    assert 0.8 < found.distinct_blocks / truth.distinct_blocks < 1.25
    for right, one in zip(truth.points, found.points, strict=True):
        assert abs(one.block_hit_rate - right.block_hit_rate) < 3 * one.error + 0.01


def test_a_trace_is_left_where_it_is_asked_to() -> None:
    requests = [TraceRequest(at, 512, 1, [at]) for at in range(3000)]
    looks = iter([False, True])
    ratios = MissRatios()
    use_trace(ratios, "t", 512, requests, SessionHits(), stopped=lambda: next(looks))
    [curve] = ratios.curves()
    assert curve.accesses == 1024


def test_a_trace_is_used_request_by_request() -> None:
    requests = [TraceRequest(at, 1200, 1, [0, 1, 2 + at % 2]) for at in range(4)]
    ratios = MissRatios()
    use_trace(ratios, "t", 512, requests, SessionHits())
    [curve] = ratios.curves(lambda block_size: [2, 3, 4])
    assert curve.scope == Scope("t", "", "", 512)
    assert rates(curve) == pytest.approx([6 / 12, 6 / 12, 8 / 12])
    assert curve.tokens == 4800


def test_blocks_of_other_sessions_and_of_none_count_as_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = ((None, [1, 2]), ("a", [1, 2, 3]), ("b", [1, 9]), ("a", [1, 2, 3, 4]), ("b", [1, 9]))
    requests = [
        TraceRequest(at, 512 * len(ids), 1, ids, session) for at, (session, ids) in enumerate(asked)
    ]
    hits = SessionHits()
    use_trace(MissRatios(), "t", 512, requests, hits)
    rates = hits.rates()
    assert rates is not None
    assert [rates.count, rates.min, rates.max] == pytest.approx([2, 5 / 7, 3 / 4])
    monkeypatch.setattr(accesses, "SEEN_BLOCKS_MAX", 4)
    bounded = SessionHits()
    use_trace(MissRatios(), "t", 512, requests, bounded)
    assert bounded.left_out == 1
