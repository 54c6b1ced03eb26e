"""Commands to LMCache's workers in the embedded form: their log, their execution and their ends.

A log of its own, beside the events: commands say nothing of blocks, and nothing that reads events
(a table, a history, a capture, a proof) is to know of them. It is read whole at the start, which
its bounds keep short; a command that had not ended by then is closed.

Thread `commands`: appends, executes, folds. Where the disk refuses a result it counts all the same,
and is missing after the next start.
"""

import asyncio
import logging
from typing import Final

from bridge.supervision import cancel
from lmcache_adapter.bounds import COMMAND_CLOSE_S, COMMAND_WRITE_S
from lmcache_adapter.commands.book import CommandView
from lmcache_adapter.commands.executor import Executor, WorkerLocator
from lmcache_adapter.commands.issued import IssuedCommands, ThreadCommands
from lmcache_adapter.commands.log import COMMANDS
from logs.declaration import EmbeddedParts
from logs.kept_log import KeptLog
from logs.loop_thread import LoopThread
from schemas.codec import decode_command
from schemas.command_records import (
    AnyCommandRecord,
    ClosedRecord,
    CommandRecord,
    ResultRecord,
    encode_command,
)
from schemas.errors import DamagedError, RecordError, StorageError
from schemas.limits import COMMAND_REQUEST_S

COMMANDS_SYNC_S: Final = 0.5  # what a power cut may cost of it

logger = logging.getLogger(__name__)

RESTARTED: Final = "the service was restarted before all workers had answered"
UNANSWERED: Final = "not all workers have answered in time"
UNREADABLE: Final = "unreadable"
UNWRITTEN: Final = "unwritten"

UNREAD: Final = "The log of commands does not answer, or is being closed"


class EmbeddedCommands(ThreadCommands):
    """See the module.

    Raises:
        DataDirectoryInUseError: another process has the log open.
        StorageError: it cannot be opened, or a newer Reprise wrote it.
    """

    _issue_s = COMMAND_WRITE_S
    _ended_s = COMMAND_REQUEST_S + COMMAND_WRITE_S
    _unread = UNREAD

    def __init__(self, parts: EmbeddedParts, locate: WorkerLocator) -> None:
        self._clock = parts.clock
        self.issued = IssuedCommands(parts.tracer)
        self.executor = Executor(locate, is_sole=True, tracer=parts.tracer, clock=parts.clock.unix)
        self._log = KeptLog(COMMANDS, parts)
        self._running: set[asyncio.Task[None]] = set()
        self._thread = LoopThread("commands", unended="The log of commands did not close")
        try:
            self._read()
        except DamagedError as error:
            self._log.begin_anew(str(error), f"{COMMANDS.lost}, and nothing else is lost")
            self.issued = IssuedCommands(parts.tracer)
        except BaseException:
            self._log.close()
            raise

    # Start and end

    def _read(self) -> None:
        log = self._log.opened()
        for entry in log.read(log.complete_from):
            try:
                self.issued.take(decode_command(entry.value))
            except RecordError as error:
                self.book.ignored[UNREADABLE] += 1
                logger.warning(
                    "Cannot read record %d of the log of commands: %s. It is left out",
                    *(entry.offset, error),
                )
        for command_id in self.book.pending():
            self._put(ClosedRecord(command_id=command_id, reason=RESTARTED, at=self._clock.unix()))

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start(self._serve())

    def stop(self) -> None:
        """Ends what is under way, and closes the log; within a bound."""
        if not self._thread.stop():
            return
        try:
            self._log.close()
        except StorageError as error:
            logger.error(
                "Cannot close the log of commands: %s. What it has not written is lost", error
            )

    async def _serve(self) -> None:
        try:
            await self._keep()
        finally:
            await cancel(*self._running)
            self.executor.close()

    async def _keep(self) -> None:
        """Makes it durable, and drops what is old; on the disk's failure the next time."""
        while True:
            await asyncio.sleep(COMMANDS_SYNC_S)
            try:
                await asyncio.to_thread(self._log.opened().sync)
                self._log.retain(self._log.end_offset)
            except StorageError as error:
                logger.warning("Cannot keep the log of commands, retrying: %s", error)

    # On the thread

    def _put(self, record: AnyCommandRecord) -> None:
        """Appends and folds; what the disk refuses is folded alone."""
        try:
            self._log.append([encode_command(record)])
        except StorageError as error:
            self.book.ignored[UNWRITTEN] += 1
            logger.warning(
                "Cannot write what became of a command: %s. A restart says that it was not"
                " answered",
                error,
            )
        self.issued.take(record)

    async def _issue(self, command: CommandRecord) -> None:
        command = self.issued.admit(command)
        try:
            self._log.append([encode_command(command)])
        except StorageError:
            self.issued.withdraw(command.command_id)
            raise
        self.issued.take(command)
        task = asyncio.create_task(self._execute(command))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _execute(self, command: CommandRecord) -> None:
        def report(result: ResultRecord) -> None:
            self._put(result)

        try:
            async with asyncio.timeout(COMMAND_CLOSE_S):
                await self.executor.execute(command, report)
        except TimeoutError:
            pass
        except Exception:
            self.executor.faults += 1
            logger.exception(
                "Unexpected error with command %s; it ends as not answered", command.command_id
            )
        if not self.book.is_closed(command.command_id):
            closed = ClosedRecord(
                command_id=command.command_id, reason=UNANSWERED, at=self._clock.unix()
            )
            self._put(closed)

    async def _ended(self, command_id: str) -> CommandView | None:
        try:
            async with asyncio.timeout(COMMAND_REQUEST_S):
                return await self.issued.ended(command_id)
        except TimeoutError:
            return self.book.find(command_id)

    async def _find(self, command_id: str) -> CommandView | None:
        return self.book.find(command_id)

    async def _latest(self, limit: int, origin: str | None, since: float) -> list[CommandView]:
        return self.book.latest(limit, origin=origin, since=since)
