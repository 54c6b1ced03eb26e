"""What servers of LMCache have told, into a log. One loop.

Publishers are noted in a file before the log has them: else the next run could not end them.
"""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lmcache_adapter.confirmed import FollowedWorkers
from lmcache_adapter.controller.member import RememberedWorker
from lmcache_adapter.service import Sink
from lmcache_adapter.state_file import State, StateFile, begin_run
from lmcache_adapter.topic.servers import Servers
from schemas.clock import Clock
from schemas.errors import StorageError
from schemas.identities import PublisherKey
from schemas.records import Record
from schemas.registration import Registration

_logger: Final = logging.getLogger(__name__)


class ServersWriter:
    """See the module.

    Args:
        data: the directory of the file.
        name: of the file in it.
        spoken: what the servers are called in the process's log.

    Attributes:
        first: from which number on incarnations of this run are.
        before: the publishers of the run before.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(
        self,
        data: Path,
        name: str,
        *,
        spoken: str,
        sink: Sink,
        followed: FollowedWorkers,
        clock: Clock,
    ) -> None:
        self._file = StateFile(data, name)
        state = begin_run(self._file, clock.unix())
        self.first = state.incarnations
        self.before: list[Registration] = [one.registration for one in state.workers]
        self._spoken = spoken
        self._sink = sink
        self._followed = followed
        self._clock = clock
        self._unnoted = False

    async def write(self, servers: Servers) -> None:
        """Notes who is new, and appends what is new of all."""
        if servers.has_news:
            servers.has_news = False
            self._unnoted = True
        told = servers.tell(self._clock.monotonic())
        if self._unnoted:
            workers = tuple(RememberedWorker(one) for one in servers.known())
            try:
                await asyncio.to_thread(
                    self._file.write, State(incarnations=self.first, workers=workers)
                )
                self._unnoted = False
            except StorageError as error:
                _logger.warning("Cannot note %s: %s. Trying again", self._spoken, error)
        records: list[Record] = [record for one in told for record in one.records]
        if records:
            self._sink.append(records)
        for one in told:
            self._followed.take(one)

    def forget(self, servers: Servers, publishers: Iterable[PublisherKey]) -> None:
        """A client unregisters these: nothing of them is written until their next batch."""
        for publisher in publishers:
            self._followed.pop(publisher, None)
            servers.forget(publisher)
