"""Work in a thread, and whoever waits for it."""

import asyncio
import threading

import pytest

from streams.table.threads import in_thread


def test_the_result_comes_back_and_so_does_an_error() -> None:
    assert asyncio.run(in_thread(divmod, 7, 2)) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(divmod, 7, 0))


def test_whoever_is_cancelled_waits_until_nobody_is_at_work() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait()
        ended.set()

    async def scenario() -> None:
        waiting = asyncio.ensure_future(in_thread(work))
        await asyncio.to_thread(begun.wait)
        waiting.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        may_end.set()
        await asyncio.wait((waiting,))
        assert waiting.cancelled()
        assert ended.is_set()

    asyncio.run(scenario())
