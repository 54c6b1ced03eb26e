"""In place of Faust and of the app that folds with it: one member of a group after the other."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

from brokers.client_types import Partition
from brokers.clients import Clients, subscribe
from brokers.errors import AWAY
from brokers.options import ClientOptions
from brokers.reading import log_bounds, stop_consumer
from logs.interface import LogEntry
from schemas.errors import RepriseError
from schemas.identities import Offset
from streams.bounds import WORKER_STALL_CHECK_S
from streams.worker.owner import PartitionOwner
from streams.worker.stall_watch import StallWatch

POLL_MS: Final = 200

OwnerT = TypeVar("OwnerT", bound=PartitionOwner)


class FoldedTopic(NamedTuple):
    """What is folded, by which group."""

    options: ClientOptions
    group: str
    topic: str
    session_s: float


class FaustPart(Generic[OwnerT]):
    """Folds one topic, as `streams.worker.app` does.

    Args:
        make_owner: makes the tables, anew after whatever has failed.
        folded: the topic.

    Attributes:
        owner: the present tables.
    """

    def __init__(self, make_owner: Callable[[], OwnerT], folded: FoldedTopic) -> None:
        self.owner: OwnerT | None = None
        self._make_owner = make_owner
        self._options, self._group, self._topic, self._session_s = folded
        self._generation = 0
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Until it is killed: whatever fails, it begins again."""
        while True:
            with suppress(RepriseError, *AWAY):
                await self._run()
            await asyncio.sleep(0.5)

    async def _run(self) -> None:
        self._failure, self._settled = None, False
        owner = self.owner = self._make_owner()
        self._consumer = Clients(self._options).worker_consumer(
            self._group, session_s=self._session_s
        )
        try:
            await self._consumer.start()
            subscribe(self._consumer, self._topic, self)
            watch, look_at = StallWatch(), asyncio.get_running_loop().time()
            while self._failure is None:
                await self._turn(owner)
                if self._settled and asyncio.get_running_loop().time() >= look_at:
                    look_at += WORKER_STALL_CHECK_S
                    await self._look(watch, owner)
            raise self._failure
        finally:
            await owner.release()
            await stop_consumer(self._consumer, timeout_s=2.0)
            await owner.close()

    async def _turn(self, owner: OwnerT) -> None:
        generation = self._generation
        batches = await self._consumer.getmany(timeout_ms=POLL_MS)
        if not self._settled or generation != self._generation:
            for part in sorted(batches.keys() & self._consumer.assignment()):
                self._seek(owner, part)
            return
        await owner.fold(
            {
                part.partition: [LogEntry(Offset(one.offset), one.value or b"") for one in records]
                for part, records in batches.items()
            }
        )
        covered = {part: owner.covered(part.partition) for part in batches}
        with suppress(*AWAY):  # it only informs
            await self._consumer.commit(
                {part: offset for part, offset in covered.items() if offset is not None}
            )

    async def _look(self, watch: StallWatch, owner: OwnerT) -> None:
        assigned = sorted(part.partition for part in self._consumer.assignment())
        found = {number: owner.next_offset(number) for number in assigned}
        places = {number: place for number, place in found.items() if place is not None}
        logs = await log_bounds(self._options, self._topic, places) if places else {}
        await owner.check()
        self._failure = self._failure or watch.note(places, logs, asyncio.get_running_loop().time())

    def _seek(self, owner: OwnerT, part: Partition) -> None:
        offset = owner.next_offset(part.partition)
        if offset is not None:
            self._consumer.seek(part, offset)

    async def on_partitions_revoked(self, revoked: set[Partition]) -> None:
        """See `RebalanceListener`."""
        self._generation += 1
        self._settled = False
        assert self.owner is not None
        await self.owner.release()

    async def on_partitions_assigned(self, assigned: set[Partition]) -> None:
        """See `RebalanceListener`."""
        assert self.owner is not None
        try:
            if await self.owner.assign(part.partition for part in assigned):
                for part in assigned:
                    self._seek(self.owner, part)
                self._settled = True
        except (RepriseError, *AWAY) as error:
            self._failure = error
        self._generation += 1
