"""Answers that are as long as the table has contexts: made beside the loop, one at a time."""

import asyncio
import threading

from fastapi import Response

from query_api.http.routes import LargeAnswers


def test_the_loop_goes_on_while_one_is_made_and_the_next_waits_for_its_turn() -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def answer() -> Response:
        begun.release()
        assert go_on.acquire(timeout=30)
        return Response(b"large")

    async def case() -> None:
        large = LargeAnswers()
        asked = [asyncio.create_task(large.make(answer)) for _ in range(2)]
        while not begun.acquire(blocking=False):  # noqa: ASYNC110 -- another thread ends it
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not begun.acquire(blocking=False), "the second one has begun beside the first"
        go_on.release(2)
        assert [bytes(one.body) for one in await asyncio.gather(*asked)] == [b"large"] * 2

    asyncio.run(case())
