"""How a deployment's brokers are reached: checked settings, before any client is made."""

from dataclasses import fields
from typing import Any, Final

from schemas.errors import ConfigurationError
from schemas.limits import PORT_MAX
from schemas.setting import part, setting
from schemas.topics import (
    CURSORS_TOPIC,
    EVENTS_PARTITIONS,
    EVENTS_TOPIC,
    REGISTRY_PARTITIONS,
    REGISTRY_TOPIC,
    TABLE_TOPIC,
    Topics,
    TopicShape,
    TopicSpec,
)

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Secret(str):
    """Text that `repr` does not show, since options get into logs and tracebacks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


@part
class KafkaSettings:
    """How to reach the brokers. The security settings are passed to the clients as they are.

    Consumer groups are PREFIX.bridge and so on.
    """

    bootstrap: str = setting(
        "kafka.brokers",
        "Brokers to connect to first, as HOST:PORT[,HOST:PORT...].",
        flag="--kafka",
        is_usual=True,
        metavar="HOST:PORT[,...]",
    )
    topic_prefix: str = setting(
        "kafka.topic_prefix",
        "The topics are PREFIX.events and so on; one deployment has one prefix.",
        flag="--topic-prefix",
        is_usual=True,
        default="reprise",
    )
    events_partitions: int = setting(
        "kafka.events_partitions",
        "Partitions of PREFIX.events and PREFIX.table; the same for every role.",
        flag="--events-partitions",
        bounds=(1, None),
        default=EVENTS_PARTITIONS,
    )
    registry_partitions: int = setting(
        "kafka.registry_partitions",
        "Partitions of PREFIX.registry and PREFIX.cursors; the same for every role.",
        flag="--registry-partitions",
        bounds=(1, None),
        default=REGISTRY_PARTITIONS,
    )
    replication: int = setting(
        "kafka.replication",
        "Replicas of each topic that is created.",
        flag="--replication",
        bounds=(1, None),
        default=1,
    )
    security_protocol: str = setting(
        "kafka.security_protocol",
        "The security protocol of the brokers' listener.",
        choices=PROTOCOLS,
        default="PLAINTEXT",
    )
    sasl_mechanism: str = setting(
        "kafka.sasl_mechanism", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.", default=""
    )
    sasl_username: str = setting("kafka.sasl_username", "SASL user name.", default="")
    sasl_password: str = setting(
        "kafka.sasl_password",
        "SASL password; others on the machine can see a flag, and less easily the variable.",
        is_secret=True,
        default="",
    )
    ssl_cafile: str = setting(
        "kafka.ssl_cafile",
        "PEM file of the authorities to trust.  [default: the system's]",
        path="file",
        default="",
    )
    ssl_certfile: str = setting(
        "kafka.ssl_certfile",
        "PEM file of the client certificate, where the brokers ask for one.",
        path="file",
        default="",
    )
    ssl_keyfile: str = setting(
        "kafka.ssl_keyfile",
        "PEM file of the client certificate's key, without a passphrase.",
        path="file",
        default="",
    )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What `repr` shows: settings get into logs and tracebacks, and the password must not."""
        shown = {one.name: getattr(self, one.name) for one in fields(self)}
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
            if not (host and colon and digits and int(port) <= PORT_MAX):
                raise ConfigurationError(
                    f"Expected Kafka servers as host:port[,...], got: {server}"
                )
        if not self.topic_prefix or not _is_topic_name(self.topic_prefix):
            raise ConfigurationError(
                "Expected a topic prefix of letters, digits, '.', '_' and '-',"
                f" got: {self.topic_prefix}"
            )
        if min(self.events_partitions, self.registry_partitions, self.replication) < 1:
            raise ConfigurationError(
                "Expected at least 1 partition and 1 copy of each topic, got"
                f" {self.events_partitions} and {self.registry_partitions} partitions,"
                f" {self.replication} copies"
            )
        self._check_security()

    def _check_security(self) -> None:
        if self.security_protocol not in PROTOCOLS:
            raise ConfigurationError(
                f"Expected a security protocol of {', '.join(PROTOCOLS)},"
                f" got: {self.security_protocol}"
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

    def topic(self, shape: TopicShape) -> TopicSpec:
        """A topic of this deployment, as it must be."""
        suffix, partitions, cleanup, configs, setting = shape
        if setting:
            partitions = getattr(self, setting)
        return TopicSpec(f"{self.topic_prefix}.{suffix}", partitions, cleanup, configs, setting)

    @property
    def topics(self) -> Topics:
        """Those that every deployment has."""
        shapes = (REGISTRY_TOPIC, CURSORS_TOPIC, EVENTS_TOPIC, TABLE_TOPIC)
        return Topics(*map(self.topic, shapes))


def _is_topic_name(text: str) -> bool:
    return len(text) <= 200 and all(c.isascii() and (c.isalnum() or c in "._-") for c in text)
