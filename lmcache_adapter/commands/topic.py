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
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from brokers.availability import describe
from brokers.backoff import Backoff
from brokers.client_internals import start_client
from brokers.clients import Clients
from brokers.errors import AWAY
from brokers.interface import EntryProducer, Message
from brokers.options import ClientOptions
from brokers.settings import KafkaSettings
from brokers.topics import ensure_topics
from lmcache_adapter.commands.executor import Executor
from logs.recent import Following
from schemas.codec import decode_command
from schemas.command_records import CommandRecord, ResultRecord, encode_command
from schemas.errors import ConfigurationError, RecordError
from schemas.limits import (
    CLIENT_LEAVE_S,
    COMMAND_CLOSE_S,
    KAFKA_RETRY_FIRST_S,
    KAFKA_RETRY_MAX_S,
    LMCACHE_COMMANDS_POLL_MS,
)
from schemas.topics import encode_instance

_logger = logging.getLogger(__name__)


class CommandTopic:
    """See the module. One loop.

    Args:
        settings: of the deployment.
        options: of its clients.
        executor: asks the workers.

    Attributes:
        dropped: by reason: records that cannot be read, results that Kafka did not take.
        faults: unexpected errors.
    """

    def __init__(self, settings: KafkaSettings, options: ClientOptions, executor: Executor) -> None:
        self.executor = executor
        self.dropped: Counter[str] = Counter()
        self.faults = 0
        self._settings = settings
        self._clients = Clients(options)
        self._commands, self._results = settings.commands
        self._following = Following(
            options,
            [self._commands.name],
            since=time.time(),
            poll_ms=LMCACHE_COMMANDS_POLL_MS,
            take=self._take,
        )
        self._producer: EntryProducer | None = None
        self._opening = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._problem = ""

    async def run(self) -> None:
        """Executes commands until it is cancelled; no error ends it."""
        backoff = Backoff(KAFKA_RETRY_FIRST_S, KAFKA_RETRY_MAX_S)
        try:
            while True:
                try:
                    await ensure_topics(self._settings, specs=self._settings.commands)
                    await self._open()
                    backoff.reset()
                    self._problem = ""
                    await self._following.run()
                except (ConfigurationError, *AWAY) as error:
                    self._complain(describe(error))
                except Exception:
                    self.faults += 1
                    _logger.exception("Unexpected error with commands to LMCache; going on")
                await backoff.wait()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            self.executor.close()
            if self._producer is not None:
                with suppress(*AWAY):
                    await asyncio.wait_for(self._producer.stop(), CLIENT_LEAVE_S)

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            _logger.warning("Cannot read commands to LMCache's workers, retrying: %s", problem)
        self._problem = problem

    def _take(self, topic: str, message: Message) -> None:
        try:
            record = decode_command(message.value or b"")
        except RecordError as error:
            self.dropped[error.reason] += 1
            _logger.warning(
                "Cannot read the message at offset %d of %s: %s. It is left out",
                *(message.offset, topic, error),
            )
            return
        if not isinstance(record, CommandRecord):
            self.dropped["not_a_command"] += 1
            return
        self._begin(self._execute(record, is_before=not self._following.caught_up.is_set()))

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
                producer = await self._open()
                await producer.send_and_wait(
                    self._results.name,
                    key=encode_instance(instance_id),
                    value=encode_command(result),
                )
        except AWAY as error:
            self.dropped["result_not_written"] += 1
            _logger.warning(
                "Cannot write to Kafka what became of command %s: %s. It ends as not answered",
                *(result.command_id, describe(error)),
            )

    async def _open(self) -> EntryProducer:
        async with self._opening:
            if self._producer is None:
                producer = self._clients.command_producer()
                try:
                    await start_client(producer)
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer
