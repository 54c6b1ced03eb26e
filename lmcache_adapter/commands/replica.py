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
from collections.abc import Callable
from typing import ClassVar, Final

from brokers.availability import describe
from brokers.broker_settings import KafkaSettings
from brokers.errors import AWAY
from brokers.options import ClientOptions
from brokers.outages import Outage
from brokers.topics import ensure_topics
from lmcache_adapter.bounds import COMMAND_CLOSE_S, COMMAND_WRITE_S
from lmcache_adapter.commands.book import CommandBook, CommandView
from lmcache_adapter.commands.issued import IssuedCommands, ThreadCommands
from lmcache_adapter.commands.log import COMMANDS
from lmcache_adapter.commands.topics import CommandTopics
from logs.loop_thread import LoopThread
from query_api.http.errors import recovering
from schemas.clock import REAL_CLOCK
from schemas.command_records import AnyCommandRecord, ClosedRecord, CommandRecord, encode_command
from schemas.conditions import Conditions
from schemas.errors import ConfigurationError, StorageError
from schemas.limits import ACT_REMEMBERED_S, CLIENT_LEAVE_S, COMMAND_REQUEST_S
from schemas.topics import encode_instance
from schemas.tracing import NO_TRACER, Tracer

COMMAND_OTHERS_S: Final = 1.0  # more, before a replica ends the command of another one
COMMANDS_FOLLOWED_S: Final = 24 * 3600.0  # how far back a replica that starts reads them
COMMANDS_POLL_MS: Final = 250  # of their topics without a record
COMMANDS_CATCH_UP_S: Final = 2.0  # that a look at a command waits for them to be read

assert ACT_REMEMBERED_S < COMMANDS_FOLLOWED_S, "what was done before a restart is read"

logger = logging.getLogger(__name__)

UNREAD: Final = "The log of commands does not answer"
UNANSWERED: Final = "not all workers have answered in time"
UNEXECUTED: Final = (
    "no bridge has executed it in time: the one that the workers are connected to is away, or their"
    " links are down"
)


