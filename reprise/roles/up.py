"""`reprise up`: the service in one process, made of its parts."""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from reprise.application import create_app
from reprise.embedded.service import EmbeddedService
from reprise.embedded.view import ROLE
from reprise.metrics.roles import embedded_collector, http_collector, tracing_collector
from reprise.registered_engines import open_tokenizer
from reprise.roles.coordinator import WithCoordinator, coordinator_of
from reprise.roles.door import open_door
from reprise.roles.grpc_server import beside_grpc
from reprise.roles.http_server import Server, guard_of
from reprise.roles.rpc_server import bind_rpc, rpc_doors
from reprise.settings import Settings
from reprise.tracing.opening import Tracing, tracing_of
from schemas.errors import ConfigurationError
from schemas.registration import Registration
from storage.faults import PID_FILE

logger = logging.getLogger(__name__)


def run_up(
    settings: Settings,
    registrations: Sequence[Registration] = (),
    *,
    forgets: Callable[[Registration], bool] | None = None,
    when_serving: Callable[[str], None] = lambda base_url: None,
    when_stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serves the embedded service until SIGINT or SIGTERM.

    Args:
        registrations: publishers to follow beside those in the log.
        forgets: whom of those in the log to unregister at once, unfollowed; None: nobody.
        when_serving: called with the base URL once requests are accepted.
        when_stopping: called as soon as a signal comes, before requests are refused.

    Raises:
        ConfigurationError: the address cannot be bound, or spans not be sent as is asked for.
        StorageError: the data directory cannot be opened, or its log is damaged.
    """
    with tracing_of(os.environ, ROLE) as tracing:
        _serve(settings, registrations, forgets, tracing, when_serving, when_stopping)


def _serve(
    settings: Settings,
    registrations: Sequence[Registration],
    forgets: Callable[[Registration], bool] | None,
    tracing: Tracing,
    when_serving: Callable[[str], None],
    when_stopping: Callable[[], None],
) -> None:
    guard = guard_of(settings)
    server = Server(settings.host, settings.port, settings.tls)
    try:
        service = EmbeddedService(settings, on_damage=server.end, tracer=tracing.tracer)
        metrics = service.view.metrics
        metrics.register(embedded_collector(service))
        metrics.register(http_collector(server.connections))
        metrics.register(tracing_collector(tracing.counts))
    except BaseException:
        server.close()
        raise
    tokenizer = open_tokenizer(settings.tokens, service.view, service.conditions)
    try:
        door = open_door(settings, service.view, service.registry, service.router, tokenizer, guard)
        rpc = bind_rpc(settings)
        beside = beside_grpc(service, service.view, settings, tracing.tracer)
        coordinator = coordinator_of(service.intake.lmcache)
        if coordinator is not None:
            beside = WithCoordinator(beside, coordinator)
    except ConfigurationError:
        service.stop()
        server.close()
        raise
    if forgets is not None:
        service.registry.forget_at_start(forgets)
    service.registry.register_configured(registrations)
    pid_file = settings.data / PID_FILE
    _note_pid(pid_file)
    logger.info(
        "Listening on %s, data in %s, %s kernel",
        server.base_url,
        settings.data,
        service.view.kernel.name,
    )
    lmcache = service.lmcache
    app = create_app(
        service.view,
        service.registry,
        settings=settings.http,
        history=service.data.history,
        audit=service.audit_queue,
        workers=lmcache,
        router=service.router,
        tokenizer=tokenizer,
        commands=None if lmcache is None else lmcache.commands,
        acting=None if lmcache is None else lmcache.actor,
        gateway=None if door is None else door.gateway,
        guard=guard,
        tracer=tracing.tracer,
    )
    doors = () if door is None else (door,)
    server.run(
        app,
        beside,
        when_serving=when_serving,
        when_stopping=when_stopping,
        doors=(*doors, *rpc_doors(rpc, app, service.view, settings)),
    )
    with suppress(OSError):
        pid_file.unlink()
    if service.damage is not None:
        raise service.damage


def _note_pid(path: Path) -> None:
    """For people and scripts that end this process and no other."""
    try:
        path.write_text(f"{os.getpid()}\n")
    except OSError as error:
        logger.warning("Cannot write the process id to %s: %s; going on without", path, error)
