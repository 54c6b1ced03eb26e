"""How a deployment's brokers are reached: checked settings, before any client is made."""

from typing import Any

import msgspec

from schemas.errors import ConfigurationError
from schemas.limits import PORT_MAX
from schemas.topics import (
    EVENTS_PARTITIONS,
    REGISTRY_PARTITIONS,
    RoutingTopics,
    Topics,
    TopicSpec,
    answers_topic,
    commands_topics,
    routing_topics,
    topics_of,
)


class Secret(str):
    """Text that `repr` does not show, since options get into logs and tracebacks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


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
        protocols = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
        if self.security_protocol not in protocols:
            raise ConfigurationError(
                f"Expected a security protocol of {', '.join(protocols)},"
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

    @property
    def topics(self) -> Topics:
        """The topics as they must be."""
        return topics_of(
            self.topic_prefix,
            events_partitions=self.events_partitions,
            registry_partitions=self.registry_partitions,
        )

    @property
    def answers(self) -> TopicSpec:
        """The topic of answers, which is there only where a replica keeps them."""
        return answers_topic(self.topic_prefix)

    @property
    def routing(self) -> RoutingTopics:
        """The topics of routing; see there who makes them."""
        return routing_topics(self.topic_prefix)

    @property
    def commands(self) -> tuple[TopicSpec, TopicSpec]:
        """The topics of commands and of their results, which are there only where a bridge serves
        LMCache's workers.
        """
        return commands_topics(self.topic_prefix)


def _is_topic_name(text: str) -> bool:
    return len(text) <= 200 and all(c.isascii() and (c.isalnum() or c in "._-") for c in text)
