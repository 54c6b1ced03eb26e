"""How an attempt of the worker's app ends; set from its threads, read on its loop."""

import asyncio
import threading

from schemas.causes import cause_of
from schemas.errors import RepriseError


class FaustCrashedError(RepriseError):
    """Faust ended by itself, by an error of its own: neither the worker's nor Kafka's.

    Its services do not stop in order then: the loop of its consumer may be closed already, and
    tasks are left behind. The worker restarts where those end; the process ends where they do not.

    Operator action: none where the worker goes on; report the error, with the log.
    """


class AttemptOutcome:
    """The first error of an attempt, and whether its consumer is gone. Made on the app's loop.

    Attributes:
        failed: gets the first error.
        crashed_by: what ended Faust by itself, or None.
        entered: set once the consumer's thread has begun; it cannot be stopped before.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.failed.add_done_callback(_retrieved)
        self.crashed_by: BaseException | None = None
        self.entered = asyncio.Event()
        self._consumer_thread: threading.Thread | None = None

    def fail(self, error: BaseException) -> None:
        """The attempt is to end with this error, unless one came before; from any thread."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def crash(self, reason: BaseException) -> None:
        """Faust has ended by itself; from any thread, and once for each of its services."""
        if self.crashed_by is None:
            self.crashed_by = reason
            error = FaustCrashedError(f"Faust ended by itself: {cause_of(reason)}")
            error.__cause__ = reason
            self.fail(error)

    def enter_consumer_thread(self) -> None:
        """The current thread is the consumer's."""
        self._consumer_thread = threading.current_thread()
        self._loop.call_soon_threadsafe(self.entered.set)

    @property
    def has_left(self) -> bool:
        """Whether the consumer has ended, and with it the membership in the group."""
        return self._consumer_thread is None or not self._consumer_thread.is_alive()


def _retrieved(failed: "asyncio.Future[None]") -> None:
    """Marks the error as retrieved: an app that is told to stop may still fail after that."""
    if not failed.cancelled():
        failed.exception()
