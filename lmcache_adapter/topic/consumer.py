"""Reads LMCache's topic, and writes what it says into one log. One loop.

The topic is read from its beginning in each run, as LMCache's own coordinator reads it: what it
says from there on is the state, and nothing is committed. Until its end is reached nothing is
written; then everything is. Where the brokers are away it is read on from where it was.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Final

from brokers.broker_settings import KafkaSettings
from brokers.client_types import Consumer, Message, Partition
from brokers.errors import CorruptRecordException
from brokers.options import client_options
from lmcache_adapter.confirmed import FollowedWorkers
from lmcache_adapter.journal import NextIncarnation
from lmcache_adapter.losses import TakeLost
from lmcache_adapter.service import Sink
from lmcache_adapter.settings import Models, TopicSettings
from lmcache_adapter.topic.batches import BatchError, decode
from lmcache_adapter.topic.servers import ModelOf, Servers
from lmcache_adapter.topic.writer import ServersWriter
from logs.recent import RecentFollower
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import ConfigurationError
from schemas.identities import PublisherKey

LMCACHE_TOPIC_VALUES: Final = 64  # taken of the topic before others have their turn
LMCACHE_TOPIC_POLL_MS: Final = 200  # of the topic without a value
LMCACHE_TOPIC_END_S: Final = 1.0  # so often it is asked where the topic ends
LMCACHE_TOPIC_RETRY_S: Final = 5.0  # between two attempts to reach the topic's brokers, at most

_logger = logging.getLogger(__name__)

EMPTY: Final = "empty_value"
UNEXPECTED: Final = "unexpected_error"
CORRUPT: Final = "corrupt_value"


class TopicService(RecentFollower):
    """See the module.

    Args:
        data: the directory of the file that names the publishers.
        floor: which incarnation of a publisher the log has, as far as that is known here.
        take_lost: the publishers of which the sink has dropped something.

    Attributes:
        followed: the publishers, for heartbeats.
        watched_at: when the loop was last seen to go on; monotonic seconds.
        faults: unexpected errors.
        is_reached: whether the brokers answer.

    Raises:
        StorageError: the file cannot be written.
    """

    spoken: ClassVar[str] = "LMCache's topic"

    def __init__(
        self,
        settings: TopicSettings,
        models: Models,
        *,
        data: Path,
        sink: Sink,
        floor: NextIncarnation = lambda publisher: 0,
        take_lost: TakeLost = lambda: (),
        clock: Clock = REAL_CLOCK,
    ) -> None:
        super().__init__(
            client_options(KafkaSettings(bootstrap=settings.bootstrap)),
            [settings.topic],
            since=None,
            poll_ms=LMCACHE_TOPIC_POLL_MS,
            records_max=LMCACHE_TOPIC_VALUES,
            committed=True,
            retry_first_s=LMCACHE_TOPIC_RETRY_S / 50,
            retry_max_s=LMCACHE_TOPIC_RETRY_S,
        )
        self._clock = clock
        self.dropped: Counter[str] = Counter()
        self.faults = 0
        self.is_reached = False
        self._heard_until = self._clock.monotonic()
        self.followed = FollowedWorkers(lambda: self._heard_until, clock)
        self.watched_at = self._clock.monotonic()
        self.take_lost = take_lost
        self._settings = settings
        self._writer = ServersWriter(
            data,
            "lmcache-topic.json",
            spoken="the publishers of LMCache's topic",
            sink=sink,
            followed=self.followed,
            clock=clock,
        )
        self._first_ends: Mapping[Partition, int] | None = None  # what is read first
        self._asked_at = 0.0
        self._problem = ""

        def model_of(name: str) -> ModelOf:
            model = models.named(name)
            return ModelOf(model.tenant_id, model.block_size, model.says_all)

        self.servers = Servers(
            f"kafka://{settings.topic}",
            model_of=model_of,
            next_incarnation=lambda publisher: max(self._writer.first, floor(publisher) + 1),
            clock=clock.unix,
            dropped=self._drop,
            known=self._writer.before,
        )

    def _drop(self, reason: str, count: int = 1, /) -> None:
        self.dropped[reason] += count

    # What goes wrong

    def refused(self, error: ConfigurationError) -> None:
        """See `Follower`."""
        self._complain(f"there is no topic {self._settings.topic} yet")

    def away(self, error: Exception) -> None:
        """See `Follower`."""
        self._complain(str(error) or type(error).__name__)

    def failed(self, error: Exception) -> None:
        """See `Follower`."""
        self.faults += 1
        _logger.exception("Unexpected error with LMCache's topic; reading on")

    async def pause(self) -> None:
        """See `Follower`."""
        self.is_reached = self.servers.is_current = False
        await self._write()
        await super().pause()

    def _complain(self, problem: str) -> None:
        if not self._problem:
            _logger.warning(
                "Cannot read LMCache's topic %s at %s, retrying: %s",
                self._settings.topic,
                self._settings.bootstrap,
                problem,
            )
        self._problem = problem

    # Reading

    async def begin(self, consumer: Consumer) -> None:
        """See `Follower`."""
        self._asked_at = self.watched_at = self._clock.monotonic()
        await super().begin(consumer)
        self.servers.look()
        if self._first_ends is None:
            self._first_ends = self.ends
        if self._problem:
            _logger.info("LMCache's topic %s can be read", self._settings.topic)
        self.is_reached, self._problem = True, ""
        self.backoff.reset()

    async def _ask_ends(self, consumer: Consumer) -> None:
        self._asked_at = self.watched_at = self._clock.monotonic()
        self.ends = dict(await consumer.end_offsets(self.partitions))
        self.servers.look()

    async def damaged(self, consumer: Consumer, error: CorruptRecordException) -> None:
        """See `Follower`: reads on behind it."""
        await super().damaged(consumer, error)
        self._drop(CORRUPT)

    async def turned(self, consumer: Consumer, *, has_read: bool) -> None:
        """See `Follower`."""
        await super().turned(consumer, has_read=has_read)
        positions = {one: await consumer.position(one) for one in self.partitions}
        self._next |= positions
        self._note_progress(positions)
        self.servers.rewrite(self.take_lost())
        await self._write()
        self.watched_at = self._clock.monotonic()
        if self.watched_at - self._asked_at > LMCACHE_TOPIC_END_S:
            await self._ask_ends(consumer)

    def take_message(self, topic: str, message: Message) -> None:
        """See `RecentFollower`."""
        if message.value is None:
            self._drop(EMPTY)
            return
        try:
            for batch in decode(message.value):
                self.servers.take(batch, self._clock.monotonic())
        except BatchError as error:
            self._drop(error.reason)
            _logger.debug("Offset %d of LMCache's topic: %s", message.offset, error)
        except Exception:
            self._drop(UNEXPECTED)
            self.faults += 1
            _logger.exception(
                "Unexpected error with offset %d of LMCache's topic; leaving it out", message.offset
            )

    def _note_progress(self, positions: dict[Partition, int]) -> None:
        """A reader that stands at `_ends` has all that was there when they were asked for."""
        first_ends = self._first_ends
        assert first_ends is not None, "they are asked for before anything is read"
        if first_ends and all(positions[one] >= first_ends.get(one, 0) for one in positions):
            self._first_ends = {}
            self.servers.begin()
        if not self._first_ends and all(
            positions[one] >= self.ends.get(one, 0) for one in positions
        ):
            self.servers.is_current = True
            self._heard_until = max(self._heard_until, self._asked_at)

    # Writing

    async def _write(self) -> None:
        await self._writer.write(self.servers)

    def forget(self, publishers: Iterable[PublisherKey]) -> None:
        """A client unregisters these: nothing of them is written until their next batch."""
        self._writer.forget(self.servers, publishers)

    @property
    def waiting(self) -> int:
        """Values of the topic that are yet to be read, as far as that is known."""
        return sum(
            max(end - self._next.get(one, 0), 0) for one, end in (self._first_ends or {}).items()
        )
