"""Prompts that take time, one after another."""

import asyncio

import pytest

from lab.engines.cache import CacheSizes
from lab.engines.prompt_queue import PromptQueue
from lab.engines.wire import BlockStored
from routing.costs import Costs

COSTS = Costs(fixed_s=0.2, prefill_tokens_per_s=1_000.0, token_squared_s=0.0)


def test_prompts_wait_for_each_other_and_find_what_was_computed_before() -> None:
    async def scenario() -> None:
        queue = PromptQueue(CacheSizes(16, 100), COSTS)
        prompt, other = list(range(100)), list(range(500, 600))
        asked = [asyncio.ensure_future(queue.compute(one, [7] * 28)) for one in (prompt, other)]
        await asyncio.sleep(0)
        assert queue.waiting == 2
        first, second = await asyncio.gather(*asked)
        assert (first.cached_tokens, second.cached_tokens) == (0, 0)
        assert first.ttft_s == pytest.approx(0.3, abs=0.001)
        assert second.ttft_s == pytest.approx(0.6, abs=0.15), "it has waited for the first"
        [stored] = first.events
        assert isinstance(stored, BlockStored)
        assert len(stored.block_hashes) == 8, "of prompt and answer"
        again = await queue.compute(prompt, [7] * 28)
        assert again.cached_tokens == 96
        assert again.events == []
        assert [one.cached_tokens for one in queue.computed] == [0, 0, 96]
        assert queue.waiting == 0

    asyncio.run(scenario())


def test_prompt_whose_client_has_gone_is_not_computed() -> None:
    async def scenario() -> None:
        queue = PromptQueue(CacheSizes(16, 100), COSTS)
        gone = asyncio.ensure_future(queue.compute(list(range(100)), ()))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert (queue.waiting, len(queue.computed)) == (0, 0)
        assert (await queue.compute(list(range(100)), ())).cached_tokens == 0

    asyncio.run(scenario())
