"""Long work on a table, beside the event loop."""

import asyncio
from collections.abc import Callable
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
