"""Commands from other threads to a loop: carried out one after the other, bounded in number."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Final, Generic, NamedTuple, TypeVar

from schemas.causes import cause_of
from schemas.errors import RepriseError, StorageError
from schemas.limits import PUBLISHERS_MAX

COMMANDS_MAX: Final = 2 * PUBLISHERS_MAX  # waiting for their turn: reprise_refused_commands_total

_logger = logging.getLogger(__name__)
T = TypeVar("T")


class _WaitingCommand(NamedTuple, Generic[T]):
    command: Callable[[], Awaitable[T]]
    future: "Future[T]"


class Commands(Generic[T]):
    """See the module. What cannot be carried out now is refused with StorageError, not queued.

    Args:
        loop: the one for `run`; it need not run yet.
        refusal: why commands cannot be carried out now, or "".
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, refusal: Callable[[], str] = lambda: ""
    ) -> None:
        self.refused = 0
        self._loop = loop
        self._refusal = refusal
        self._waiting: deque[_WaitingCommand[T]] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._arrived = asyncio.Event()

    def submit(self, command: Callable[[], Awaitable[T]]) -> "Future[T]":
        """The command's result, or its error; any thread may call it."""
        future: Future[T] = Future()
        with self._lock:
            if not self._closed and len(self._waiting) < COMMANDS_MAX:
                self._waiting.append(_WaitingCommand(command, future))
                self._loop.call_soon_threadsafe(self._arrived.set)
                return future
        text = f"too many commands are waiting (at most {COMMANDS_MAX})"
        self._refuse(future, "the service is stopping" if self._closed else text)
        return future

    async def run(self) -> None:
        """Carries commands out until it is cancelled."""
        while True:
            while self._waiting:
                waiting = self._waiting.popleft()
                refusal = self._refusal()
                if refusal:
                    self._refuse(waiting.future, refusal)
                elif waiting.future.set_running_or_notify_cancel():
                    await _carry_out(waiting)
            await self._arrived.wait()
            self._arrived.clear()

    def refuse_waiting(self) -> None:
        """Refuses all that wait for their turn; on the loop's thread."""
        while self._waiting:
            self._refuse(self._waiting.popleft().future, self._refusal())

    def close(self) -> None:
        """Refuses all that wait, and all that come; `run` has ended."""
        with self._lock:
            self._closed = True
        while self._waiting:
            self._refuse(self._waiting.popleft().future, "the service is stopping")

    def _refuse(self, future: "Future[T]", text: str) -> None:
        self.refused += 1
        if future.set_running_or_notify_cancel():
            future.set_exception(StorageError(text))


async def _carry_out(waiting: _WaitingCommand[T]) -> None:
    command, future = waiting
    try:
        result = await command()
    except RepriseError as error:
        future.set_exception(error)
    except Exception as error:
        _logger.exception("Unexpected error in a command; refusing it")
        future.set_exception(
            StorageError(f"the command failed unexpectedly ({cause_of(error)}); the log has more")
        )
    except asyncio.CancelledError:
        future.set_exception(StorageError("the service is stopping"))
        raise
    else:
        future.set_result(result)
