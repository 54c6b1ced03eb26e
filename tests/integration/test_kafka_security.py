"""TLS and SASL against a real broker: what is let in, and how a refusal is said."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from devtools.broker import HOST, Broker, Listener
from schemas.errors import ConfigurationError
from tests.kafka_fixtures import started_broker, unavailable
from tests.unit.brokers.test_options import waiting_line

BOUND_S = 40.0
PASSWORD = "secret-of-the-test"


class Secured:
    """A broker with a listener of each protocol, and the files that clients need."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self._broker = broker
        self.authority = str(directory / "authority.pem")
        self.stranger = str(directory / "stranger.pem")

    def settings(self, listener: str, **fields: str) -> KafkaSettings:
        return KafkaSettings(
            bootstrap=self._broker.address(listener),
            events_partitions=2,
            registry_partitions=2,
            **fields,  # type: ignore[arg-type]
        )


def make_keys(directory: Path, name: str) -> None:
    """A key store of the name, and its certificate in PEM."""
    store = str(directory / f"{name}.p12")
    about = ["-alias", "broker", "-keystore", store, "-storepass", PASSWORD]
    identity = ["-dname", "CN=localhost", "-ext", f"san=ip:{HOST}", "-ext", "bc:critical=ca:true"]
    subprocess.run(
        ["keytool", "-genkeypair", *about, "-keyalg", "RSA", "-validity", "2", *identity],
        check=True,
        capture_output=True,
    )
    done = subprocess.run(
        ["keytool", "-exportcert", "-rfc", *about], check=True, capture_output=True
    )
    (directory / f"{name}.pem").write_bytes(done.stdout)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f'{login} user_reprise="{PASSWORD}";',
        "listener.name.both.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.both.plain.sasl.jaas.config": f'{login} user_reprise="{PASSWORD}";',
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.keystore.location": str(directory / "authority.p12"),
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "authority.pem"),
    }
    listeners = [
        Listener("SASL", "SASL_PLAINTEXT"),
        Listener("TLS", "SSL"),
        Listener("BOTH", "SASL_SSL"),
        Listener("MUTUAL", "SSL"),
    ]
    if shutil.which("keytool") is None:
        unavailable("keytool, a part of Java, is not on the PATH")
    for name in ("authority", "stranger"):
        make_keys(directory, name)
    for broker in started_broker(
        directory / "broker", extra_listeners=listeners, settings=settings
    ):
        yield Secured(broker, directory)


def ensure(settings: KafkaSettings) -> None:
    asyncio.run(asyncio.wait_for(ensure_topics(settings), BOUND_S))


def refusal(settings: KafkaSettings) -> str:
    with pytest.raises(ConfigurationError) as raised:
        ensure(settings)
    text = str(raised.value)
    assert text.startswith(f"Expected Kafka at {settings.bootstrap} to accept us, but ")
    assert PASSWORD not in text
    assert "\n" not in text
    return text


LOGIN = {"sasl_mechanism": "PLAIN", "sasl_username": "reprise", "sasl_password": PASSWORD}


def test_a_password_a_trusted_certificate_and_both_let_in(secured: Secured) -> None:
    trusted = {"ssl_cafile": secured.authority}
    ensure(secured.settings("SASL", security_protocol="SASL_PLAINTEXT", **LOGIN))
    ensure(secured.settings("TLS", security_protocol="SSL", **trusted))
    ensure(secured.settings("BOTH", security_protocol="SASL_SSL", **trusted, **LOGIN))


def test_each_refusal_is_said(secured: Secured) -> None:
    wrong = LOGIN | {"sasl_password": "guess"}
    other = LOGIN | {"sasl_mechanism": "SCRAM-SHA-256"}
    authority, stranger = {"ssl_cafile": secured.authority}, {"ssl_cafile": secured.stranger}
    for listener, protocol, fields, said in (
        ("SASL", "SASL_PLAINTEXT", wrong, "it refused the SASL username or password"),
        ("SASL", "SASL_PLAINTEXT", other, "it does not offer the SASL mechanism"),
        ("PLAINTEXT", "SASL_PLAINTEXT", LOGIN, "its listener does not use SASL"),
        ("TLS", "SSL", stranger, "its certificate cannot be trusted (see --kafka-ssl-cafile)"),
        ("MUTUAL", "SSL", authority, "TLS failed"),
    ):
        settings = secured.settings(listener, security_protocol=protocol, **fields)
        assert said in refusal(settings), listener


def test_another_protocol_than_the_listeners_is_hinted_at(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    """It may also be a broker that is coming up, so it is waited for."""
    for listener, protocol in (("TLS", "PLAINTEXT"), ("SASL", "PLAINTEXT"), ("PLAINTEXT", "SSL")):
        caplog.clear()
        line = waiting_line(secured.settings(listener, security_protocol=protocol), caplog)
        assert "is the security protocol that of its listener?" in line
