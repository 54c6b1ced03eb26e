"""Commands of the topic PREFIX.commands, for workers that are connected to this bridge.

Every bridge with LMCache's sockets reads all commands that were issued since it was made, which is
before its sockets are open, and executes those to its own workers: a worker that can be seen is one
that takes commands. What came while the bridge was away is executed by nobody, and is ended by the
replica that has issued it; what was issued before reading had begun reaches only workers that were
linked here by then. So a command is executed once at the most, whichever bridge dies.

What became of it goes to PREFIX.results. A result that Kafka does not take in time is dropped and
counted: by then the command has ended without it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final

from bridge.supervision import cancel
from brokers.availability import describe
from brokers.broker_settings import KafkaSettings
from brokers.errors import AWAY
from brokers.options import ClientOptions
from brokers.topics import ensure_topics
from lmcache_adapter.bounds import COMMAND_CLOSE_S
from lmcache_adapter.commands.executor import Executor
from lmcache_adapter.commands.log import COMMANDS_TOPIC
from lmcache_adapter.commands.topics import CommandTopics
from schemas.clock import REAL_CLOCK
from schemas.command_records import AnyCommandRecord, CommandRecord, ResultRecord
from schemas.errors import ConfigurationError

LMCACHE_COMMANDS_POLL_MS: Final = 500  # of the topic of commands without one

_logger = logging.getLogger(__name__)


class CommandTopic(CommandTopics):
    """See the module. One loop.

    Args:
        clock: Unix seconds.

    Attributes:
        dropped: by reason: records that cannot be read, results that Kafka did not take.
        faults: unexpected errors.
    """

    unread: ClassVar[str] = "Cannot read commands to LMCache's workers"

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        executor: Executor,
        *,
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        super().__init__(
            settings,
            options,
            (COMMANDS_TOPIC,),
            since=clock(),
            poll_ms=LMCACHE_COMMANDS_POLL_MS,
        )
        self.executor = executor
        self.faults = 0
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Executes commands until it is cancelled; no error ends it."""
        try:
            await super().run()
        finally:
            await cancel(*self._running)
            self.executor.close()
            await self.writer.close()

    async def prepare(self) -> None:
        """See `Follower`."""
        await ensure_topics(self.settings, specs=(self.commands, self.results))
        await self.writer.open()
        self.problem = ""
        await super().prepare()

    def refused(self, error: ConfigurationError) -> None:
        """See `Follower`."""
        self.away(error)

    def failed(self, error: Exception) -> None:
        """See `Follower`."""
        self.faults += 1
        _logger.exception("Unexpected error with commands to LMCache; going on")

    def take_record(self, topic: str, record: AnyCommandRecord) -> None:
        """See `CommandTopics`."""
        if not isinstance(record, CommandRecord):
            self.dropped["not_a_command"] += 1
            return
        self._begin(self._execute(record, is_before=not self.caught_up.is_set()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _execute(self, command: CommandRecord, *, is_before: bool) -> None:
        def report(result: ResultRecord) -> None:
            self._begin(self._write(command.instance_id, result))

        try:
            async with asyncio.timeout(COMMAND_CLOSE_S):
                await self.executor.execute(command, report, is_before=is_before)
        except TimeoutError:
            return
        except Exception:
            self.faults += 1
            _logger.exception(
                "Unexpected error with command %s; what became of it is not told",
                command.command_id,
            )

    async def _write(self, instance_id: str, result: ResultRecord) -> None:
        try:
            async with asyncio.timeout(COMMAND_CLOSE_S):
                await self.write(self.results, instance_id, result)
        except AWAY as error:
            self.dropped["result_not_written"] += 1
            _logger.warning(
                "Cannot write to Kafka what became of command %s: %s. It ends as not answered",
                *(result.command_id, describe(error)),
            )
