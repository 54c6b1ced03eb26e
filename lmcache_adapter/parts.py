"""What is served of LMCache over one log: its controller, and its topic or its coordinator."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.publisher.ports import PublisherWatch
from bridge.supervision import cancel, keep
from lmcache_adapter.confirmed import WatchedBeside, WorkerConfirmation
from lmcache_adapter.controller.member import WorkerView
from lmcache_adapter.losses import Losses, TakeLost
from lmcache_adapter.service import LmcacheService, Sink
from lmcache_adapter.settings import LmcacheSettings
from schemas.identities import PublisherKey

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from lmcache_adapter.coordinator.service import CoordinatorService
    from lmcache_adapter.topic.consumer import TopicService


def _coordinator_service() -> "type[CoordinatorService]":
    from lmcache_adapter.coordinator.service import CoordinatorService

    return CoordinatorService


def _topic_service() -> "type[TopicService]":
    # Imported where it is wanted: Kafka's client is a tenth of what a service without it imports.
    from lmcache_adapter.topic.consumer import TopicService

    return TopicService


class LmcacheParts:
    """See the module. `start` and `stop` may be called by any thread; the rest is of the loop.

    Args:
        data: of the files that name publishers.
        loop: on which `run` runs.
        floor: see `LmcacheService`.

    Attributes:
        service: the controller; None: it is not served.
        topic: the reader of the topic; None: there is none.
        coordinator: of servers of the multi-process mode; None: they are not answered.

    Raises:
        ConfigurationError: an address cannot be bound.
        StorageError: a file cannot be written.
    """

    def __init__(
        self,
        settings: LmcacheSettings,
        *,
        data: Path,
        sink: Sink,
        loop: asyncio.AbstractEventLoop,
        floor: Callable[[PublisherKey], int] = lambda publisher: 0,
        take_lost: TakeLost = lambda: (),
    ) -> None:
        losses, models = Losses(take_lost), settings.read_models()
        self._sink = sink
        self.own_faults = 0
        self.service: LmcacheService | None = None
        self.topic: TopicService | None = None
        if settings.topic is not None:
            topic = _topic_service()(settings.topic, models, data=data, sink=sink, floor=floor)
            topic.take_lost = losses.share(lambda: topic.followed)
            self.topic = topic
        self.coordinator: CoordinatorService | None = None
        if settings.coordinator is not None:
            coordinator = _coordinator_service()(
                settings.coordinator, models, data=data, sink=sink, loop=loop, floor=floor
            )
            coordinator.take_lost = losses.share(lambda: coordinator.followed)
            self.coordinator = coordinator
        if settings.address is not None:
            service = LmcacheService(
                settings.address,
                models,
                data=data,
                sink=sink,
                loop=loop,
                floor=floor,
                take_lost=losses.share(lambda: service.followed),
            )
            self.service = service

    # For heartbeats, as `bridge.publisher.ports.PublisherWatch`

    @property
    def followed(self) -> dict[PublisherKey, WorkerConfirmation]:
        """All publishers. Cost O(publishers)."""
        found: dict[PublisherKey, WorkerConfirmation] = {}
        for part in self._all:
            found |= part.followed
        return found

    @property
    def _all(self) -> "list[LmcacheService | TopicService | CoordinatorService]":
        parts = (self.service, self.topic, self.coordinator)
        return [part for part in parts if part is not None]

    def beside(self, pump: PublisherWatch) -> PublisherWatch:
        """The publishers of a pump, and these."""
        return WatchedBeside(pump, lambda: self.followed)

    @property
    def watched_at(self) -> float:
        """When the loop was last seen to go on; monotonic seconds. What is late of a publisher it
        says itself.
        """
        return max((part.watched_at for part in self._all), default=0.0)

    def has_waiting(self, publisher: PublisherKey) -> bool:
        """See `PublisherWatch`."""
        return self._sink.has_waiting(publisher)

    # Running

    def start(self) -> None:
        """Starts to answer workers; what is told of them waits for `run`."""
        if self.service is not None:
            self.service.start()

    def stop(self) -> None:
        """Ends the thread of the sockets, within a bound, and closes files; may be called again."""
        if self.service is not None:
            self.service.stop()
        if self.coordinator is not None:
            self.coordinator.close()

    async def run(self) -> None:
        """Runs all parts until it is cancelled."""
        parts = {
            "LMCache's workers": self.service,
            "LMCache's topic": self.topic,
            "LMCache's coordinator": self.coordinator,
        }
        tasks = [
            asyncio.create_task(keep(name, part.run, on_fault=self._count_fault))
            for name, part in parts.items()
            if part is not None
        ]
        try:
            await asyncio.Event().wait()
        finally:
            await cancel(*tasks)

    async def end(self) -> None:
        """`run` has ended: hands over what has been told."""
        if self.service is not None:
            await self.service.end()
        if self.coordinator is not None:
            await self.coordinator.end()

    def _count_fault(self) -> None:
        self.own_faults += 1

    @property
    def faults(self) -> int:
        """Unexpected errors."""
        return self.own_faults + sum(part.faults for part in self._all)

    def coordinator_app(self) -> "Starlette":
        """The coordinator's routes; where there is one."""
        from lmcache_adapter.coordinator.app import coordinator_app

        assert self.coordinator is not None, "there is one"
        return coordinator_app(self.coordinator)

    # Publishers

    def forget(self, publishers: Iterable[PublisherKey]) -> None:
        """A client unregisters these, each of which has registered itself."""
        others = list(publishers)
        for part in (self.topic, self.coordinator):
            if part is not None:
                mine = [one for one in others if one in part.followed]
                others = [one for one in others if one not in mine]
                part.forget(mine)
        if self.service is not None and others:
            self.service.forget(others)

    def is_linked(self, publisher: PublisherKey) -> bool:
        """Whether what it says can reach us, as last told; any thread may ask."""
        if self.topic is not None and publisher in self.topic.followed:
            return self.topic.is_reached
        if self.coordinator is not None and publisher in self.coordinator.followed:
            return self.coordinator.is_linked(publisher)
        return self.service is not None and self.service.is_linked(publisher)

    def knows(self, publisher: PublisherKey) -> bool:
        """Whether it is one of these; any thread may ask."""
        return any(publisher in part.followed for part in self._all)

    async def workers(self) -> list[WorkerView]:
        """All workers of the controller."""
        return [] if self.service is None else await self.service.workers()
