"""One data-parallel rank of an engine: a cache, what it publishes, and a queue of prompts."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from lab.engines.cache import EngineCache
from lab.engines.publisher import Publisher
from lab.engines.wire import EngineEvent
from routing.costs import Costs


class ServedPrompt(NamedTuple):
    """What a rank did with a prompt.

    Attributes:
        cached_tokens: of the prompt, reused.
        queue_s, ttft_s: from its arrival until it was begun, and until its first token; 0 where
            prompts take no time.
    """

    cached_tokens: int
    queue_s: float = 0.0
    ttft_s: float = 0.0


class RankLoad(NamedTuple):
    """What a rank carries, as engines count it: requests that it computes, and that wait."""

    running: int
    waiting: int


class EngineRank:
    """Events leave in the order in which the cache made them. For any threads.

    Where prompts take time, they are computed one after another, as they came.

    Attributes:
        lock: held while the cache is changed, or read from outside.
        costs: of the prompts that are begun from now on; None where prompts take no time.
        requests, computed_tokens: so far.
        batches_to_lose: so many of the next ones are not sent live.
    """

    def __init__(self, cache: EngineCache, publisher: Publisher, *, costs: Costs | None) -> None:
        self.lock = threading.Lock()
        self.cache = cache
        self.publisher = publisher
        self.requests = 0
        self.computed_tokens = 0
        self.batches_to_lose = 0
        self.costs = costs
        name = f"rank-{publisher.dp_rank}"
        self._turns = None if costs is None else ThreadPoolExecutor(1, thread_name_prefix=name)
        self._free_at = 0.0
        self._counting = threading.Lock()
        self._unfinished = 0

    @property
    def load(self) -> RankLoad:
        """Now; nothing where prompts take no time."""
        unfinished = self._unfinished
        running = min(unfinished, 1)
        return RankLoad(running, unfinished - running)

    def generate(self, prompt: Sequence[int], answer: Sequence[int]) -> ServedPrompt:
        """Serve a prompt; returns at its first token.

        Raises:
            concurrent.futures.CancelledError: the rank is closed meanwhile.
        """
        if self._turns is None:
            return ServedPrompt(self._run(prompt, answer))
        arrived = time.monotonic()
        self._count(1)
        try:
            return self._turns.submit(self._compute, prompt, answer, arrived).result()
        finally:
            self._count(-1)

    def publish(self, events: Sequence[EngineEvent]) -> None:
        """Call it with the lock held."""
        lost = self.batches_to_lose > 0
        self.batches_to_lose -= lost
        self.publisher.publish(events, lost=lost)

    def close(self) -> None:
        """Ends when the prompt that is computed is done; those that wait are not begun."""
        if self._turns is not None:
            self._turns.shutdown(cancel_futures=True)
        self.publisher.close()

    def _count(self, change: int) -> None:
        with self._counting:
            self._unfinished += change

    def _compute(
        self, prompt: Sequence[int], answer: Sequence[int], arrived: float
    ) -> ServedPrompt:
        """Its blocks are there, and announced, once it is computed."""
        costs = self.costs
        assert costs is not None, "a rank without costs has no queue"
        hashes = self.cache.chain.hashes(prompt)
        with self.lock:
            cached_tokens = self.cache.reusable_tokens(hashes, len(prompt))
        began = max(arrived, self._free_at)
        # By the model's clock: what this process takes for its own work is not counted.
        self._free_at = began + costs.prefill_s(len(prompt), cached_tokens)
        time.sleep(max(self._free_at - time.monotonic(), 0))
        self._run(prompt, answer)
        return ServedPrompt(cached_tokens, began - arrived, self._free_at - arrived)

    def _run(self, prompt: Sequence[int], answer: Sequence[int]) -> int:
        with self.lock:
            run = self.cache.run(prompt, answer)
            self.requests += 1
            self.computed_tokens += len(prompt) - run.cached_tokens
            if run.events:
                self.publish(run.events)
        return run.cached_tokens
