"""Settings of Kafka: each that cannot be used, and each contradiction, is named."""

import pytest

from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from reprise.roles.role_settings import ServeSettings
from schemas.codec import decode_publisher
from schemas.errors import ConfigurationError
from schemas.identities import PublisherKey, StreamKey
from schemas.topics import Cleanup, encode_publisher, encode_stream


def settings(**fields: object) -> KafkaSettings:
    return KafkaSettings(**({"bootstrap": "b:9092"} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("servers", ["", "b", "b:", ":9092", "b:ninety", "b:9092,"])
def test_servers_are_host_and_port(servers: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected Kafka servers as host:port"):
        settings(bootstrap=servers)


def test_servers_are_separated_by_commas() -> None:
    assert settings(bootstrap="a:1, [::1]:2").servers == ["a:1", "[::1]:2"]


@pytest.mark.parametrize("prefix", ["", "a b", "ä", "a" * 201])
def test_a_topic_prefix_is_part_of_a_topic_name(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="Expected a topic prefix of letters"):
        settings(topic_prefix=prefix)


@pytest.mark.parametrize("field", ["events_partitions", "registry_partitions", "replication"])
def test_there_is_at_least_one_of_everything(field: str) -> None:
    with pytest.raises(ConfigurationError, match="Expected at least 1 partition and 1 copy"):
        settings(**{field: 0})


def test_a_security_protocol_is_one_of_four() -> None:
    with pytest.raises(ConfigurationError, match="Expected a security protocol of PLAINTEXT, SSL"):
        settings(security_protocol="TLS")


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [("PLAINTEXT", "PLAIN"), ("SSL", "PLAIN"), ("SASL_SSL", ""), ("SASL_PLAINTEXT", "")],
)
def test_a_mechanism_goes_with_sasl_only(protocol: str, mechanism: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected a SASL mechanism with .* and only"):
        settings(security_protocol=protocol, sasl_mechanism=mechanism)


@pytest.mark.parametrize("files", [{"ssl_cafile": "c"}, {"ssl_certfile": "c", "ssl_keyfile": "k"}])
def test_tls_files_go_with_tls_only(files: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="Expected TLS files only with SSL or SASL_SSL"):
        settings(security_protocol="PLAINTEXT", **files)


@pytest.mark.parametrize("alone", ["ssl_certfile", "ssl_keyfile"])
def test_a_certificate_needs_its_key(alone: str) -> None:
    with pytest.raises(ConfigurationError, match="Expected a TLS certificate and its key"):
        settings(security_protocol="SSL", **{alone: "f"})


def test_what_belongs_together_has_the_same_partitions() -> None:
    topics = settings(topic_prefix="p", events_partitions=3, registry_partitions=5).topics
    assert [spec.name for spec in topics] == ["p.registry", "p.cursors", "p.events", "p.table"]
    assert topics.events.partitions == topics.table.partitions == 3
    assert topics.registry.partitions == topics.cursors.partitions == 5
    assert [spec.cleanup for spec in topics if spec.cleanup is Cleanup.DELETE] == [Cleanup.DELETE]
    assert settings(topic_prefix="p").group("bridge") == "p.bridge"


def test_a_publisher_key_survives_the_wire() -> None:
    publisher = PublisherKey(StreamKey("t", "m", 16, "", "i"), 3)
    assert decode_publisher(encode_publisher(publisher)) == publisher
    assert encode_stream(publisher.stream) in encode_publisher(publisher)


def test_the_password_is_in_no_representation() -> None:
    secured = settings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="reader",
        sasl_password="swordfish",
    )
    options = client_options(secured)
    assert options["sasl_plain_password"] == "swordfish"
    role = ServeSettings(kafka=secured)
    for shown in (repr(secured), str(secured), repr(role), f"{options}", str([secured])):
        assert "swordfish" not in shown
        assert "reader" in shown
    assert "sasl_password='...'" in repr(secured)
    assert "sasl_password=''" in repr(settings())
    assert repr(settings()).startswith("KafkaSettings(bootstrap='b:9092', topic_prefix=")
