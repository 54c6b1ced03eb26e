"""Waits for brokers that are away, watches them, and says why they cannot be used.

No role needs a broker to start: it waits, and says so. It gives up only where waiting cannot help:
refused credentials, a certificate that cannot be trusted, a mechanism that is not supported.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

from aiokafka.conn import (  # type: ignore[import-untyped]
    AIOKafkaConnection,
    collect_hosts,
    create_conn,
)
from aiokafka.errors import (  # type: ignore[import-untyped]
    AuthenticationFailedError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest  # type: ignore[import-untyped]

from brokers.backoff import Backoff
from brokers.errors import AWAY
from brokers.options import ClientOptions
from brokers.outages import Outage
from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.limits import KAFKA_ATTEMPT_MS, KAFKA_RETRY_FIRST_S, KAFKA_RETRY_MAX_S

KAFKA_WATCH_S: Final = 1.0  # how often a role asks whether Kafka is there
ERROR_CAUSES_MAX: Final = 8  # of a chain of errors that is searched for its first cause

T = TypeVar("T")

_CLIENTS_TEXT: Final = re.compile(r"(?:\[Error -?\d+\] )?(?P<name>\w+Error)(?:: (?P<text>.*))?$")
_GENERIC: Final = {
    "kafka": "Kafka's client failed",
    "kafka connection": "it closed the connection",
    "kafka timeout": "no answer in time",
}
"""Types of errors, in words, that say nothing beside a text; and what they say without one."""

_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[a-z ]+")


async def until_reached(
    attempt: Callable[[], Awaitable[T]],
    *,
    servers: str,
    outage: Outage | None = None,
    patience_s: float | None = None,
) -> T:
    """Repeats the attempt while brokers are away or not ready; the pauses grow to two seconds.

    Args:
        attempt: what to do; each of its requests is bounded by `KAFKA_ATTEMPT_MS`.
        servers: named in errors.
        outage: told while they are away; None: one of this call alone.
        patience_s: give up after it; None for never.

    Raises:
        ConfigurationError: waiting cannot help, or `patience_s` is over.
    """
    outage = outage or Outage(servers)
    loop = asyncio.get_running_loop()
    started_at, backoff = loop.time(), Backoff(KAFKA_RETRY_FIRST_S, KAFKA_RETRY_MAX_S)
    while True:
        try:
            reached = await attempt()
        except AWAY as error:
            failure = error
        else:
            outage.end()
            return reached
        refusal = _refusal(failure)
        if refusal:
            raise ConfigurationError(
                f"Expected Kafka at {servers} to accept us, but {refusal}: {describe(failure)}"
            ) from failure
        if patience_s is not None and loop.time() - started_at >= patience_s:
            raise ConfigurationError(
                f"Expected Kafka to answer at {servers}, got: {describe(failure)}. Start it, or"
                " name another server"
            ) from failure
        outage.begin(describe(failure))
        await backoff.wait()


async def insist(
    attempt: Callable[[], Awaitable[T]], backoff: Backoff, away: Callable[[Exception], None]
) -> T:
    """What the attempt gives, once it does not find brokers away.

    Args:
        backoff: says how long to wait after each that does; not reset.
        away: told each time.
    """
    while True:
        try:
            return await attempt()
        except AWAY as error:
            away(error)
        await backoff.wait()


async def watch(options: ClientOptions, outage: Outage) -> None:
    """Asks Kafka every KAFKA_WATCH_S whether it is there, until it is cancelled.

    The clients of a role reconnect by themselves, and report that only in their own log, once for
    each attempt of each connection. So this keeps a connection of its own.
    """
    connection: AIOKafkaConnection | None = None
    try:
        while True:
            try:
                connection = await _asked(options, connection)
            except AWAY as error:
                connection = None
                outage.begin(describe(error))
            else:
                outage.end()
            await asyncio.sleep(KAFKA_WATCH_S)
    finally:
        await _close(connection)


async def _asked(
    options: ClientOptions, connection: AIOKafkaConnection | None
) -> AIOKafkaConnection:
    """A connection over which a broker has just answered: this one, or a new one."""
    if connection is not None:
        try:
            await connection.send(MetadataRequest([]))
        except AWAY:
            await connection.close()  # that broker may be away, and others there
        else:
            return connection
    return await _connected(options)


async def check_access(options: ClientOptions) -> None:
    """Connects to the bootstrap servers until one lets us in, TLS and SASL included.

    A client of aiokafka would say only that it failed; this raises the reason.

    Raises:
        KafkaError, OSError, TimeoutError: none did; the last refusal where there was one.
    """
    await (await _connected(options)).close()


async def _connected(options: ClientOptions) -> AIOKafkaConnection:
    failure: Exception = KafkaError("there is no server to ask")
    settings: dict[str, Any] = {**options}
    for index, (host, port, _) in enumerate(collect_hosts(settings.pop("bootstrap_servers"))):
        connection: AIOKafkaConnection | None = None
        try:
            connection = await create_conn(
                host, port, request_timeout_ms=KAFKA_ATTEMPT_MS, **settings
            )
            # A listener with SASL lets anyone connect, but answers only whoever has logged in.
            await connection.send(MetadataRequest([]))
        except AWAY as error:
            if not index or _refusal(error):
                failure = error
        except BaseException:
            await _close(connection)
            raise
        else:
            return connection
        await _close(connection)
    raise failure


async def _close(connection: AIOKafkaConnection | None) -> None:
    if connection is not None:
        await connection.close()


def quiet_client() -> None:
    """Silences aiokafka's logger, unless ours is at DEBUG.

    It logs each failed attempt of each connection, some eighty lines a second while Kafka is away.
    A role logs once that it waits, and once that Kafka is back.
    """
    if logging.getLogger().level > logging.DEBUG:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def describe(error: BaseException) -> str:
    """One line with the error's first cause, which says more than its effects."""
    cause = list(_causes(error))[-1]
    text = cause_of(cause if str(cause) else error)
    if isinstance(cause, KafkaError):
        text = _without_type(text)
    hint = ""
    if isinstance(cause, asyncio.IncompleteReadError | ConnectionResetError | ssl.SSLEOFError):
        text = "it closed the connection"
        hint = " (is the security protocol that of its listener?)"
    elif isinstance(cause, TimeoutError):
        text = "no answer in time"
    elif text.startswith("Unable to bootstrap from"):
        text = "none of its servers answers"
    return text + hint


def _without_type(text: str) -> str:
    """An error of the client without its number; its type in words, where the text needs it."""
    found = _CLIENTS_TEXT.match(text)
    if found is None:
        return text
    name = " ".join(_WORD.findall(found["name"].removesuffix("Error"))).lower()
    if found["text"] and name in _GENERIC:
        return found["text"]
    return f"{name}: {found['text']}" if found["text"] else _GENERIC.get(name, name)


def _refusal(error: Exception) -> str:
    """Why waiting cannot help, or ""."""
    for cause in _causes(error):
        if isinstance(cause, SaslAuthenticationFailed | AuthenticationFailedError):
            return "it refused the SASL username or password"
        if isinstance(cause, UnsupportedSaslMechanismError):
            return "it does not offer the SASL mechanism"
        if isinstance(cause, IllegalSaslStateError):
            return "its listener does not use SASL"
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "its certificate cannot be trusted (see --kafka-ssl-cafile)"
        # A connection that ends within the handshake may be a broker that is going down.
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return "TLS failed"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(ERROR_CAUSES_MAX):
        if cause is None:
            return
        yield cause
        # Below a time-out is a cancellation, which says nothing.
        cause = None if isinstance(cause, TimeoutError) else cause.__cause__
