"""Commands to LMCache's workers in the embedded form: their log, their execution and their ends.

DATA/commands/   a log of its own (`logs.embedded`), of `schemas.command_records`

A log of its own, beside the events: commands say nothing of blocks, and nothing that reads events
(a table, a history, a capture, a proof) is to know of them. It is read whole at the start, which
its bounds keep short; a command that had not ended by then is closed.

Thread `commands`: appends, executes, folds. Where the disk refuses a result it counts all the same,
and is missing after the next start.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from lmcache_adapter.commands.book import CommandBook, CommandView
from lmcache_adapter.commands.executor import Executor, Locate
from lmcache_adapter.commands.issued import IssuedCommands
from logs.embedded import EmbeddedLog
from schemas.codec import decode_command
from schemas.command_records import (
    AnyCommandRecord,
    ClosedRecord,
    CommandRecord,
    ResultRecord,
    encode_command,
)
from schemas.errors import DamagedError, RecordError, StorageError
from schemas.limits import (
    COMMAND_CLOSE_S,
    COMMAND_REQUEST_S,
    COMMAND_WRITE_S,
    COMMANDS_LOG_BYTES,
    COMMANDS_RETENTION_MS,
    COMMANDS_SEGMENT_BYTES,
    COMMANDS_SYNC_S,
    LOG_RETENTION_CHECK_S,
    SHUTDOWN_S,
)
from schemas.tracing import NO_TRACER, Tracer
from storage.salvage import move_aside

logger = logging.getLogger(__name__)

DIRECTORY: Final = "commands"
"""Where the log is, in the directory of the data."""

RESTARTED: Final = "the service was restarted before all workers had answered"
UNANSWERED: Final = "not all workers have answered in time"
UNREADABLE: Final = "unreadable"
UNWRITTEN: Final = "unwritten"

T = TypeVar("T")


class EmbeddedCommands:
    """Implements `query_api.ports.WorkerCommands`; see the module.

    Args:
        path: of the log.
        locate: where workers are.
        tracer: of the service.

    Attributes:
        issued: who waits, and what became of the last commands.
        executor: asks the workers.

    Raises:
        DataDirectoryInUseError: another process has the log open.
        StorageError: it cannot be opened, or a newer Reprise wrote it.
    """

    def __init__(self, path: Path, locate: Locate, *, tracer: Tracer = NO_TRACER) -> None:
        self.issued = IssuedCommands(tracer)
        self.executor = Executor(locate, is_sole=True, tracer=tracer)
        self._log = _opened(path)
        self._is_failed = False
        self._running: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="commands", daemon=True)
        try:
            self._read()
        except DamagedError as error:
            self._log.close()
            self._log = _begun_anew(path, error)
            self.issued = IssuedCommands(tracer)
        except BaseException:
            self._log.close()
            raise

    @property
    def book(self) -> CommandBook:
        """What became of the last commands."""
        return self.issued.book

    # Start and end

    def _read(self) -> None:
        for entry in self._log.read(self._log.complete_from):
            try:
                self.issued.take(decode_command(entry.value))
            except RecordError as error:
                self.book.ignored[UNREADABLE] += 1
                logger.warning(
                    "Cannot read record %d of the log of commands: %s. It is left out",
                    *(entry.offset, error),
                )
        for command_id in self.book.pending():
            self._put(ClosedRecord(command_id=command_id, reason=RESTARTED, at=time.time()))

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends what is under way, and closes the log; within a bound."""
        if self._thread.ident is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(SHUTDOWN_S)
        if self._thread.is_alive():
            logger.error(
                "The log of commands did not close within %.0f s; stopping without it", SHUTDOWN_S
            )
            return
        self._loop.close()
        try:
            self._log.close()
        except StorageError as error:
            logger.error(
                "Cannot close the log of commands: %s. What it has not written is lost", error
            )

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        keeping = asyncio.create_task(self._keep())
        await self._stop.wait()
        for task in (keeping, *self._running):
            task.cancel()
        await asyncio.gather(keeping, *self._running, return_exceptions=True)
        self.executor.close()

    async def _keep(self) -> None:
        """Makes it durable, and drops what is old; on the disk's failure the next time."""
        retain_at = 0.0
        while True:
            await asyncio.sleep(COMMANDS_SYNC_S)
            try:
                if self._is_failed:
                    self._log.reopen()
                    self._is_failed = False
                await asyncio.to_thread(self._log.sync)
                if time.monotonic() >= retain_at:
                    retain_at = time.monotonic() + LOG_RETENTION_CHECK_S
                    self._retain()
            except StorageError as error:
                logger.warning("Cannot keep the log of commands, retrying: %s", error)

    def _retain(self) -> None:
        self._log.retain(
            bytes_max=COMMANDS_LOG_BYTES,
            age_max_s=COMMANDS_RETENTION_MS / 1000,
            now=time.time(),
            floor=self._log.end_offset,
        )

    # On the thread

    def _put(self, record: AnyCommandRecord) -> None:
        """Appends and folds; what the disk refuses is folded alone."""
        try:
            self._log.append([encode_command(record)], now=time.time())
        except StorageError as error:
            self._is_failed = True
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
            self._log.append([encode_command(command)], now=time.time())
        except StorageError:
            self._is_failed = True
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
            closed = ClosedRecord(command_id=command.command_id, reason=UNANSWERED, at=time.time())
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

    # Called by other threads

    async def _called(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        text = "The log of commands does not answer, or is being closed"
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise StorageError(text) from error
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), within_s)
        except TimeoutError as error:
            raise StorageError(text) from error

    async def issue(self, command: CommandRecord) -> None:
        """See `WorkerCommands`."""
        await self._called(self._issue(command), COMMAND_WRITE_S)

    async def ended(self, command_id: str) -> CommandView | None:
        """See `WorkerCommands`."""
        return await self._called(self._ended(command_id), COMMAND_REQUEST_S + COMMAND_WRITE_S)

    async def find(self, command_id: str) -> CommandView | None:
        """See `WorkerCommands`."""
        return await self._called(self._find(command_id), COMMAND_WRITE_S)

    async def latest(
        self, limit: int, *, origin: str | None = None, since: float = 0.0
    ) -> list[CommandView]:
        """See `WorkerCommands`."""
        return await self._called(self._latest(limit, origin, since), COMMAND_WRITE_S)


def _opened(path: Path) -> EmbeddedLog:
    try:
        return EmbeddedLog(path, segment_bytes=COMMANDS_SEGMENT_BYTES)
    except DamagedError as error:
        return _begun_anew(path, error)


def _begun_anew(path: Path, error: DamagedError) -> EmbeddedLog:
    aside = move_aside(path, "the log of commands")
    logger.warning(
        "%s. It was moved to %s: the log of commands begins empty, and nothing else is lost",
        *(error, aside),
    )
    return EmbeddedLog(path, segment_bytes=COMMANDS_SEGMENT_BYTES)
