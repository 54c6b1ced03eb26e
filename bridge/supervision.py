"""Keeps the parts of a process running, whatever happens in one of them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from bridge.bounds import BRIDGE_RETRY_S

T = TypeVar("T")
_logger = logging.getLogger(__name__)


def keep_all(
    parts: Mapping[str, Callable[[], Awaitable[None]]], *, on_fault: Callable[[], None]
) -> list[asyncio.Task[None]]:
    """A task for each part, by its name, that keeps it; see `keep`."""
    return [
        asyncio.create_task(keep(name, part, on_fault=on_fault)) for name, part in parts.items()
    ]


async def keep(
    name: str, part: Callable[[], Awaitable[None]], *, on_fault: Callable[[], None]
) -> None:
    """Runs the part until it is cancelled; restarts it, after BRIDGE_RETRY_S, where it ends.

    Args:
        name: of the part, for the log.
        part: ends only by cancellation, or by an unexpected error.
        on_fault: counts such an error.
    """
    while True:
        try:
            await part()
        except Exception:
            on_fault()
            _logger.exception("Unexpected error in the %s; restarting it", name)
        await asyncio.sleep(BRIDGE_RETRY_S)


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels the tasks and waits for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def ends_before(work: Coroutine[Any, Any, Any], stopping: asyncio.Event) -> bool:
    """Whether the work ended before `stopping`, which cancels it; raises what the work raises."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        await working
        return True
    finally:
        await cancel(working, waiting)


async def outlasting(work: "asyncio.Future[T]") -> T:
    """Waits for work that goes on where its caller waits no longer."""
    work.add_done_callback(retrieve)
    return await asyncio.shield(work)


def retrieve(ended: "asyncio.Future[Any]") -> None:
    """Retrieves the error of work that nobody may wait for any more: asyncio would log it."""
    if not ended.cancelled():
        ended.exception()
