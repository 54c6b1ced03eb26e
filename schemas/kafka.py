"""Apache Kafka as the log: settings of its clients, and the shape of every topic.

    topic              key                    value                               cleanup
    PREFIX.registry    publisher (msgpack)    `Registration`, or null: forgotten  compact
    PREFIX.cursors     publisher (msgpack)    `CursorNote` of the bridge          compact
    PREFIX.events      stream key (msgpack)   a record (`schemas.records`)        delete
    PREFIX.table       row key                row (`streams.table.rows`), null    compact

`events` and `table` have the same number of partitions, and partition p of `table` is the table of
partition p of `events`. `registry` and `cursors` have the same number, too: the bridge that is
given a partition of one owns that partition of the other. Keys are msgpack arrays of the identity's
fields.
"""

from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from schemas.errors import ConfigurationError
from schemas.identities import PublisherKey, StreamKey
from schemas.kafka_clients import Secret

EVENTS_PARTITIONS: Final = 8
REGISTRY_PARTITIONS: Final = 16
EVENTS_RETENTION_MS: Final = 7 * 24 * 3600 * 1000


class Cleanup(StrEnum):
    """Kafka's `cleanup.policy`."""

    COMPACT = "compact"
    DELETE = "delete"


class TopicSpec(NamedTuple):
    """A topic as it must be: checked where it exists, made so where it does not."""

    name: str
    partitions: int
    cleanup: Cleanup
    configs: dict[str, str]


class Topics(NamedTuple):
    """The four topics of one deployment."""

    registry: TopicSpec
    cursors: TopicSpec
    events: TopicSpec
    table: TopicSpec


class CursorNote(msgspec.Struct, frozen=True, kw_only=True):
    """Where a publisher stood when its bridge last noted it; the events topic has what came after.

    Attributes:
        incarnation, sequence: the publisher's cursor.
        partition, offset: the record in the events topic that holds that batch; read on from here.
    """

    incarnation: int
    sequence: int
    partition: int
    offset: int


class KafkaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the brokers. The security settings are passed to the clients as they are.

    Attributes:
        bootstrap: `host:port`, several separated by commas.
        topic_prefix: the topics are PREFIX.events and so on; consumer groups are PREFIX.bridge and
            so on.
        replication: copies of each topic, for topics that are made here.
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        ssl_cafile, ssl_certfile, ssl_keyfile: PEM files, "" for none.
    """

    bootstrap: str
    topic_prefix: str = "reprise"
    events_partitions: int = EVENTS_PARTITIONS
    registry_partitions: int = REGISTRY_PARTITIONS
    replication: int = 1
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = ""
    sasl_username: str = ""
    sasl_password: str = ""
    ssl_cafile: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What `repr` shows: settings get into logs and tracebacks, and the password must not."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.sasl_password:
            shown["sasl_password"] = Secret(self.sasl_password)
        return list(shown.items())

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def __post_init__(self) -> None:
        """Raises ConfigurationError where settings cannot be used or contradict each other."""
        for server in self.servers:
            host, colon, port = server.rpartition(":")
            digits = port.isascii() and port.isdigit() and len(port) < 6
            if not (host and colon and digits and int(port) < 65_536):
                raise ConfigurationError(
                    f"Expected Kafka servers as host:port[,...], got: {server}"
                )
        if not self.topic_prefix or not _is_topic_name(self.topic_prefix):
            raise ConfigurationError(
                "Expected a topic prefix of letters, digits, '.', '_' and '-',"
                f" got: {self.topic_prefix}"
            )
        if min(self.events_partitions, self.registry_partitions, self.replication) < 1:
            raise ConfigurationError("Expected at least 1 partition and 1 copy of each topic")
        self._check_security()

    def _check_security(self) -> None:
        known = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
        if self.security_protocol not in known:
            raise ConfigurationError(
                f"Expected a security protocol of {', '.join(known)}, got: {self.security_protocol}"
            )
        sasl = self.security_protocol.startswith("SASL_")
        if sasl != bool(self.sasl_mechanism):
            raise ConfigurationError(
                f"Expected a SASL mechanism with security protocol SASL_... and only then, got"
                f" `{self.sasl_mechanism}` with: {self.security_protocol}"
            )
        if self.uses_tls < bool(self.ssl_cafile or self.ssl_certfile):
            raise ConfigurationError(
                "Expected TLS files only with SSL or SASL_SSL,"
                f" got them with: {self.security_protocol}"
            )
        if bool(self.ssl_certfile) != bool(self.ssl_keyfile):
            raise ConfigurationError("Expected a TLS certificate and its key, got one of them")

    @property
    def servers(self) -> list[str]:
        """The bootstrap servers."""
        return [server.strip() for server in self.bootstrap.split(",")]

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    def group(self, role: str) -> str:
        """The consumer group of a role."""
        return f"{self.topic_prefix}.{role}"

    @property
    def topics(self) -> Topics:
        """The topics as they must be."""

        def name(suffix: str) -> str:
            return f"{self.topic_prefix}.{suffix}"

        # A tombstone may go only after every reader that was reading when it came has seen it.
        # Only closed segments are compacted: so they are closed early, by size and by time.
        compacted = {
            "min.cleanable.dirty.ratio": "0.3",
            "delete.retention.ms": "86400000",
            "segment.ms": "600000",
            "segment.bytes": "16777216",
        }
        return Topics(
            TopicSpec(name("registry"), self.registry_partitions, Cleanup.COMPACT, compacted),
            TopicSpec(name("cursors"), self.registry_partitions, Cleanup.COMPACT, compacted),
            TopicSpec(
                name("events"),
                self.events_partitions,
                Cleanup.DELETE,
                {"retention.ms": str(EVENTS_RETENTION_MS), "max.message.bytes": str(MESSAGE_MAX)},
            ),
            TopicSpec(
                name("table"),
                self.events_partitions,
                Cleanup.COMPACT,
                compacted | {"max.message.bytes": str(MESSAGE_MAX)},
            ),
        )


MESSAGE_MAX: Final = 8 * 2**20
"""Largest Kafka message; records and rows are split well below it."""

_encoder = msgspec.msgpack.Encoder()
_publisher_decoder = msgspec.msgpack.Decoder(PublisherKey)


def encode_publisher(publisher: PublisherKey) -> bytes:
    """The key of a publisher in `registry` and `cursors`."""
    return _encoder.encode(publisher)


def decode_publisher(key: bytes) -> PublisherKey:
    """The inverse.

    Raises:
        msgspec.MsgspecError: not such a key.
    """
    return _publisher_decoder.decode(key)


def encode_stream(stream: StreamKey) -> bytes:
    """The key of a stream in `events`."""
    return _encoder.encode(stream)


def _is_topic_name(text: str) -> bool:
    return len(text) <= 200 and all(c.isascii() and (c.isalnum() or c in "._-") for c in text)
