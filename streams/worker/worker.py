"""A worker: one Faust app after another, until it is told to stop.

Whatever ends an app (a broker that is away, a partition that another worker took, a full disk), the
worker leaves the group, waits, and starts a new app. Its tables then open from the table topic.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import Final

import msgspec

from brokers.availability import watch
from brokers.errors import KafkaError
from brokers.options import client_options
from brokers.outages import Outage
from brokers.settings import KafkaSettings
from brokers.topics import ensure_topics
from schemas.conditions import Conditions, Level, Part
from schemas.errors import (
    ConfigurationError,
    DataDirectoryInUseError,
    RepriseError,
    RowVersionError,
)
from schemas.limits import (
    WORKER_CLEAN_S,
    WORKER_FLUSH_S,
    WORKER_POLL_S,
    WORKER_RETRY_MAX_S,
    WORKER_RETRY_S,
    WORKER_SESSION_S,
    WORKER_SETTLED_S,
    WORKER_STOP_S,
)
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.worker.app import WorkerApp
from streams.worker.tables import PartitionTables

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
    RowVersionError,
    LoopSpoiledError,
)
"""Waiting does not repair these."""


class StreamsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker runs with.

    Attributes:
        data: the copies of its tables.
        metrics_host, metrics_port: where /health, /ready and /metrics answer; port None for
            nowhere, 0 for any.
        flush_s: how long records are gathered before they are folded and written.
        session_timeout_s: after this long without a heartbeat its partitions go to others.
    """

    kafka: KafkaSettings
    data: Path
    seed: int
    kernel: str | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    flush_s: float = WORKER_FLUSH_S
    session_timeout_s: float = WORKER_SESSION_S


class Worker:
    """Runs one app after another until told to stop; it must have its event loop to itself.

    Attributes:
        tables: those of the present app.
        conditions: what keeps records from them.
        restarts: how often an app ended before it was told to.
        crashes: how often Faust ended by itself, among them.
        app_errors: how often it was by an unexpected error.
    """

    def __init__(self, settings: StreamsSettings) -> None:
        """Raises ConfigurationError where the settings cannot be used."""
        self.settings = settings
        self.tables: PartitionTables | None = None
        self.conditions = Conditions(time.time, logger)
        self.conditions.set(Part.RECOVERY, "starting", "starting", Level.UNAVAILABLE, logged=False)
        self.restarts = 0
        self.crashes = 0
        self.app_errors = 0
        self._options = client_options(settings.kafka)
        self._outage = Outage(
            settings.kafka.bootstrap,
            "the tables stay as they are",
            conditions=self.conditions,
            level=Level.UNAVAILABLE,
        )
        self._stopping = asyncio.Event()

    @property
    def internal_errors(self) -> int:
        """Unexpected errors, of apps and of records."""
        return self.app_errors + (0 if self.tables is None else self.tables.internal_errors)

    def stop(self) -> None:
        """Lets `run` flush, commit, leave the group and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Works until stopped.

        Raises:
            ConfigurationError, DataDirectoryInUseError, RowVersionError, LoopSpoiledError: what
                waiting does not repair.
        """
        if not await self._ensure_topics():
            return
        pause_s = WORKER_RETRY_S
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                await self._run_app()
                return
            except _FATAL:
                raise
            except Exception as error:  # noqa: BLE001 -- logged there
                self._note_failure(error)
            self.restarts += 1
            if time.monotonic() - started > WORKER_SETTLED_S:
                pause_s = WORKER_RETRY_S
            await _wait(self._stopping, pause_s)
            pause_s = min(2 * pause_s, WORKER_RETRY_MAX_S)
            if not await self._ensure_topics():
                return

    def _note_failure(self, error: Exception) -> None:
        """Logs and shows why the app ended; it will be restarted."""
        problem = f"{type(error).__name__}: {error}"
        expected = isinstance(error, RepriseError | KafkaError | OSError)
        already_logged = expected and self.conditions.has(Part.KAFKA)
        level = logging.INFO if already_logged else logging.WARNING
        logger.log(level, "Worker failed, restarting: %s", problem, exc_info=not expected)
        self.app_errors += not expected
        reason = "app_failed" if expected else "internal_error"
        self.conditions.set(Part.WORKER, reason, problem, Level.UNAVAILABLE, logged=False)

    async def _ensure_topics(self) -> bool:
        """Whether the topics are there; False where it was told to stop before."""
        ensuring = asyncio.ensure_future(ensure_topics(self.settings.kafka, self._outage))
        stopped = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((ensuring, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ensuring.done():
            ensuring.cancel()
            return False
        ensuring.result()
        return True

    async def _run_app(self) -> None:
        settings = self.settings
        topics = settings.kafka.topics
        tables = PartitionTables(
            settings.data,
            self._options,
            events_topic=topics.events.name,
            table_topic=topics.table.name,
            make_fold=lambda: Fold(open_kernel(settings.seed, name=settings.kernel)),
        )
        app = WorkerApp(
            self._options,
            tables,
            group=settings.kafka.group("streams"),
            topic=topics.events.name,
            flush_s=settings.flush_s,
            session_timeout_s=settings.session_timeout_s,
        )
        self.tables = tables
        self.conditions.clear(Part.RECOVERY)
        self.conditions.clear(Part.WORKER)
        others = asyncio.all_tasks()
        watching = asyncio.create_task(watch(self._options, self._outage))
        running = asyncio.ensure_future(app.run(self._stopping))
        try:
            if await _ended_in_time(running, self._stopping):
                await tables.close()
        except BaseException:
            await tables.close()
            raise
        finally:
            watching.cancel()
            await asyncio.wait((watching,))
            if app.outcome.crashed_by is not None:
                self.crashes += 1
                await _clean(app, others)


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
    end = time.monotonic() + WORKER_CLEAN_S
    while not app.outcome.has_left and time.monotonic() < end:  # noqa: ASYNC110 -- another thread
        await asyncio.sleep(WORKER_POLL_S)  # the broker answers its farewell in its own time
    if left or not app.outcome.has_left:
        consumer = "has ended" if app.outcome.has_left else "has not ended"
        raise LoopSpoiledError(
            f"Faust crashed by {app.outcome.crashed_by!r}, and {len(left)} of its tasks do not end;"
            f" its consumer {consumer}"
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


async def _wait(stopping: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), timeout_s)
    except TimeoutError:
        return
