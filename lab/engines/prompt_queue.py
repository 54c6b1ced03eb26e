"""A cache, and prompts that take the time of a cost model, one after another. On one loop."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from lab.engines.cache import CacheSizes, EngineCache
from lab.engines.wire import EngineEvent
from routing.costs import Costs

COMPUTED_MAX: Final = 1 << 16  # prompts of which an engine remembers what came


class ComputedPrompt(NamedTuple):
    """What became of a prompt.

    Attributes:
        cached_tokens: of the prompt, reused.
        ttft_s: from its arrival until its first token, by the model's clock.
        events: that the engine publishes of it.
    """

    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    events: Sequence[EngineEvent] = ()


class PromptQueue:
    """See the module: prompts are computed in the order in which they came.

    Attributes:
        computed: the last ones, without their events.
        waiting: prompts that are computed, or wait for it.
    """

    def __init__(self, sizes: CacheSizes, costs: Costs) -> None:
        self.computed: deque[ComputedPrompt] = deque(maxlen=COMPUTED_MAX)
        self.waiting = 0
        self._cache = EngineCache(sizes)
        self._costs = costs
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    async def compute(self, prompt: Sequence[int], answer: Sequence[int]) -> ComputedPrompt:
        """Returns at the first token, which is the last one, too: to decode takes no time."""
        arrived = time.monotonic()
        hashes = self._cache.chain.hashes([*prompt, *answer])
        self.waiting += 1
        try:
            async with self._turn:
                cached = self._cache.reusable_tokens(hashes, len(prompt))
                # By the model's clock: what this process takes for its own work is not counted.
                began = max(arrived, self._free_at)
                self._free_at = began + self._costs.prefill_s(len(prompt), cached)
                await asyncio.sleep(max(self._free_at - time.monotonic(), 0.0))
                events = self._cache.run_hashes(hashes, prompt, answer).events
        finally:
            self.waiting -= 1
        found = ComputedPrompt(len(prompt), cached, self._free_at - arrived)
        self.computed.append(found)
        return found._replace(events=events)
