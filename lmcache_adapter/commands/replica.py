"""Commands on a replica: written to PREFIX.commands, executed by bridges, folded from the topics.

Every replica that is asked for commands follows both topics and folds the same records, so all say
the same of a command, whichever has issued it. It is ended by its last result; or by a `closed`
record, which whoever has issued it writes after COMMAND_CLOSE_S, and any other one a second later.
An end counts once the topic has it, so an answer never says what another replica may say otherwise.

Nothing is read or made before it is needed: the topics are followed where they are there when the
replica starts, and else from the first command on.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from brokers.availability import describe
from brokers.backoff import Backoff
from brokers.client_internals import start_client
from brokers.clients import Clients
from brokers.errors import AWAY
from brokers.interface import EntryProducer, Message
from brokers.options import ClientOptions
from brokers.outages import Outage
from brokers.settings import KafkaSettings
from brokers.topics import ensure_topics
from lmcache_adapter.commands.book import CommandBook, CommandView
from lmcache_adapter.commands.issued import IssuedCommands
from logs.loop_thread import LoopThread
from logs.recent import Following
from query_api.http.errors import recovering
from schemas.codec import decode_command
from schemas.command_records import (
    AnyCommandRecord,
    ClosedRecord,
    CommandRecord,
    encode_command,
)
from schemas.conditions import Conditions
from schemas.errors import ConfigurationError, RecordError, StorageError
from schemas.limits import (
    CLIENT_LEAVE_S,
    COMMAND_CLOSE_S,
    COMMAND_OTHERS_S,
    COMMAND_REQUEST_S,
    COMMAND_WRITE_S,
    COMMANDS_CATCH_UP_S,
    COMMANDS_FOLLOWED_S,
    COMMANDS_POLL_MS,
    KAFKA_RETRY_FIRST_S,
    KAFKA_RETRY_MAX_S,
)
from schemas.topics import encode_instance
from schemas.tracing import NO_TRACER, Tracer

logger = logging.getLogger(__name__)

UNANSWERED: Final = "not all workers have answered in time"
UNEXECUTED: Final = (
    "no bridge has executed it in time: the one that the workers are connected to is away, or their"
    " links are down"
)

T = TypeVar("T")


class ReplicaCommands:
    """Implements `query_api.ports.WorkerCommands`; works on the replica's thread.

    Args:
        settings: of the deployment.
        options: of its clients.
        thread: of the replica.
        tracer: of the service.

    Attributes:
        issued: who waits, and what became of the last commands.
        dropped: records that cannot be read.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        thread: LoopThread,
        *,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.issued = IssuedCommands(tracer)
        self.dropped = 0
        self._settings = settings
        self._options = options
        self._thread = thread
        self._commands, self._results = settings.commands
        self._following: Following | None = None
        self._wanted: asyncio.Event | None = None
        self._is_absent = False
        self._running: asyncio.Task[Any] | None = None
        self._producer: EntryProducer | None = None
        self._opening = asyncio.Lock()
        self._own: dict[str, float] = {}  # by command, when it was issued here; of the loop's clock
        self._echoes: set[str] = set()  # folded when they were written, and not read yet
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._problem = ""
        thread.close_with(self._close)

    @property
    def book(self) -> CommandBook:
        """What became of the last commands."""
        return self.issued.book

    def start(self) -> None:
        """Starts following, where there is anything; on the thread."""
        self._thread.run(self._follow())

    # On the thread

    async def _follow(self) -> None:
        self._running = asyncio.current_task()
        self._wanted = asyncio.Event()
        following = self._following = Following(
            self._options,
            [self._commands.name, self._results.name],
            since=time.time() - COMMANDS_FOLLOWED_S,
            poll_ms=COMMANDS_POLL_MS,
            take=self._take,
        )
        backoff = Backoff(KAFKA_RETRY_FIRST_S, KAFKA_RETRY_MAX_S)
        while True:
            self._wanted.clear()
            try:
                await following.run()
            except ConfigurationError:  # there are none yet
                self._is_absent = True
                await self._wanted.wait()
                self._is_absent = False
                continue
            except AWAY as error:
                self._complain(describe(error))
            except Exception:
                logger.exception("Unexpected error while reading commands; reading on")
            await backoff.wait()

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            logger.warning("Cannot read what becomes of commands, retrying: %s", problem)
        self._problem = problem

    def _take(self, topic: str, message: Message) -> None:
        try:
            record = decode_command(message.value or b"")
        except RecordError as error:
            self.dropped += 1
            logger.warning(
                "Cannot read the message at offset %d of %s: %s. It is left out",
                *(message.offset, topic, error),
            )
            return
        if isinstance(record, CommandRecord) != (topic == self._commands.name):
            self.dropped += 1
            return
        self._problem = ""
        if isinstance(record, CommandRecord) and record.command_id in self._echoes:
            self._echoes.remove(record.command_id)
            return
        self.issued.take(record)
        if isinstance(record, CommandRecord):
            self._end_in_time(record)
        if self.book.is_closed(record.command_id):
            self._own.pop(record.command_id, None)
            closing = self._closing.pop(record.command_id, None)
            if closing is not None:
                closing.cancel()

    def _end_in_time(self, command: CommandRecord) -> None:
        name = command.command_id
        if self.book.is_closed(name) or name in self._closing:
            return
        now = asyncio.get_running_loop().time()
        at = self._own.get(name, now + COMMAND_OTHERS_S) + COMMAND_CLOSE_S
        self._closing[name] = asyncio.create_task(self._end(name, command.instance_id, at - now))

    async def _end(self, command_id: str, instance_id: str, after_s: float) -> None:
        """Writes that a command has ended; until the topic has that, or another end of it."""
        await asyncio.sleep(max(after_s, 0.0))
        backoff = Backoff(KAFKA_RETRY_FIRST_S, KAFKA_RETRY_MAX_S)
        while not self.book.is_closed(command_id):
            found = self.book.find(command_id)
            reason = UNANSWERED if found is not None and found.results else UNEXECUTED
            closed = ClosedRecord(command_id=command_id, reason=reason, at=time.time())
            try:
                await self._write(self._results.name, instance_id, closed)
                await asyncio.sleep(COMMAND_CLOSE_S)  # to read it
            except AWAY as error:
                self._complain(describe(error))
                await backoff.wait()

    async def _write(self, topic: str, instance_id: str, record: AnyCommandRecord) -> None:
        producer = await self._open()
        await producer.send_and_wait(
            topic, key=encode_instance(instance_id), value=encode_command(record)
        )

    async def _open(self) -> EntryProducer:
        async with self._opening:
            if self._producer is None:
                producer = Clients(self._options).command_producer()
                try:
                    await start_client(producer)
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer

    async def _close(self) -> None:
        tasks = [*self._closing.values(), *([self._running] if self._running else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLIENT_LEAVE_S)
        if self._producer is not None:
            await self._producer.stop()

    async def _caught_up(self, within_s: float) -> bool:
        """Whether all that the topics had is folded; waits for that. False where there are none."""
        following, wanted = self._following, self._wanted
        if following is None or wanted is None:
            raise recovering("the log of commands is not read yet")
        wanted.set()
        try:
            async with asyncio.timeout(within_s):
                while not following.caught_up.is_set():
                    if self._is_absent and not wanted.is_set():
                        return False
                    waiting = asyncio.ensure_future(following.caught_up.wait())
                    await asyncio.wait({waiting}, timeout=COMMANDS_POLL_MS / 1000)
                    waiting.cancel()
        except TimeoutError as error:
            raise recovering("the log of commands is being read") from error
        return True

    async def _issue(self, command: CommandRecord) -> None:
        began = asyncio.get_running_loop().time()
        command = self.issued.admit(command)
        try:
            async with asyncio.timeout(COMMAND_WRITE_S):
                while not await self._caught_up(COMMAND_WRITE_S):
                    await self._make_topics()
                self._own[command.command_id] = began
                await self._write(self._commands.name, command.instance_id, command)
                self._fold_own(command)
        except AWAY as error:
            self._own.pop(command.command_id, None)
            self.issued.withdraw(command.command_id)
            raise StorageError(
                f"Cannot write the command to Kafka at {self._settings.bootstrap}:"
                f" {describe(error)}; in case it was written, `/commands/{command.command_id}`"
                " says what becomes of it"
            ) from error
        except BaseException:
            self._own.pop(command.command_id, None)
            self.issued.withdraw(command.command_id)
            raise

    def _fold_own(self, command: CommandRecord) -> None:
        """The topic has it: whoever asks for it now is to find it, read or not."""
        if self.book.find(command.command_id) is None:
            self._echoes.add(command.command_id)
            self.issued.take(command)
            self._end_in_time(command)

    async def _make_topics(self) -> None:
        silent = Outage(self._settings.bootstrap, conditions=Conditions(time.time))
        await ensure_topics(self._settings, silent, specs=self._settings.commands)

    async def _ended(self, command_id: str) -> CommandView | None:
        began = self._own.get(command_id)
        if began is None:
            return self.book.find(command_id)
        try:
            async with asyncio.timeout_at(began + COMMAND_REQUEST_S):
                return await self.issued.ended(command_id)
        except TimeoutError:
            return self.book.find(command_id)

    async def _find(self, command_id: str) -> CommandView | None:
        found = self.book.find(command_id)
        if found is None and await self._caught_up(COMMANDS_CATCH_UP_S):
            found = self.book.find(command_id)
            if found is None:  # another replica may have issued it a moment ago
                await asyncio.sleep(COMMANDS_POLL_MS / 1000)
                found = self.book.find(command_id)
        return found

    async def _latest(self, limit: int, origin: str | None, since: float) -> list[CommandView]:
        await self._caught_up(COMMANDS_CATCH_UP_S)  # else there are none
        return self.book.latest(limit, origin=origin, since=since)

    # Called by other threads

    async def _called(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        future = asyncio.wrap_future(self._thread.run(work))
        try:
            return await asyncio.wait_for(future, within_s)
        except TimeoutError as error:
            raise StorageError("The log of commands does not answer") from error

    async def issue(self, command: CommandRecord) -> None:
        """See `WorkerCommands`."""
        await self._called(self._issue(command), COMMAND_WRITE_S + COMMAND_OTHERS_S)

    async def ended(self, command_id: str) -> CommandView | None:
        """See `WorkerCommands`."""
        return await self._called(self._ended(command_id), COMMAND_REQUEST_S + COMMAND_OTHERS_S)

    async def find(self, command_id: str) -> CommandView | None:
        """See `WorkerCommands`."""
        return await self._called(self._find(command_id), COMMAND_WRITE_S)

    async def latest(
        self, limit: int, *, origin: str | None = None, since: float = 0.0
    ) -> list[CommandView]:
        """See `WorkerCommands`."""
        return await self._called(self._latest(limit, origin, since), COMMAND_WRITE_S)
