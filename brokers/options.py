"""What every client of Kafka is opened with, in the words of aiokafka.

The composition root makes it from `KafkaSettings`, because a TLS context is made of files; the
roles take it and pass it on: `AIOKafkaProducer(**options, acks="all", ...)`.
"""

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from ssl import SSLContext


class Secret(str):
    """Text that `repr` does not show, since options get into logs and tracebacks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class ClientOptions(TypedDict):
    """Keyword arguments that aiokafka's producer, consumer and admin client have in common.

    `ssl_context` is None without TLS. `sasl_mechanism` means something only where
    `security_protocol` begins with SASL.
    """

    bootstrap_servers: list[str]
    security_protocol: str
    ssl_context: "SSLContext | None"
    sasl_mechanism: str
    sasl_plain_username: str | None
    sasl_plain_password: str | None