class FoldedCommands(CommandTopics):
    """What the topics have of commands, folded; and the ends of those that no bridge has ended.

    Attributes:
        issued: who waits, and what became of the last commands.
        own: by command, when it was issued here, by the loop's clock.
        is_absent: whether there are no topics; they are looked for again once they are wanted.
    """

    unread: ClassVar[str] = "Cannot read what becomes of commands"

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        issued: IssuedCommands,
        *,
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        """Args:
        clock: Unix seconds.
        """
        super().__init__(
            settings,
            options,
            COMMANDS.topics,
            since=clock() - COMMANDS_FOLLOWED_S,
            poll_ms=COMMANDS_POLL_MS,
        )
        self.issued = issued
        self._clock = clock
        self.own: dict[str, float] = {}
        self.is_absent = False
        self._wanted = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._echoes: set[str] = set()  # folded when they were written, and not read yet
        self._closing: dict[str, asyncio.Task[None]] = {}

    @property
    def book(self) -> CommandBook:
        """What became of the last commands."""
        return self.issued.book

    # Follower

    async def run(self) -> None:
        """See `Follower`."""
        self._running = asyncio.current_task()
        await super().run()

    async def prepare(self) -> None:
        """See `Follower`."""
        self._wanted.clear()
        await super().prepare()

    def refused(self, error: ConfigurationError) -> None:
        """See `Follower`: there are none yet."""
        self.is_absent = True

    def failed(self, error: Exception) -> None:
        """See `Follower`."""
        logger.exception("Unexpected error while reading commands; reading on")

    async def pause(self) -> None:
        """See `Follower`."""
        if not self.is_absent:
            await super().pause()
            return
        await self._wanted.wait()
        self.is_absent = False

    def take_record(self, topic: str, record: AnyCommandRecord) -> None:
        """See `CommandTopics`."""
        if isinstance(record, CommandRecord) != (topic == self.commands.name):
            self.dropped["wrong_topic"] += 1
            return
        self.problem = ""
        if isinstance(record, CommandRecord) and record.command_id in self._echoes:
            self._echoes.remove(record.command_id)
            return
        self.issued.take(record)
        if isinstance(record, CommandRecord):
            self._end_in_time(record)
        if self.book.is_closed(record.command_id):
            self.own.pop(record.command_id, None)
            closing = self._closing.pop(record.command_id, None)
            if closing is not None:
                closing.cancel()

    # Ends

    def _end_in_time(self, command: CommandRecord) -> None:
        name = command.command_id
        if self.book.is_closed(name) or name in self._closing:
            return
        now = asyncio.get_running_loop().time()
        at = self.own.get(name, now + COMMAND_OTHERS_S) + COMMAND_CLOSE_S
        self._closing[name] = asyncio.create_task(self._end(name, command.instance_id, at - now))

    async def _end(self, command_id: str, instance_id: str, after_s: float) -> None:
        """Writes that a command has ended; until the topic has that, or another end of it."""

        def closed() -> bytes | None:
            if self.book.is_closed(command_id):
                return None
            found = self.book.find(command_id)
            reason = UNANSWERED if found is not None and found.results else UNEXECUTED
            ended = ClosedRecord(command_id=command_id, reason=reason, at=self._clock())
            return encode_command(ended)

        await asyncio.sleep(max(after_s, 0.0))
        await self.writer.insist(
            self.results.name,
            key=encode_instance(instance_id),
            value=closed,
            again_s=COMMAND_CLOSE_S,  # to read it
            failed=self.away,
        )

    # Called by `ReplicaCommands`

    async def until_caught_up(self, within_s: float) -> bool:
        """Whether all that the topics had is folded; waits for that. False where there are none.

        Raises:
            RequestError: it takes longer.
        """
        if self._running is None:
            raise recovering("the log of commands is not read yet")
        self._wanted.set()
        try:
            async with asyncio.timeout(within_s):
                while not self.caught_up.is_set():
                    if self.is_absent and not self._wanted.is_set():
                        return False
                    waiting = asyncio.ensure_future(self.caught_up.wait())
                    await asyncio.wait({waiting}, timeout=COMMANDS_POLL_MS / 1000)
                    waiting.cancel()
        except TimeoutError as error:
            raise recovering("the log of commands is being read") from error
        return True

    async def make_topics(self) -> None:
        """Makes both."""
        silent = Outage(self.settings.bootstrap, conditions=Conditions(self._clock))
        await ensure_topics(self.settings, silent, specs=(self.commands, self.results))

    async def put(self, command: CommandRecord) -> None:
        """Writes a command; who asks for it then finds it, read or not."""
        await self.write(self.commands, command.instance_id, command)
        if self.book.find(command.command_id) is None:
            self._echoes.add(command.command_id)
            self.issued.take(command)
            self._end_in_time(command)

    async def close(self) -> None:
        """Ends reading and writing; within a bound."""
        tasks = [*self._closing.values(), *([self._running] if self._running else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLIENT_LEAVE_S)
        await self.writer.close()


class ReplicaCommands(ThreadCommands):
    """Works on the replica's thread."""

    _issue_s = COMMAND_WRITE_S + COMMAND_OTHERS_S
    _ended_s = COMMAND_REQUEST_S + COMMAND_OTHERS_S
    _unread = UNREAD

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        thread: LoopThread,
        *,
        tracer: Tracer = NO_TRACER,
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        """Args:
        clock: Unix seconds.
        """
        self.issued = IssuedCommands(tracer)
        self._servers = settings.bootstrap
        self._thread = thread
        self._folded = FoldedCommands(settings, options, self.issued, clock=clock)
        thread.close_with(self._folded.close)

    def start(self) -> None:
        """Starts following, where there is anything; on the thread."""
        self._thread.run(self._folded.run())

    # On the thread

    async def _issue(self, command: CommandRecord) -> None:
        began = asyncio.get_running_loop().time()
        command = self.issued.admit(command)
        own = self._folded.own
        try:
            async with asyncio.timeout(COMMAND_WRITE_S):
                while not await self._folded.until_caught_up(COMMAND_WRITE_S):
                    await self._folded.make_topics()
                own[command.command_id] = began
                await self._folded.put(command)
        except AWAY as error:
            own.pop(command.command_id, None)
            self.issued.withdraw(command.command_id)
            raise StorageError(
                f"Cannot write the command to Kafka at {self._servers}:"
                f" {describe(error)}; in case it was written, `/commands/{command.command_id}`"
                " says what becomes of it"
            ) from error
        except BaseException:
            own.pop(command.command_id, None)
            self.issued.withdraw(command.command_id)
            raise

    async def _ended(self, command_id: str) -> CommandView | None:
        began = self._folded.own.get(command_id)
        if began is None:
            return self.book.find(command_id)
        try:
            async with asyncio.timeout_at(began + COMMAND_REQUEST_S):
                return await self.issued.ended(command_id)
        except TimeoutError:
            return self.book.find(command_id)

    async def _find(self, command_id: str) -> CommandView | None:
        found = self.book.find(command_id)
        if found is None and await self._folded.until_caught_up(COMMANDS_CATCH_UP_S):
            found = self.book.find(command_id)
            if found is None:  # another replica may have issued it a moment ago
                await asyncio.sleep(COMMANDS_POLL_MS / 1000)
                found = self.book.find(command_id)
        return found

    async def _latest(self, limit: int, origin: str | None, since: float) -> list[CommandView]:
        await self._folded.until_caught_up(COMMANDS_CATCH_UP_S)  # else there are none
        return self.book.latest(limit, origin=origin, since=since)
