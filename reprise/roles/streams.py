"""`reprise streams`: a worker that folds the partitions of the events that its group gives it.

It needs nothing but the brokers. Whatever ends its Faust app, a broker that is away, a partition
that another worker took, a full disk, it leaves the group, waits and begins anew; the tables are
where the topic is. Two workers on one machine need two data directories.
"""

import asyncio
import contextlib
import logging
import signal
import time
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from brokers.availability import quiet_client, watch
from brokers.errors import KafkaError
from brokers.options import client_options
from brokers.outages import Outage
from brokers.settings import KafkaSettings
from brokers.topics import ensure_topics
from reprise.metrics.roles import worker_metrics
from reprise.monitor import listen, monitor_app, monitored_beside
from reprise.settings import DEFAULT_SEED
from schemas.conditions import Conditions, Level, Part
from schemas.errors import (
    ConfigurationError,
    DataDirectoryInUseError,
    RepriseError,
    RowVersionError,
)
from schemas.limits import SHUTDOWN_S
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.worker.app import quiet_logs, run_app
from streams.worker.tables import EventsReader, PartitionTables

logger = logging.getLogger(__name__)

ROLE: Final = "streams"
FLUSH_S: Final = 0.05
SESSION_TIMEOUT_S: Final = 10.0
RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 5.0
SETTLED_S: Final = 30.0
"""An app that ran for this long has not failed at its start: the next pause is short again."""

STOP_S: Final = SHUTDOWN_S - 2.0
"""For the last flush and commit, and for leaving the group."""

_FATAL: Final = (ConfigurationError, DataDirectoryInUseError, RowVersionError)
"""Waiting does not mend these."""


class StreamsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker runs with.

    Attributes:
        data: the copies of its tables.
        metrics_host, metrics_port: where /health, /ready and /metrics answer; port None for
            nowhere, 0 for any.
        flush_s: how long records are gathered before they are folded and written.
        session_timeout_s: after this long without a sign of life its partitions go to others.
    """

    kafka: KafkaSettings
    data: Path
    seed: int = DEFAULT_SEED
    kernel: str | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    flush_s: float = FLUSH_S
    session_timeout_s: float = SESSION_TIMEOUT_S


class Worker:
    """Runs one app after another until told to stop. `tables` are those of the present one."""

    def __init__(self, settings: StreamsSettings) -> None:
        """Raises ConfigurationError where the settings cannot be used."""
        self.settings = settings
        self.tables: PartitionTables | None = None
        self.conditions = Conditions(time.time, logger)
        self.conditions.set(Part.RECOVERY, "starting", "starting", Level.UNAVAILABLE, logged=False)
        self.restarts = 0
        self.internal_errors = 0
        self._options = client_options(settings.kafka)
        self._outage = Outage(
            settings.kafka.bootstrap,
            "the tables stay as they are",
            conditions=self.conditions,
            level=Level.UNAVAILABLE,
        )
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Lets `run` flush, commit, leave the group and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Works until stopped.

        Raises:
            ConfigurationError, DataDirectoryInUseError, RowVersionError: what waiting cannot mend.
        """
        if not await self._ensure_topics():
            return
        pause_s = RETRY_FIRST_S
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
            if time.monotonic() - started > SETTLED_S:
                pause_s = RETRY_FIRST_S
            await _wait(self._stopping, pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
            if not await self._ensure_topics():
                return

    def _note_failure(self, error: Exception) -> None:
        """The app has ended; it will be started again."""
        problem = f"{type(error).__name__}: {error}"
        foreseen = isinstance(error, RepriseError | KafkaError | OSError)
        said = foreseen and self.conditions.has(Part.KAFKA)
        level = logging.INFO if said else logging.WARNING
        logger.log(level, "Worker failed, restarting: %s", problem, exc_info=not foreseen)
        self.internal_errors += not foreseen
        reason = "app_failed" if foreseen else "internal_error"
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
        reader = EventsReader(
            tables,
            self._options,
            group=settings.kafka.group("streams"),
            topic=topics.events.name,
            flush_s=settings.flush_s,
            session_timeout_s=settings.session_timeout_s,
        )
        self.tables = tables
        self.conditions.clear(Part.RECOVERY)
        self.conditions.clear(Part.WORKER)
        watching = asyncio.create_task(watch(self._options, self._outage))
        app = run_app(
            self._options,
            group=settings.kafka.group("streams"),
            work=partial(reader.run, self._stopping),
        )
        try:
            if await _ended_in_time(asyncio.ensure_future(app), self._stopping):
                await tables.close()
        except BaseException:
            await tables.close()
            raise
        finally:
            watching.cancel()


async def _ended_in_time(app: "asyncio.Future[None]", stopping: asyncio.Event) -> bool:
    """Waits for the app; False where it was told to stop and did not, as while Kafka is away.

    What it has not flushed then is folded again by the next owner, as after a kill.
    """
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((app, stopped), return_when=asyncio.FIRST_COMPLETED)
        done, _ = await asyncio.wait((app,), timeout=STOP_S)
    except asyncio.CancelledError:
        app.cancel()
        await asyncio.wait((app,), timeout=STOP_S)
        raise
    finally:
        stopped.cancel()
    if not done:
        logger.warning("Leaving the group without its coordinator; it will notice")
        app.cancel()
        return False
    app.result()
    return True


async def _wait(stopping: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), timeout_s)
    except TimeoutError:
        return


def _fields(worker: Worker) -> dict[str, object]:
    """What `/health` of a worker adds: the partitions that it has, with the last folded offset."""
    owned = {} if worker.tables is None else dict(worker.tables.owned)
    return {
        "partitions": {
            str(partition): one.table.fold.offset for partition, one in sorted(owned.items())
        },
    }


def work(settings: StreamsSettings) -> None:
    """Works until SIGINT or SIGTERM.

    Raises:
        ConfigurationError, DataDirectoryInUseError, RowVersionError: what waiting cannot mend.
    """
    quiet_client()
    quiet_logs(logging.getLogger().level)
    asyncio.run(_work(settings))


async def _work(settings: StreamsSettings) -> None:
    worker = Worker(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, worker.stop)
    with contextlib.ExitStack() as monitor:
        if settings.metrics_port is not None:
            listening = listen(settings.metrics_host, settings.metrics_port)
            metrics = worker_metrics(worker)
            app = monitor_app(ROLE, worker.conditions, metrics, partial(_fields, worker))
            monitor.enter_context(monitored_beside(app, listening))
        await worker.run()
