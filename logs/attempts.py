"""What reads or writes a log, or something like one, tried again whatever becomes of where it is.

What goes wrong has one place each, in `Attempts.run`.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from brokers.backoff import Backoff
from schemas.errors import ConfigurationError, StorageError


class LogLostError(Exception):
    """The log does not have what follows on what was read, or is another one."""


class StalledError(Exception):
    """The consumer gives nothing although there is more, or Kafka answers nothing."""


class Attempts(ABC):
    """See the module. One loop; a user is a subclass, which resets `backoff` once one succeeds.

    Args:
        retry_first_s, retry_max_s: the pauses between attempts, see `Backoff`.

    Attributes:
        away_when: what an attempt raises while what it needs is away; of Kafka that is
            `brokers.errors.AWAY`, which takes its client.
    """

    away_when: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self, *, retry_first_s: float, retry_max_s: float) -> None:
        self.backoff = Backoff(retry_first_s, retry_max_s)

    @abstractmethod
    async def attempt(self) -> None:
        """Reads or writes; the next one comes after it at once, or where it fails after a pause."""

    # What goes wrong

    def lost(self, error: LogLostError) -> bool:
        """Says so, and from where it is read next; returns whether that is at once. Here: as any
        error that nothing expects.
        """
        self.failed(error)
        return False

    def refused(self, error: ConfigurationError) -> bool | None:
        """The topics or Kafka cannot be used as they are; returns True to end `run`. Here: as any
        error that nothing expects.
        """
        self.failed(error)
        return None

    def away(self, error: Exception) -> None:
        """Kafka is away, stands still, or has refused what was written. Here: as any error that
        nothing expects.
        """
        self.failed(error)

    def disk_failed(self, error: StorageError) -> None:
        """A disk of the user failed. Here: as any error that nothing expects."""
        self.failed(error)

    def failed(self, error: Exception) -> None:
        """Logs and counts an error of this program; called while it is handled. Here: ends `run`
        with it, where somebody keeps the user running.
        """
        raise error

    # The one loop

    async def run(self) -> None:
        """Goes on until it is cancelled, or refused for good."""
        while True:
            try:
                await self.attempt()
                continue
            except LogLostError as error:
                if self.lost(error):
                    continue
            except ConfigurationError as error:
                if self.refused(error):
                    return
            except StalledError as error:
                self.away(error)
            except self.away_when as error:
                self.away(error)
            except StorageError as error:
                self.disk_failed(error)
            except Exception as error:  # noqa: BLE001 -- its user logs it
                self.failed(error)
            await self.pause()

    async def pause(self) -> None:
        """Waits between two attempts."""
        await self.backoff.wait()
