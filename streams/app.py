"""The Faust app of a worker: who owns which partition, and where each is read on.

Faust is started from code, without its web server, and declares no topics. It keeps nothing: the
tables are `streams.agents.PartitionTables`, so an app that fails is thrown away and another begun.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import faust
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from yarl import URL

from schemas.kafka_clients import ClientOptions
from streams.agents import PartitionTables, add_agent

logger = logging.getLogger(__name__)

REBALANCE_S: Final = 300.0
"""How long the members of the group may take to open their tables."""

REQUEST_S: Final = 40.0
STOP_S: Final = 15.0


class TableConsumer(driver.Consumer):
    """Reads on from what the tables cover, whatever offset the group has committed."""

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """See `faust.transport.consumer.Consumer`, which resets its own positions to the answer."""
        app = self.app
        assert isinstance(app, WorkerApp)
        assigned = self.assignment()
        try:
            await app.tables_now().assign(tp.partition for tp in assigned)
        except Exception as error:
            app.tables_now().fail(error)
            raise
        positions: dict[TP, int] = {}
        for tp in assigned:
            offset = app.tables_now().next_offset(tp.partition)
            if offset is not None:
                await self._seek(tp, offset)
                positions[tp] = offset
        return positions


class TableTransport(driver.Transport):
    """Faust's transport, with our consumer."""

    Consumer = TableConsumer


class WorkerApp(faust.App):
    """An app over the tables of this worker."""

    tables_now: Callable[[], PartitionTables]

    def _new_transport(self) -> TableTransport:
        return TableTransport(self.conf.broker_consumer, self)


def make_app(
    options: ClientOptions,
    *,
    group: str,
    events_topic: str,
    events_partitions: int,
    tables: PartitionTables,
    flush_s: float,
    session_timeout_s: float,
) -> WorkerApp:
    """An app that folds the events of the partitions it is assigned. To be used once."""
    app = WorkerApp(
        group,
        broker=[URL(f"kafka://{server}") for server in options["bootstrap_servers"]],
        broker_credentials=_credentials(options),
        broker_session_timeout=session_timeout_s,
        broker_heartbeat_interval=session_timeout_s / 4,
        broker_rebalance_timeout=REBALANCE_S,
        broker_max_poll_interval=2 * REBALANCE_S,
        broker_request_timeout=REBALANCE_S,
        broker_check_crcs=True,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=8 * 2**20,
        processing_guarantee="at_least_once",
        store="memory://",
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        stream_wait_empty=False,
        web_enabled=False,
        autodiscover=False,
        origin="streams",
    )
    app.tables_now = lambda: tables
    topic = app.topic(
        events_topic,
        partitions=events_partitions,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        internal=False,
        allow_empty=True,
    )
    add_agent(app, topic, lambda: tables, flush_s=flush_s)
    _connect_ownership(app, tables)
    return app


def _connect_ownership(app: faust.App, tables: PartitionTables) -> None:
    # Faust keeps weak references to receivers otherwise.
    @app.on_partitions_revoked.connect(weak=False)
    async def revoked(_: faust.App, partitions: set[TP], **kwargs: Any) -> None:
        await tables.settle()


async def run_app(app: faust.App, tables: PartitionTables, stopping: asyncio.Event) -> None:
    """Runs the app until it is to stop or has failed; leaves the group in both cases.

    Raises:
        Exception: why it failed.
    """
    try:
        await app.start()
        await _until_any(stopping, tables, app)
    finally:
        await asyncio.wait_for(app.stop(), STOP_S)
    if tables.failure.done() and not stopping.is_set():
        raise tables.failure.result()
    if app.crash_reason is not None and not stopping.is_set():
        raise app.crash_reason


async def _until_any(stopping: asyncio.Event, tables: PartitionTables, app: faust.App) -> None:
    waits: set[asyncio.Future[Any]] = {
        asyncio.ensure_future(stopping.wait()),
        asyncio.ensure_future(asyncio.shield(tables.failure)),
        asyncio.ensure_future(app.wait_until_stopped()),
        asyncio.ensure_future(app._crashed.wait()),  # noqa: SLF001
    }
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _credentials(options: ClientOptions) -> Any:
    protocol, context = options["security_protocol"], options["ssl_context"]
    if protocol.startswith("SASL_"):
        return faust.SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            mechanism=options["sasl_mechanism"],
            ssl_context=context,
        )
    return faust.SSLCredentials(context) if protocol == "SSL" else None


class _CancelledActors(logging.Filter):
    """Faust reports every actor that a rebalance cancels as crashed; none of them is."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "CancelledError" not in record.getMessage()


def quiet_logs(level: int) -> None:
    """Lets the libraries say what is wrong, and nothing in the steady state."""
    for name in ("aiokafka", "faust", "mode"):
        logging.getLogger(name).setLevel(max(level, logging.ERROR))
    for name in ("faust.agents.agent", "mode.services"):
        logging.getLogger(name).addFilter(_CancelledActors())
