"""`reprise serve`: a query replica, made of its parts.

Threads: `kafka` reads the table and the registry, writes registrations, and writes and follows the
logs that rooms declare (`reprise.logs`); the main thread answers HTTP from the kernel that the
other one loads. With `acting.on`, `act` acts on advice. With `--history`, `history` folds the log
itself into tables whose past it keeps (`streams.history.follower`).
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final

from bridge.engine_http.keys import ENGINE_KEYS
from bridge.membership.registrar import check_addresses
from bridge.wire import KINDS
from brokers.availability import quiet_client
from brokers.options import ClientOptions, client_options
from brokers.outages import Outage
from brokers.topics import ensure_topics
from doctor.watch import OutcomeWatch
from logs.declaration import ReplicaParts
from logs.topic_writer import stop_writers
from query_api.http.errors import RequestError
from query_api.replica.registry_writer import RegistryWriter
from query_api.replica.replica import ROLE, Replica
from query_api.replica.snapshot import Topic
from query_api.replica.topic_reader import TopicReader, kafka_thread
from reprise import rooms
from reprise.application import create_app
from reprise.logs import LogRuns, declared_logs
from reprise.metrics.roles import (
    history_collector,
    http_collector,
    replica_collector,
    tracing_collector,
)
from reprise.registered_engines import open_tokenizer
from reprise.roles.door import open_door
from reprise.roles.grpc_server import beside_grpc
from reprise.roles.history import TopicHistory
from reprise.roles.http_server import Server, guard_of
from reprise.roles.leaving import ReplicaLeave
from reprise.roles.role_settings import ServeSettings
from reprise.roles.rpc_server import bind_rpc, rpc_doors
from reprise.tracing.opening import Tracing, tracing_of
from routing.decisions.router import Router
from routing.log.declaration import ROUTING
from routing.log.replica import ReplicaRouting
from schemas.clock import REAL_CLOCK
from schemas.conditions import Conditions
from schemas.errors import ConfigurationError, RegistrationError, RepriseError, StorageError
from schemas.registration import Registration
from schemas.setting import changed
from schemas.tracing import NO_TRACER, Tracer
from streams.audit.log import ANSWERS
from streams.audit.topic import AnswersWriter
from streams.history.follower import HistoryFollower
from streams.kernel import open_kernel
from streams.kernel.interface import Kernel
from streams.table.rows.reader import RowReader
from streams.table.scope_states import Contradictions

if TYPE_CHECKING:
    from reprise.rooms import ReplicaLmcache

REGISTER_RETRY_S: Final = 1.0  # between attempts to register what the configuration file names

logger = logging.getLogger(__name__)


class ReplicaService:
    """A replica with its reader, and what a configuration file has it register."""

    def __init__(
        self,
        settings: ServeSettings,
        registrations: Sequence[Registration] = (),
        *,
        when_refused: Callable[[ConfigurationError], None],
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """`tracer` makes the spans of commands.

        Raises:
        ConfigurationError: the settings cannot be used.
        StorageError: what is kept of the past cannot be opened.
        """
        kafka = settings.kafka
        options = client_options(kafka)
        partitions = {
            Topic.TABLE: kafka.topics.table.partitions,
            Topic.REGISTRY: kafka.topics.registry.partitions,
        }

        self._settings = settings
        self._registrations = registrations
        conditions = ENGINE_KEYS.conditions = Conditions(
            REAL_CLOCK.unix, logging.getLogger(Replica.__module__)
        )
        parts = ReplicaParts(kafka, options, conditions, REAL_CLOCK, settings)
        self.logs = LogRuns({one: one.replica(parts) for one in declared_logs()})
        answers: AnswersWriter | None = self.logs[ANSWERS]
        routing: ReplicaRouting = self.logs[ROUTING]
        self.audit_queue = None if answers is None else answers.source.queue
        self.replica = Replica(self._empty_table, partitions, conditions)
        self.router = Router(
            self.replica, routing.queue, routing.live, settings.routing, shares_log=True
        )
        self._thread = kafka_thread()
        self._reader = TopicReader(
            kafka,
            options,
            self.replica,
            prepare=self._prepare,
            when_refused=when_refused,
        )
        self.registry = RegistryWriter(
            kafka,
            options,
            self.replica,
            self._thread,
            read_registry=self._reader.read_registry,
            check=check_addresses,
            kinds=KINDS,
            on_unregistered=self.router.forget,
        )
        self.lmcache = self._open_lmcache(options, tracer)
        self.outcomes = OutcomeWatch(
            self.replica, self.router, self.replica.conditions, on_fault=self._count_fault
        )
        self.replica.metrics.register(replica_collector(self.replica, self.logs, self.lmcache))
        self._follower = self._open_history(options)
        self.history = None if self._follower is None else TopicHistory(self._follower)
        routing.live.tell_contradictions(self._contradict)

    def _empty_kernel(self) -> Kernel:
        return open_kernel(self._settings.seed, name=self._settings.kernel)

    def _empty_table(self) -> RowReader:
        kernel = self._empty_kernel()
        if self.audit_queue is not None:
            kernel.audit_into(self.audit_queue)
        return RowReader(kernel, has_registry=True)

    def _open_lmcache(self, options: ClientOptions, tracer: Tracer) -> "ReplicaLmcache | None":
        room, settings = rooms.lmcache(), self._settings
        if room is None:
            return None
        lmcache = room.replica(settings.kafka, options, self._thread, tracer)
        if settings.acting.is_on:
            lmcache.act(self.replica, self.router, settings.acting)
        return lmcache

    def _open_history(self, options: ClientOptions) -> HistoryFollower | None:
        settings, events = self._settings, self._settings.kafka.topics.events
        if settings.history is None:
            return None
        follower = HistoryFollower(
            settings.history,
            options,
            topic=events.name,
            partitions=events.partitions,
            make_kernel=self._empty_kernel,
            bytes_max=settings.history_bytes,
            conditions=self.replica.conditions,
            prepare=self._prepare,
        )
        self.replica.metrics.register(history_collector(follower))
        return follower

    def _contradict(self, found: Contradictions) -> None:
        self.replica.contradict(found)
        if self.history is not None:
            self.history.contradict(found)

    def _count_fault(self) -> None:
        self.replica.internal_errors += 1

    def start(self) -> None:
        """See `reprise.roles.service.Service`."""
        if self._follower is not None:
            self._follower.start()
        self._thread.start(self._reader.run())
        for log in self.logs.running():
            log.start(self._thread)
        self.outcomes.start()
        if self.lmcache is not None:
            self.lmcache.start()
        for registration in self._registrations:
            done = self._thread.run(self._register(registration))
            done.add_done_callback(partial(_log_refusal, registration))

    def stop(self) -> None:
        """See `reprise.roles.service.Service`."""
        self.outcomes.stop()
        if self.lmcache is not None:
            self.lmcache.stop()
        if self._follower is not None:
            self._follower.begin_stop()
        stop_writers(self._thread, [log.writer for log in self.logs.running()])
        self._thread.stop()
        if self._follower is not None:
            self._follower.stop()

    async def _prepare(self) -> None:
        """Waits for the topics."""
        kafka = self._settings.kafka
        meanwhile = "answers say `stale`" if self.replica.ready else "nothing is answered"
        conditions = self.replica.conditions
        await ensure_topics(kafka, Outage(kafka.bootstrap, meanwhile, conditions=conditions))

    async def _register(self, registration: Registration) -> None:
        """Writes a registration where it is missing, or restates it, as long as Kafka is away."""
        while True:
            try:
                await self.registry.write(registration, restate=True)
                return
            except (RequestError, StorageError):  # not read yet, or not there
                await asyncio.sleep(REGISTER_RETRY_S)


def _log_refusal(registration: Registration, done: "Future[None]") -> None:
    if done.cancelled():
        return
    error = done.exception()
    if isinstance(error, RegistrationError):
        logger.warning(
            "Cannot register the configured publisher %s: %s. Correct the file, or POST /register",
            *(registration.service_key, error),
        )
    elif error is not None:
        logger.error(
            "Cannot register the configured publisher %s; POST /register it, or start again",
            registration.service_key,
            exc_info=error,
        )


def serve_replica(
    settings: ServeSettings,
    registrations: Sequence[Registration] = (),
    *,
    when_serving: Callable[[str], None] = lambda base_url: None,
) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        registrations: publishers to put into the registry where they are missing, and to restate.
        when_serving: called with the base URL once requests are accepted; `/ready` comes later.

    Raises:
        ConfigurationError: the address cannot be bound, Kafka or its topics cannot be used, or
            spans not be sent as is asked for.
        StorageError: what is kept of the past cannot be opened.
    """
    with tracing_of(os.environ, ROLE) as tracing:
        _serve(settings, registrations, tracing, when_serving)


