"""One Faust app after another, until it is told to stop.

Whatever ends an app (a broker that is away, a partition that another worker took, a full disk), its
worker leaves the group, waits, and starts a new app, which opens what is folded anew.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

from brokers.availability import watch
from brokers.backoff import Backoff
from brokers.broker_settings import KafkaSettings
from brokers.errors import KafkaError
from brokers.options import client_options
from brokers.outages import Outage
from brokers.topics import ensure_topics
from schemas.causes import cause_of
from schemas.conditions import Conditions, Level, Part
from schemas.errors import (
    ConfigurationError,
    DataDirectoryInUseError,
    NewerVersionError,
    RepriseError,
)
from schemas.limits import SHUTDOWN_S, WORKER_SESSION_S
from schemas.topics import TopicSpec
from streams.bounds import WORKER_POLL_S
from streams.worker.app import WorkerApp
from streams.worker.owner import PartitionOwner

WORKER_RETRY_S: Final = 0.5  # the pause after an app failed; doubled with each further failure
WORKER_RETRY_MAX_S: Final = 5.0  # up to this
WORKER_SETTLED_S: Final = 30.0  # an app that ran for this long resets the pause
WORKER_STOP_S: Final = SHUTDOWN_S - 2.0  # for the last flush and commit, and to leave the group
WORKER_CLEAN_S: Final = 5.0  # for the tasks that a crash of Faust left; then the process ends

assert WORKER_CLEAN_S < WORKER_SESSION_S, "a process that cannot be cleaned up ends soon"
assert WORKER_RETRY_S <= WORKER_RETRY_MAX_S, "the pauses grow"
assert WORKER_STOP_S < SHUTDOWN_S, "a worker leaves the group before it is killed"

logger = logging.getLogger(__name__)


class LoopSpoiledError(RepriseError):
    """Faust ended by itself, and what it left behind does not end.

    A member of the group that is left running would keep its partitions and fold none of them. So
    the process ends, and with it the membership; its supervisor starts another.

    Operator action: run the worker under a supervisor that restarts it, as Compose and Kubernetes
    do; report the error.
    """


_FATAL: Final = (
    ConfigurationError,
    DataDirectoryInUseError,
    NewerVersionError,
    LoopSpoiledError,
)
"""Waiting does not repair these."""


class WorkerTopic(NamedTuple):
    """What an app folds.

    Attributes:
        name: of what runs it, in the log.
        group: its consumer group.
        specs: the topics that it needs; None: those that every deployment has.
        flush_s: how long records are gathered before they are folded.
        session_timeout_s: after this long without a heartbeat its partitions go to others.
        part: the condition that is set while it is not folded.
        level: what that means for the role.
    """

    name: str
    group: str
    topic: str
    specs: Sequence[TopicSpec] | None
    flush_s: float
    session_timeout_s: float
    part: Part
    level: Level


class AppRunner(ABC):
    """Runs one app after another until told to stop; it must have its event loop to itself.

    Attributes:
        conditions: what keeps records from being folded.
        restarts: how often an app ended before it was told to.
        crashes: how often Faust ended by itself, among them.
        app_errors: how often it was by an unexpected error.
    """

    def __init__(
        self, kafka: KafkaSettings, folded: WorkerTopic, conditions: Conditions, outage: Outage
    ) -> None:
        """Args:
        outage: told while Kafka is away.

        Raises:
            ConfigurationError: the settings cannot be used.
        """
        self.conditions = conditions
        self.restarts = 0
        self.crashes = 0
        self.app_errors = 0
        self._kafka = kafka
        self._folded = folded
        self._options = client_options(kafka)
        self._outage = outage
        self._stopping = asyncio.Event()

    @abstractmethod
    def make_owner(self) -> PartitionOwner:
        """Who has what the next app folds."""

    def stop(self) -> None:
        """Lets `run` flush, commit, leave the group and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Works until stopped.

        Raises:
            ConfigurationError, DataDirectoryInUseError, NewerVersionError, LoopSpoiledError: what
                waiting does not repair.
        """
        if not await self._ensure_topics():
            return
        backoff, loop = Backoff(WORKER_RETRY_S, WORKER_RETRY_MAX_S), asyncio.get_running_loop()
        while not self._stopping.is_set():
            started = loop.time()
            try:
                await self._run_app()
                return
            except _FATAL:
                raise
            except Exception as error:  # noqa: BLE001 -- logged there
                self._note_failure(error)
            self.restarts += 1
            if loop.time() - started > WORKER_SETTLED_S:
                backoff.reset()
            await wait_for(self._stopping, backoff.take())
            if not await self._ensure_topics():
                return

    def _note_failure(self, error: Exception) -> None:
        """Logs and shows why the app ended; it will be restarted."""
        problem = f"{type(error).__name__}: {error}"
        expected = isinstance(error, RepriseError | KafkaError | OSError)
        already_logged = expected and self.conditions.has(Part.KAFKA)
        level = logging.INFO if already_logged else logging.WARNING
        text = "%s failed, restarting: %s"
        logger.log(level, text, self._folded.name, problem, exc_info=not expected)
        self.app_errors += not expected
        reason = "app_failed" if expected else "internal_error"
        self.conditions.set(self._folded.part, reason, problem, self._folded.level, logged=False)

    async def _ensure_topics(self) -> bool:
        """Whether the topics are there; False where it was told to stop before."""
        ensuring = asyncio.ensure_future(
            ensure_topics(self._kafka, self._outage, specs=self._folded.specs)
        )
        stopped = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((ensuring, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ensuring.done():
            ensuring.cancel()
            return False
        ensuring.result()
        return True

    async def _run_app(self) -> None:
        folded = self._folded
        owner = self.make_owner()
        app = self.make_app(owner)
        self.conditions.clear(folded.part)
        others = asyncio.all_tasks()
        watching = asyncio.create_task(watch(self._options, self._outage))
        running = asyncio.ensure_future(app.run(self._stopping))
        try:
            if await _ended_in_time(running, self._stopping):
                await owner.close()
        except BaseException:
            await owner.close()
            raise
        finally:
            watching.cancel()
            await asyncio.wait((watching,))
            if app.outcome.crashed_by is not None:
                self.crashes += 1
                await _clean(app, others)

    def make_app(self, owner: PartitionOwner) -> WorkerApp:
        """The next app."""
        folded = self._folded
        return WorkerApp(
            self._options,
            owner,
            group=folded.group,
            topic=folded.topic,
            flush_s=folded.flush_s,
            session_timeout_s=folded.session_timeout_s,
        )


async def _clean(app: WorkerApp, others: set["asyncio.Task[object]"]) -> None:
    """Ends what a crashed app has left: all but the other tasks, which were there before it.

    Raises:
        LoopSpoiledError: not all of it ends.
    """
    left = asyncio.all_tasks() - others - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=WORKER_CLEAN_S)
    loop = asyncio.get_running_loop()
    end = loop.time() + WORKER_CLEAN_S
    while not app.outcome.has_left and loop.time() < end:  # noqa: ASYNC110 -- another thread
        await asyncio.sleep(WORKER_POLL_S)  # the broker answers its farewell in its own time
    if left or not app.outcome.has_left:
        crash = app.outcome.crashed_by
        why = "no error is known" if crash is None else cause_of(crash)
        consumer = "has ended" if app.outcome.has_left else "has not ended"
        raise LoopSpoiledError(
            f"Faust crashed ({why}), and {len(left)} of its tasks do not end; its consumer"
            f" {consumer}"
        ) from app.outcome.crashed_by


async def _ended_in_time(app: "asyncio.Future[None]", stopping: asyncio.Event) -> bool:
    """Waits for the app; False where it was told to stop and did not, as while Kafka is away.

    What it has not flushed then is refolded by the next owner, as after a kill.
    """
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((app, stopped), return_when=asyncio.FIRST_COMPLETED)
        done, _ = await asyncio.wait((app,), timeout=WORKER_STOP_S)
    except asyncio.CancelledError:
        app.cancel()
        await asyncio.wait((app,), timeout=WORKER_STOP_S)
        raise
    finally:
        stopped.cancel()
    if not done:
        logger.warning("Group coordinator did not answer; membership will time out")
        app.cancel()
        return False
    app.result()
    return True


async def wait_for(stopping: asyncio.Event, timeout_s: float) -> None:
    """Until it is told to stop, or so long."""
    try:
        await asyncio.wait_for(stopping.wait(), timeout_s)
    except TimeoutError:
        return
