"""A thread with an event loop: one work of its own, and what other threads hand in.

Everything that touches Kafka in a replica runs on one. No query waits for it: the kernel releases
Python's lock while it loads rows.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from schemas.errors import StorageError
from schemas.limits import SHUTDOWN_S

T = TypeVar("T")
logger = logging.getLogger(__name__)


class LoopThread:
    """See the module. `start` and `stop` it from one thread; call `run` and `call` from any.

    Args:
        unended: what is logged where it does not stop in time, but for the time.
        when_ended: called where its work is cancelled unasked.
    """

    def __init__(
        self,
        name: str,
        *,
        unended: str,
        when_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._unended = unended
        self._when_ended = when_ended
        self._work: Coroutine[Any, Any, None] | None = None
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)

    # From any thread

    @property
    def is_running(self) -> bool:
        """Whether what is handed in is run."""
        return self._thread.is_alive()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts the thread with its work; returns at once. The loop goes on when that has ended:
        what was handed in is still answered.
        """
        self._work = work
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def close_with(self, close: Callable[[], Awaitable[None]]) -> None:
        """Has something closed on the loop when it ends."""
        self._closers.append(close)

    def run(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Runs it on the loop, beside its own work.

        Raises:
            RuntimeError: the loop is closed, or the thread was never started.
        """
        if self._loop is None:
            raise RuntimeError("the thread was not started")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def call(self, work: Coroutine[Any, Any, T], within_s: float, unanswered: str) -> T:
        """The same, for a coroutine of another loop, which waits for the result.

        Raises:
            StorageError: `unanswered`, where there was none in time, or the loop is closed.
        """
        try:
            future = self.run(work)
        except RuntimeError as error:
            work.close()
            raise StorageError(unanswered) from error
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), within_s)
        except TimeoutError as error:
            raise StorageError(unanswered) from error

    def begin_stop(self) -> None:
        """Has it end, and returns at once; call `stop` next."""
        self._is_stopping = True
        if self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # it has ended just now
                self._loop.call_soon_threadsafe(self._cancel)

    def stop(self) -> bool:
        """Ends its work and what was handed in; returns whether that took less than the bound."""
        self.begin_stop()
        if self._thread.is_alive():
            self._thread.join(SHUTDOWN_S)
        if self._thread.is_alive():
            logger.error("%s within %.0f s; stopping without it", self._unended, SHUTDOWN_S)
            return False
        return True

    # On the thread

    def _cancel(self) -> None:
        for task in asyncio.all_tasks():
            task.cancel()

    def _run_loop(self) -> None:
        loop = self._loop
        assert loop is not None, "made by `start`"
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._serve())
        except asyncio.CancelledError:
            if not self._is_stopping:
                self._when_ended()
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    async def _serve(self) -> None:
        try:
            if self._work is not None:
                await self._work
            await asyncio.Event().wait()
        finally:
            for close in self._closers:
                await close()