def _serve(
    settings: ServeSettings,
    registrations: Sequence[Registration],
    tracing: Tracing,
    when_serving: Callable[[str], None],
) -> None:
    quiet_client()
    guard = guard_of(settings)
    server = Server(settings.host, settings.port, settings.tls)
    refusals: list[RepriseError] = []

    def refuse(error: ConfigurationError) -> None:
        refusals.append(error)
        server.end()

    try:
        settings = changed(settings, port=server.port)
        service = ReplicaService(
            settings, registrations, when_refused=refuse, tracer=tracing.tracer
        )
        service.replica.metrics.register(http_collector(server.connections))
        service.replica.metrics.register(tracing_collector(tracing.counts))
        tokenizer = open_tokenizer(settings.tokens, service.replica, service.replica.conditions)
        door = open_door(
            settings, service.replica, service.registry, service.router, tokenizer, guard
        )
        rpc = bind_rpc(settings)
        beside = beside_grpc(service, service.replica, settings, tracing.tracer)
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
    lmcache = service.lmcache
    app = create_app(
        service.replica,
        service.registry,
        settings=settings.http,
        history=service.history,
        audit=service.audit_queue,
        router=service.router,
        tokenizer=tokenizer,
        commands=None if lmcache is None else lmcache.commands,
        acting=None if lmcache is None else lmcache.actor,
        gateway=None if door is None else door.gateway,
        guard=guard,
        tracer=tracing.tracer,
    )
    leaving = ReplicaLeave(settings.leave, server.port) if settings.leave is not None else None
    doors = () if door is None else (door,)
    server.run(
        app,
        beside,
        when_serving=when_serving,
        leaving=leaving,
        doors=(*doors, *rpc_doors(rpc, app, service.replica, settings)),
    )
    if refusals:
        raise refusals[0]
