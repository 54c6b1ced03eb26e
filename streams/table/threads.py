"""Work on a table beside the event loop where it is long, and without one where nothing waits."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[..., T], *args: object) -> T:
    """Runs the call in a thread, as `asyncio.to_thread`; a cancellation waits for its end first.

    Whoever is cancelled closes the table next, which no thread may use by then.
    """
    running = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        running.exception()  # the cancellation stands for it
        raise


def run_without_loop(coroutine: Coroutine[object, None, T]) -> T:
    """Runs a coroutine to its end where it is known to wait for nothing: of a table without a
    topic.

    Raises:
        AssertionError: it waits for something after all.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError("Expected a coroutine that waits for nothing, but it waits")
