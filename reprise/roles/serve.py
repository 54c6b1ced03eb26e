"""`reprise serve`: a query replica, made of its parts.

Threads: `kafka` reads the table and the registry and writes registrations; the main thread answers
HTTP from the kernel that the other one loads.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import msgspec

from bridge.sockets.endpoints import check_endpoint
from bridge.wire import KINDS
from brokers.availability import quiet_client
from brokers.options import client_options
from brokers.outages import Outage
from brokers.settings import KafkaSettings
from brokers.topics import ensure_topics
from query_api.http.app import create_app
from query_api.http.errors import RequestError
from query_api.http.wire import Wire
from query_api.replica.registry_writer import RegistryWriter
from query_api.replica.replica import Replica
from query_api.replica.snapshot import Topic
from query_api.replica.topic_reader import TopicReader
from reprise.metrics.roles import http_collector, replica_collector
from reprise.roles.http_server import Server
from reprise.settings import DEFAULT_HOST, DEFAULT_PORT, DEFAULT_SEED
from schemas.errors import ConfigurationError, RegistrationError, RepriseError, StorageError
from schemas.limits import REGISTER_RETRY_S
from schemas.registration import Registration
from streams.kernel import open_kernel
from streams.table.rows.reader import RowReader

logger = logging.getLogger(__name__)


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `reprise serve` runs with.

    Attributes:
        kafka: the brokers and the topics.
        seed: of the prefix hash, u64; the same for every role.
        kernel: "rust", "reference", or None for the fastest there is.
        only_exact: whether queries leave out instances that are not `exact`.
        default_wire: see `query_api.http.app.create_app`.
    """

    kafka: KafkaSettings
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    seed: int = DEFAULT_SEED
    kernel: str | None = None
    only_exact: bool = False
    default_wire: Wire = Wire.JSON


class ReplicaService:
    """A replica with its reader, and what a configuration file has it register."""

    def __init__(
        self,
        settings: ServeSettings,
        registrations: Sequence[Registration] = (),
        *,
        when_refused: Callable[[ConfigurationError], None],
    ) -> None:
        """Raises ConfigurationError where the settings cannot be used."""
        kafka = settings.kafka
        options = client_options(kafka)
        partitions = {
            Topic.TABLE: kafka.topics.table.partitions,
            Topic.REGISTRY: kafka.topics.registry.partitions,
        }

        def make_table() -> RowReader:
            kernel = open_kernel(settings.seed, name=settings.kernel)
            return RowReader(kernel, has_registry=True)

        self.replica = Replica(make_table, partitions)
        self.replica.metrics.register(replica_collector(self.replica))
        self._reader = TopicReader(
            kafka,
            options,
            self.replica,
            prepare=partial(self._prepare, kafka),
            when_refused=when_refused,
        )
        self.registry = RegistryWriter(
            kafka, options, self.replica, self._reader, check=_check_endpoints, kinds=KINDS
        )
        self._registrations = registrations

    def start(self) -> None:
        """See `reprise.roles.http_server.Service`."""
        self._reader.start()
        for registration in self._registrations:
            done = self._reader.run(self._register(registration))
            done.add_done_callback(partial(_log_refusal, registration))

    def stop(self) -> None:
        """See `reprise.roles.http_server.Service`."""
        self._reader.stop()

    async def _prepare(self, kafka: KafkaSettings) -> None:
        """Waits for the topics."""
        meanwhile = "answers say `stale`" if self.replica.ready else "nothing is answered"
        conditions = self.replica.conditions
        await ensure_topics(kafka, Outage(kafka.bootstrap, meanwhile, conditions=conditions))

    async def _register(self, registration: Registration) -> None:
        """Writes a registration where it is missing, however long Kafka is away."""
        while True:
            try:
                await self.registry.write(registration)
                return
            except (RequestError, StorageError):  # not read yet, or not there
                await asyncio.sleep(REGISTER_RETRY_S)


def _check_endpoints(registration: Registration) -> None:
    check_endpoint(registration.endpoint)


def _log_refusal(registration: Registration, done: "Future[None]") -> None:
    if done.cancelled():
        return
    error = done.exception()
    if isinstance(error, RegistrationError):
        logger.warning(
            "Configured publisher %s was not registered: %s", registration.service_key, error
        )
    elif error is not None:
        logger.error(
            "Cannot register configured publisher %s", registration.service_key, exc_info=error
        )


def serve_replica(
    settings: ServeSettings,
    registrations: Sequence[Registration] = (),
    *,
    when_serving: Callable[[str], None] = lambda base_url: None,
) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        settings: what to run with.
        registrations: publishers to put into the registry where they are missing.
        when_serving: called with the base URL once requests are accepted; `/ready` comes later.

    Raises:
        ConfigurationError: the address cannot be bound, or Kafka or its topics cannot be used.
    """
    quiet_client()
    server = Server(settings.host, settings.port)
    refusals: list[RepriseError] = []

    def refuse(error: ConfigurationError) -> None:
        refusals.append(error)
        server.end()

    try:
        service = ReplicaService(settings, registrations, when_refused=refuse)
        service.replica.metrics.register(http_collector(server.connections))
    except BaseException:
        server.close()
        raise
    logger.info(
        "Listening on %s, reading %s from Kafka at %s, %s kernel",
        server.base_url,
        settings.kafka.topics.table.name,
        settings.kafka.bootstrap,
        service.replica.kernel.name,
    )
    app = create_app(
        service.replica,
        service.registry,
        default_wire=settings.default_wire,
        only_exact=settings.only_exact,
    )
    server.run(app, service, when_serving=when_serving)
    if refusals:
        raise refusals[0]
