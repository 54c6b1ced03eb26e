import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from lab.engines.cache import CacheSizes, EngineCache
from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.rank import EngineRank, ServedPrompt
from routing.costs import Costs
from tests.processes import until

COSTS = Costs(fixed_s=0.2)
PROMPT = list(range(10))


@pytest.fixture
def rank() -> Iterator[EngineRank]:
    cache = EngineCache(CacheSizes(block_size=4, gpu_blocks=100))
    made = EngineRank(cache, Publisher(PublisherOptions()), costs=COSTS)
    yield made
    made.close()


class Asking(threading.Thread):
    """One request on a thread of its own."""

    def __init__(self, rank: EngineRank) -> None:
        super().__init__()
        self.served: ServedPrompt | None = None
        self.cancelled = False
        self._rank = rank
        self.start()

    def run(self) -> None:
        try:
            self.served = self._rank.generate(PROMPT, [])
        except CancelledError:
            self.cancelled = True


def waiting(rank: EngineRank) -> int:
    assert rank._turns is not None
    return rank._turns._work_queue.qsize()


def test_a_prompt_takes_what_the_costs_say(rank: EngineRank) -> None:
    served = rank.generate(PROMPT, [])
    assert served[:2] == (0, 0.0)
    assert served.ttft_s == pytest.approx(COSTS.prefill_s(10, 0))
    served = rank.generate(PROMPT, [])
    assert served[:2] == (8, 0.0)
    assert served.ttft_s == pytest.approx(COSTS.prefill_s(10, 8))


def test_prompts_are_computed_one_after_another(rank: EngineRank) -> None:
    with rank.lock:  # the first one is held up before it has begun
        first = Asking(rank)
        until(lambda: rank._turns is not None and rank._turns._threads, what="the first one")
        until(lambda: waiting(rank) == 0, what="its turn")
        second = Asking(rank)
        until(lambda: waiting(rank) == 1, what="the second one in the queue")
        assert rank.requests == 0
    first.join()
    second.join()
    assert first.served is not None
    assert second.served is not None
    assert (first.served.cached_tokens, second.served.cached_tokens) == (0, 8)
    cost = COSTS.prefill_s(10, 8)
    assert second.served.ttft_s == pytest.approx(second.served.queue_s + cost)
    assert first.served.queue_s == 0.0 < second.served.queue_s


def test_blocks_are_there_once_they_are_computed(rank: EngineRank) -> None:
    with rank.lock:
        asking = Asking(rank)
        assert rank.cache.longest_held(PROMPT) == 0
    asking.join()
    assert rank.cache.longest_held(PROMPT) == 8


def test_what_waits_is_not_begun_when_the_rank_is_closed(rank: EngineRank) -> None:
    with rank.lock:
        first = Asking(rank)
        until(lambda: rank._turns is not None and rank._turns._threads, what="the first one")
        until(lambda: waiting(rank) == 0, what="its turn")
        second = Asking(rank)
        until(lambda: waiting(rank) == 1, what="the second one in the queue")
        closing = threading.Thread(target=rank.close)
        closing.start()
        second.join()
        assert second.cancelled
    first.join()
    closing.join()
    assert first.served is not None
    assert rank.requests == 1


def test_it_says_what_it_computes_and_what_waits(rank: EngineRank) -> None:
    assert rank.load == (0, 0)
    asking = [Asking(rank) for _ in range(3)]
    until(lambda: rank.load == (1, 2), what="all three")
    for one in asking:
        one.join()
    assert rank.load == (0, 0)


def test_costs_that_change_hold_for_what_is_begun_later(rank: EngineRank) -> None:
    rank.costs = Costs(fixed_s=0.05)
    assert rank.generate(PROMPT, []).ttft_s == pytest.approx(rank.costs.prefill_s(10, 0))
