"""LMCache's coordinator over one log: members, what they hold, and how that reaches the log.

    HTTP thread: POST /events -> batches --\
    this loop:                              -> Servers -> directory -> records --> file, sink

The HTTP routes run on a thread of their own, and ask this loop; each answer is given once the
directory has what was told. So what is answered is there after a kill, too: the next run writes all
of it into the log again, and the number of a server's next batch tells whether anything came
between.
"""

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from bridge.publisher.tracker import SequenceOutcome
from lmcache_adapter.confirmed import FollowedWorkers
from lmcache_adapter.coordinator.directory import Directory
from lmcache_adapter.coordinator.members import Member, Members
from lmcache_adapter.coordinator.wire import CoordinatorError, EventsAnswer, Register
from lmcache_adapter.journal import NextIncarnation
from lmcache_adapter.losses import TakeLost
from lmcache_adapter.service import Sink
from lmcache_adapter.settings import CoordinatorSettings, Model, Models
from lmcache_adapter.topic.batches import Batch, BatchHead
from lmcache_adapter.topic.servers import NOT_KEPT, ModelOf, Servers, ServerState
from lmcache_adapter.topic.writer import ServersWriter
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import DiskError, StorageError
from schemas.identities import PublisherKey
from schemas.limits import HOUSEKEEPING_S

COORDINATOR_SILENT_S: Final = 15.0  # without a heartbeat or a batch: three of LMCache's intervals
COORDINATOR_SYNC_S: Final = (
    1.0  # between two moments as of which the directory survives a power cut
)
COORDINATOR_ASK_S: Final = 5.0  # that a request waits for the loop: status="503"

