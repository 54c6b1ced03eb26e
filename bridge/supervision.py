"""Keeps the parts of a process running, whatever happens in one of them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from schemas.limits import BRIDGE_RETRY_S

_logger = logging.getLogger(__name__)


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


async def cancel(*tasks: "asyncio.Task[None]") -> None:
    """Cancels the tasks and waits for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
