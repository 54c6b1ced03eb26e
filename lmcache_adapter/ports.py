"""What asks LMCache's workers: over HTTP, and to act on advice."""

from typing import Protocol

from lmcache_adapter.commands.book import CommandView
from schemas.command_records import CommandRecord


class WorkerCommands(Protocol):
    """Commands to LMCache's workers. Any loop may ask."""

    async def issue(self, command: CommandRecord) -> None:
        """Has it executed; returns once the log has it.

        Raises:
            RequestError: too many are under way.
            StorageError: it cannot be written now; it was not executed, or will be ended soon.
        """
        ...

    async def ended(self, command_id: str) -> CommandView | None:
        """Waits for the end of a command that was issued here, for COMMAND_REQUEST_S since then at
        most; what it is then. None where it is not known.
        """
        ...

    async def find(self, command_id: str) -> CommandView | None:
        """What became of a command; None where it is not known, or forgotten.

        Raises:
            RequestError: the log is being read.
        """
        ...

    async def latest(
        self, limit: int, *, origin: str | None = None, since: float = 0.0
    ) -> list[CommandView]:
        """The last commands, the latest first; also those of other services, and of before a
        restart.

        Args:
            origin: whose, see `CommandRecord`; None for anybody's.
            since: only what was issued since then, Unix seconds.

        Raises:
            RequestError: the log is being read.
            StorageError: it does not answer.
        """
        ...