SOURCE: Final = "coordinator:/"
"""What the endpoint of a publisher begins with that has told by HTTP."""

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class CoordinatorService:
    """See the module. `asked` may be called on any loop; the rest is of the log's.

    Args:
        data: of the directory, and of the file that names the publishers.
        loop: on which `run` runs.
        floor: which incarnation of a publisher the log has, as far as that is known here.
        take_lost: the publishers of which the sink has dropped something.

    Attributes:
        followed: the publishers, for heartbeats.
        watched_at: when the loop was last seen to go on; monotonic seconds.
        faults: unexpected errors.
        dropped: batches and events that were dropped, by reason.
        departed: how many members have left without saying so.

    Raises:
        StorageError: a file cannot be opened or written.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        models: Models,
        *,
        data: Path,
        sink: Sink,
        loop: asyncio.AbstractEventLoop,
        floor: NextIncarnation = lambda publisher: 0,
        take_lost: TakeLost = lambda: (),
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.settings = settings
        self.faults = 0
        self.departed = 0
        self.dropped: Counter[str] = Counter()
        self.members = Members()
        self.take_lost = take_lost
        self._clock = clock
        self._loop = loop
        self._models = models
        self.watched_at = self._heard_until = clock.monotonic()
        self.followed = FollowedWorkers(lambda: self._heard_until, clock)
        self._writer = ServersWriter(
            data,
            "lmcache-coordinator.json",
            spoken="the members of LMCache's coordinator",
            sink=sink,
            followed=self.followed,
            clock=clock,
        )
        self.directory = Directory(data)
        self._problem = self._last_problem = ""
        self._sync_at = 0.0
        self._turn = asyncio.Lock()
        self._unheard: set[str] = set()  # of the last run, and not of this one yet
        self.servers = Servers(
            SOURCE,
            model_of=self._model_of,
            next_incarnation=lambda publisher: max(self._writer.first, floor(publisher) + 1),
            clock=clock.unix,
            dropped=self._drop,
            known=self._writer.before,
            keep=self._keep,
            silent_s=COORDINATOR_SILENT_S,
        )
        try:
            self._restore()
        except BaseException:
            self.directory.close()
            raise

    def model(self, name: str) -> Model:
        """What is known of a model: of chunks what servers have agreed on, unless the file has the
        model by its name.
        """
        model, tokens = self._models.named(name), self.directory.chunk_tokens
        if tokens is None or name in self._models.models:
            return model
        return msgspec.structs.replace(model, block_size=tokens)

    def _model_of(self, name: str) -> ModelOf:
        model = self.model(name)
        return ModelOf(model.tenant_id, model.block_size, model.says_all)

    def _drop(self, reason: str, count: int = 1, /) -> None:
        self.dropped[reason] += count

    def _restore(self) -> None:
        """What the last run knew. Nobody of it has registered here yet: whoever is there does so
        within a heartbeat, or leaves.
        """
        now = self._clock.monotonic()
        for instance_id, state in list(self.directory.servers()):
            if state.departed is not None and not state.has_storage:
                self.directory.forget(instance_id)
            else:
                self.servers.restore(instance_id, state, now)
                self._unheard.add(instance_id)
        for batch in self.directory.stored():
            self.servers.restore_chunk(batch)
        self.servers.restore_memory(self.directory.memory_last)
        self._restored_at = now
        self.servers.is_current = True
        self.servers.begin()

    def _keep(self, head: BatchHead, state: ServerState) -> None:
        def keep() -> None:
            if (
                isinstance(head, Batch)
                and head.event_type == "store"
                and len(head.entries) > self.servers.room
            ):
                raise DiskError(
                    action="keep a batch of LMCache",
                    path=head.instance_id,
                    detail="its servers have as many chunks as are kept",
                )
            self.directory.keep(head, state)

        self._kept(keep)

    def _kept(self, write: Callable[[], None]) -> None:
        """Raises StorageError, and says so once."""
        try:
            write()
        except StorageError as error:
            if not self._problem:
                _logger.warning("%s. What LMCache's servers tell meanwhile is missed", error)
            self._problem = self._last_problem = str(error)
            raise
        self._problem = ""

    # What members ask

    def receive(self, batches: Sequence[Batch]) -> EventsAnswer:
        """Takes the batches of a body, in order.

        Raises:
            CoordinatorError: 503, as one of them cannot be kept; those before it have been.
        """
        now, answer = self._clock.monotonic(), EventsAnswer()
        missed = self.dropped[NOT_KEPT]
        for batch in batches:
            self._unheard.discard(batch.instance_id)
            outcome = self.servers.take(batch, now)
            if outcome is SequenceOutcome.DUPLICATE:
                answer.duplicates += 1
            elif outcome is SequenceOutcome.STALE:
                answer.stale += 1
            elif outcome is not None:
                answer.applied += 1
                if batch.event_type == "config":
                    self.members.declare(batch)
        if self.dropped[NOT_KEPT] > missed:
            raise CoordinatorError(503, f"Not all of it could be kept: {self._last_problem}")
        return answer

    def register(self, registration: Register) -> tuple[str, bool]:
        """The name of the member, and whether it was registered before.

        Raises:
            CoordinatorError: 409, its chunks are of another size; 503, there are too many members.
        """
        instance_id = registration.instance_id.strip() or f"mp-{uuid.uuid4().hex}"
        if registration.chunk_size is not None:
            self.bind_chunk_size(registration.chunk_size)
        now, wall = self._clock.monotonic(), self._clock.unix()
        known = self.members.register(instance_id, registration, now=now, wall=wall)
        if known is None:
            raise CoordinatorError(503, f"Expected at most {len(self.members)} members, got more")
        self._unheard.discard(instance_id)
        state = self.servers.readmit(instance_id, now)
        if state is not None:
            self._note(instance_id, state)
        self.servers.hear(instance_id, now)
        if not known:
            _logger.info("LMCache's server %s has registered", instance_id)
        return instance_id, known

    def beat(self, instance_id: str) -> bool:
        """A heartbeat; whether it is registered."""
        now = self._clock.monotonic()
        if not self.members.beat(instance_id, now):
            return False
        self.servers.hear(instance_id, now)
        return True

    def leave(self, instance_id: str) -> None:
        """It says that it leaves; or it has not been heard of."""
        self.members.remove(instance_id)
        state = self.servers.depart(instance_id)
        if state is not None:
            _logger.info("LMCache's server %s has left", instance_id)
            self._note(instance_id, state)

    def _note(self, instance_id: str, state: ServerState) -> None:
        """What cannot be noted now is lost with this run: then its next number tells."""
        try:
            self._kept(lambda: self.directory.note(instance_id, state))
        except StorageError:
            self._drop(NOT_KEPT)

    def bind_chunk_size(self, tokens: int) -> int:
        """What all members have agreed on.

        Raises:
            CoordinatorError: 409, others have agreed on another size; 503, it cannot be noted.
        """
        known = self.directory.chunk_tokens
        if known == tokens:
            return tokens
        if known is not None and (self.directory.placements or len(self.members)):
            raise CoordinatorError(
                409,
                f"Coordinator is already bound to chunk size {known}; use a separate coordinator"
                f" for a fleet requiring chunk size {tokens}",
            )
        try:
            self._kept(lambda: self.directory.bind_chunk(tokens))
        except StorageError as error:
            raise CoordinatorError(503, str(error)) from error
        return tokens

    def found(self) -> list[Member]:
        """All members."""
        return self.members.all()

    async def asked(self, question: Callable[[], T]) -> T:
        """What this loop says, between two of its turns; any loop may ask.

        Raises:
            CoordinatorError: as the question does; 503, where no answer comes in time.
        """

        async def answered() -> T:
            return question()

        if asyncio.get_running_loop() is self._loop:
            return question()
        answering = answered()
        try:
            asking = asyncio.run_coroutine_threadsafe(answering, self._loop)
        except RuntimeError as error:
            answering.close()
            raise CoordinatorError(503, "The service stops: try again") from error
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asking), COORDINATOR_ASK_S)
        except TimeoutError as error:
            raise CoordinatorError(503, "The service is busy: try again") from error

    # The loop

    async def run(self) -> None:
        """Writes what is told, and sees who has left, until it is cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(HOUSEKEEPING_S)

    async def turn(self) -> None:
        """Once."""
        now = self.watched_at = self._clock.monotonic()
        for instance_id in self.members.silent(now):
            self.departed += 1
            self.leave(instance_id)
        if self._unheard and now - self._restored_at > COORDINATOR_SILENT_S:
            gone, self._unheard = self._unheard, set()
            for instance_id in gone:
                self.leave(instance_id)
        self.servers.rewrite(self.take_lost())
        self.servers.look()
        await self._write()
        self._heard_until = now
        if now - self._sync_at > COORDINATOR_SYNC_S:
            self._sync_at = now
            await self._keep_up()

    async def _write(self) -> None:
        async with self._turn:
            await self._writer.write(self.servers)

    async def _keep_up(self) -> None:
        """Makes the directory durable, and deletes of it what counts no longer."""
        try:
            await asyncio.to_thread(self.directory.sync)
            if not self.directory.is_swept:
                self.directory.sweep(await asyncio.to_thread(self.directory.stale))
        except StorageError as error:
            if not self._problem:
                _logger.warning("%s; trying again", error)
            self._problem = str(error)

    async def end(self) -> None:
        """`run` has ended: hands over what has been told."""
        await self._write()

    def close(self) -> None:
        """Closes the directory; may be called again."""
        try:
            self.directory.close()
        except StorageError as error:
            _logger.warning(
                "Cannot end LMCache's directory in order: %s. The next start tells what is missing",
                error,
            )

    # Publishers

    def forget(self, publishers: Iterable[PublisherKey]) -> None:
        """A client unregisters these: nothing of them is written until their next batch."""
        self._writer.forget(self.servers, publishers)

    def is_linked(self, publisher: PublisherKey) -> bool:
        """Whether its server is registered, as last told; any thread may ask."""
        return publisher.stream.instance_id in self.members
