"""What every client of Kafka is opened with, in the words of aiokafka.

The composition root makes it from `KafkaSettings`, because a TLS context is made of files; the
roles take it and pass it on to `brokers.clients`.
"""

import ssl
from typing import Final, TypedDict

from brokers.broker_settings import KafkaSettings, Secret
from schemas.causes import cause_of
from schemas.errors import ConfigurationError

_SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class ClientOptions(TypedDict):
    """Keyword arguments that aiokafka's producer, consumer and admin client have in common.

    `ssl_context` is None without TLS. `sasl_mechanism` means something only where
    `security_protocol` begins with SASL.
    """

    bootstrap_servers: list[str]
    security_protocol: str
    ssl_context: ssl.SSLContext | None
    sasl_mechanism: str
    sasl_plain_username: str | None
    sasl_plain_password: str | None


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
        raise ConfigurationError(
            f"Expected TLS files in PEM, got {named}: {cause_of(error)}"
        ) from error
    return context


def _refuse_password() -> str:
    raise ValueError("the key is encrypted: give one without a passphrase")
