"""The topics of commands: PREFIX.commands and PREFIX.results, read from a moment on and written."""

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from brokers.availability import describe
from brokers.broker_settings import KafkaSettings
from brokers.client_types import Message
from brokers.clients import Clients
from brokers.options import ClientOptions
from lmcache_adapter.commands.log import COMMANDS_TOPIC, RESULTS_TOPIC
from logs.entry_writer import EntryWriter
from logs.recent import RecentFollower
from schemas.codec import decode_command
from schemas.command_records import AnyCommandRecord, encode_command
from schemas.errors import RecordError
from schemas.topics import TopicShape, TopicSpec, encode_instance

_logger = logging.getLogger(__name__)


class CommandTopics(RecentFollower):
    """Reads and writes records of commands. One loop.

    Attributes:
        dropped: by reason: records that cannot be used.
        problem: what is wrong with the topics now, as it was logged; "" while they are read.
    """

    unread: ClassVar[str]
    """What is logged where they cannot be read, but for why."""

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        shapes: Sequence[TopicShape],
        *,
        since: float,
        poll_ms: int,
    ) -> None:
        """Args:
        since, poll_ms: see `RecentFollower`.
        """
        names = [settings.topic(one).name for one in shapes]
        super().__init__(options, names, since=since, poll_ms=poll_ms)
        self.dropped: Counter[str] = Counter()
        self.problem = ""
        self.settings = settings
        self.commands = settings.topic(COMMANDS_TOPIC)
        self.results = settings.topic(RESULTS_TOPIC)
        self.writer = EntryWriter(Clients(options).command_producer)

    @abstractmethod
    def take_record(self, topic: str, record: AnyCommandRecord) -> None:
        """Called with each record that can be read."""

    def take_message(self, topic: str, message: Message) -> None:
        """See `RecentFollower`."""
        try:
            record = decode_command(message.value or b"")
        except RecordError as error:
            self.dropped[error.reason] += 1
            _logger.warning(
                "Cannot read the message at offset %d of %s: %s. It is left out",
                *(message.offset, topic, error),
            )
            return
        self.take_record(topic, record)

    async def write(self, topic: TopicSpec, instance_id: str, record: AnyCommandRecord) -> None:
        """Returns once the topic has it.

        Raises:
            KafkaError, OSError, TimeoutError: it may not have been written.
        """
        key = encode_instance(instance_id)
        await self.writer.write(topic.name, key=key, value=encode_command(record))

    def away(self, error: Exception) -> None:
        """See `Follower`: logs a problem that is not the last one."""
        problem = describe(error)
        if problem != self.problem:
            _logger.warning("%s, retrying: %s", self.unread, problem)
        self.problem = problem
