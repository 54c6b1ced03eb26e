"""When a batch of the worker begins."""

import asyncio
import time

from streams.worker.gathering import Gathering


def test_it_waits_for_a_record_and_then_no_longer_than_the_next_ones_need() -> None:
    async def run() -> None:
        gathering, full = Gathering(60.0), asyncio.Event()
        waiting = asyncio.create_task(gathering.wait(full))
        await asyncio.sleep(0.02)
        assert not waiting.done(), "nothing has come"
        assert gathering.note(7) == 7
        async with asyncio.timeout(5):
            await waiting

    asyncio.run(run())


def test_the_next_batch_begins_a_flush_time_after_the_last_one_began() -> None:
    async def run() -> None:
        gathering, full = Gathering(0.2), asyncio.Event()
        await first(gathering, full)
        began = time.monotonic()
        gathering.note(2)
        await gathering.wait(full)
        assert time.monotonic() - began > 0.15

    asyncio.run(run())


def test_a_full_batch_begins_at_once() -> None:
    async def run() -> None:
        gathering, full = Gathering(60.0), asyncio.Event()
        await first(gathering, full)
        gathering.note(2)
        waiting = asyncio.create_task(gathering.wait(full))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        full.set()
        async with asyncio.timeout(5):
            await waiting

    asyncio.run(run())


def test_what_came_while_the_last_batch_was_folded_is_the_next_one() -> None:
    async def run() -> None:
        gathering, full = Gathering(0.01), asyncio.Event()
        await first(gathering, full)
        gathering.note(2)  # while the body runs
        async with asyncio.timeout(5):
            await gathering.wait(full)

    asyncio.run(run())


async def first(gathering: Gathering, full: asyncio.Event) -> None:
    gathering.note(1)
    async with asyncio.timeout(5):
        await gathering.wait(full)
