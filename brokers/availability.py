"""Reaching Kafka: the clients' options from the settings, and waiting for a broker that is away.

No role needs a broker to start: it waits, and says so. Only what waiting cannot mend ends it:
refused credentials, a certificate that cannot be trusted, a mechanism that is not spoken.
"""

import asyncio
import logging
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

from brokers.options import ClientOptions, Secret
from brokers.outages import Outage
from brokers.settings import KafkaSettings
from schemas.errors import ConfigurationError

ATTEMPT_MS: Final = 5_000
"""How long one connection or request of the start may take."""

_SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_ASK_S: Final = 1.0
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0
_CAUSES_MAX: Final = 8

T = TypeVar("T")


def client_options(settings: KafkaSettings) -> ClientOptions:
    """The keyword arguments of every aiokafka client; reads the TLS files.

    Raises:
        ConfigurationError: a TLS file cannot be used, or the SASL settings are not ones that the
            client can use.
    """
    sasl = settings.security_protocol.startswith("SASL_")
    if sasl and settings.sasl_mechanism not in _SASL_MECHANISMS:
        raise ConfigurationError(
            f"Expected a SASL mechanism of {', '.join(_SASL_MECHANISMS)},"
            f" got: {settings.sasl_mechanism}"
        )
    if sasl != bool(settings.sasl_username and settings.sasl_password):
        raise ConfigurationError(
            "Expected a SASL username and password with security protocol SASL_..."
            f" {'' if sasl else 'only'}, got {'none or one of them' if sasl else 'them'}"
            f" with: {settings.security_protocol}"
        )
    return ClientOptions(
        bootstrap_servers=settings.servers,
        security_protocol=settings.security_protocol,
        ssl_context=_ssl_context(settings) if settings.uses_tls else None,
        sasl_mechanism=settings.sasl_mechanism or "PLAIN",
        sasl_plain_username=settings.sasl_username if sasl else None,
        sasl_plain_password=Secret(settings.sasl_password) if sasl else None,
    )


def _ssl_context(settings: KafkaSettings) -> ssl.SSLContext:
    named = settings.ssl_cafile or "the system's certificates"
    try:
        context = ssl.create_default_context(cafile=settings.ssl_cafile or None)
        if settings.ssl_certfile:
            named = f"{settings.ssl_certfile} and {settings.ssl_keyfile}"
            # An encrypted key would have OpenSSL ask on the terminal.
            context.load_cert_chain(
                settings.ssl_certfile, settings.ssl_keyfile, password=_refuse_password
            )
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigurationError(f"Expected TLS files in PEM, got {named}: {error}") from error
    return context


def _refuse_password() -> str:
    raise ValueError("the key is encrypted: give one without a passphrase")


async def until_reached(
    attempt: Callable[[], Awaitable[T]],
    *,
    servers: str,
    outage: Outage | None = None,
    patience_s: float | None = None,
) -> T:
    """Repeats the attempt while brokers are away or not ready; the pauses grow to two seconds.

    Args:
        attempt: what to do; each of its requests is bounded by `ATTEMPT_MS`.
        servers: named in errors.
        outage: what says so in the log; one of this call's own where it is None.
        patience_s: after that the attempt's own failure is raised; None for never.

    Raises:
        ConfigurationError: what came cannot be mended by waiting, or the patience is over.
    """
    outage = outage or Outage(servers)
    loop = asyncio.get_running_loop()
    begun, pause_s = loop.time(), _PAUSE_FIRST_S
    while True:
        try:
            reached = await attempt()
        except (KafkaError, OSError, TimeoutError) as error:
            failure = error
        else:
            outage.end()
            return reached
        refusal = _refusal(failure)
        if refusal:
            raise ConfigurationError(
                f"Expected Kafka at {servers} to accept us, but {refusal}: {describe(failure)}"
            ) from failure
        if patience_s is not None and loop.time() - begun >= patience_s:
            raise ConfigurationError(
                f"Expected Kafka to answer at {servers}, got: {describe(failure)}"
            ) from failure
        outage.note(describe(failure))
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


async def watch(options: ClientOptions, outage: Outage) -> None:
    """Asks Kafka once a second whether it is there, over a connection that is kept, until it is
    cancelled.

    The clients of a role mend their connections by themselves and tell nobody but their log, where
    they say it for each attempt of each connection.
    """
    connection: AIOKafkaConnection | None = None
    try:
        while True:
            try:
                connection = await _asked(options, connection)
            except (KafkaError, OSError, TimeoutError) as error:
                connection = None
                outage.note(describe(error))
            else:
                outage.end()
            await asyncio.sleep(_ASK_S)
    finally:
        await _close(connection)


async def _asked(
    options: ClientOptions, connection: AIOKafkaConnection | None
) -> AIOKafkaConnection:
    """A connection over which a broker has just answered: this one, or a new one."""
    if connection is not None:
        try:
            await connection.send(MetadataRequest([]))
        except (KafkaError, OSError, TimeoutError):
            await connection.close()  # that broker may be away and others not
        else:
            return connection
    return await _connected(options)


async def knock(options: ClientOptions) -> None:
    """Connects to the bootstrap servers until one lets us in, TLS and SASL included.

    A client of aiokafka would say only that it failed; here the reason comes out.

    Raises:
        KafkaError, OSError, TimeoutError: none did; the last refusal where there was one.
    """
    await (await _connected(options)).close()


async def _connected(options: ClientOptions) -> AIOKafkaConnection:
    failure: Exception = KafkaError("there is no server to ask")
    settings: dict[str, Any] = {**options}
    for place, (host, port, _) in enumerate(collect_hosts(settings.pop("bootstrap_servers"))):
        connection: AIOKafkaConnection | None = None
        try:
            connection = await create_conn(host, port, request_timeout_ms=ATTEMPT_MS, **settings)
            # A listener that wants SASL lets anyone connect, and no one ask.
            await connection.send(MetadataRequest([]))
        except (KafkaError, OSError, TimeoutError) as error:
            if not place or _refusal(error):
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
    """Silences Kafka's client, unless everything is to be told.

    It says each failed attempt of each of its connections, some eighty lines a second for as long
    as Kafka is away: a role says once that it waits, and once that Kafka is back.
    """
    if logging.getLogger().level > logging.DEBUG:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def describe(error: BaseException) -> str:
    """One line with the error's first cause, which says more than what it led to."""
    cause = list(_causes(error))[-1]
    text = str(cause) or str(error)
    hint = ""
    if isinstance(cause, asyncio.IncompleteReadError | ConnectionResetError | ssl.SSLEOFError):
        text = "it closed the connection"
        hint = " (is the security protocol that of its listener?)"
    elif isinstance(cause, TimeoutError):
        text = "no answer in time"
    return " ".join(text.split())[:500] + hint or type(cause).__name__


def _refusal(error: Exception) -> str:
    """What makes waiting pointless, or ""."""
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
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return
        yield cause
        # A time-out is a cancellation beneath, which says nothing.
        cause = None if isinstance(cause, TimeoutError) else cause.__cause__
