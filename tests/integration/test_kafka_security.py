"""TLS and SASL against a real broker: what is let in, and how a refusal is said."""

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from brokers.topics import ensure_topics
from devtools.broker import HOST, Broker, Listener
from schemas.errors import ConfigurationError
from tests.kafka_fixtures import started_broker, unavailable

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


def waiting_line(settings: KafkaSettings, caplog: pytest.LogCaptureFixture) -> str:
    """The first line that a role which waits has to say."""

    def lines() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "brokers.outages"]

    async def wait() -> None:
        role = asyncio.create_task(ensure_topics(settings))
        while not lines() and not role.done():  # noqa: ASYNC110 -- a log has no event
            await asyncio.sleep(0.05)
        role.cancel()
        with pytest.raises(asyncio.CancelledError):
            await role

    asyncio.run(asyncio.wait_for(wait(), BOUND_S))
    return lines()[0]


def refusal(settings: KafkaSettings) -> str:
    with pytest.raises(ConfigurationError) as raised:
        ensure(settings)
    text = str(raised.value)
    assert text.startswith(f"Expected Kafka at {settings.bootstrap} to accept us, but ")
    assert PASSWORD not in text
    assert "\n" not in text
    return text


LOGIN = {"sasl_mechanism": "PLAIN", "sasl_username": "reprise", "sasl_password": PASSWORD}


def test_a_password_lets_in(secured: Secured) -> None:
    ensure(secured.settings("SASL", security_protocol="SASL_PLAINTEXT", **LOGIN))


def test_a_trusted_certificate_lets_in(secured: Secured) -> None:
    ensure(secured.settings("TLS", security_protocol="SSL", ssl_cafile=secured.authority))


def test_tls_and_a_password_let_in(secured: Secured) -> None:
    ensure(
        secured.settings(
            "BOTH", security_protocol="SASL_SSL", ssl_cafile=secured.authority, **LOGIN
        )
    )


def test_a_wrong_password_is_said(secured: Secured) -> None:
    wrong = LOGIN | {"sasl_password": "guess"}
    settings = secured.settings("SASL", security_protocol="SASL_PLAINTEXT", **wrong)
    assert "it refused the SASL username or password" in refusal(settings)


def test_a_mechanism_that_is_not_offered_is_said(secured: Secured) -> None:
    other = LOGIN | {"sasl_mechanism": "SCRAM-SHA-256"}
    settings = secured.settings("SASL", security_protocol="SASL_PLAINTEXT", **other)
    assert "it does not offer the SASL mechanism" in refusal(settings)


def test_sasl_to_a_listener_without_it_is_said(secured: Secured) -> None:
    settings = secured.settings("PLAINTEXT", security_protocol="SASL_PLAINTEXT", **LOGIN)
    assert "its listener does not use SASL" in refusal(settings)


def test_a_certificate_of_a_stranger_is_said(secured: Secured) -> None:
    settings = secured.settings("TLS", security_protocol="SSL", ssl_cafile=secured.stranger)
    assert "its certificate cannot be trusted (see --kafka-ssl-cafile)" in refusal(settings)


def test_a_certificate_that_we_do_not_have_is_said(secured: Secured) -> None:
    settings = secured.settings("MUTUAL", security_protocol="SSL", ssl_cafile=secured.authority)
    assert "TLS failed" in refusal(settings)


@pytest.mark.parametrize(
    ("listener", "fields"),
    [("TLS", {}), ("SASL", {}), ("PLAINTEXT", {"security_protocol": "SSL"})],
)
def test_another_protocol_than_the_listeners_is_hinted_at(
    secured: Secured, listener: str, fields: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It may also be a broker that is coming up, so it is waited for."""
    line = waiting_line(secured.settings(listener, **fields), caplog)
    assert "is the security protocol that of its listener?" in line


@pytest.mark.parametrize(
    "fields",
    [
        {"ssl_cafile": "{directory}/missing.pem"},
        {"ssl_cafile": "{directory}/nonsense.pem"},
        {"ssl_certfile": "{directory}/nonsense.pem", "ssl_keyfile": "{directory}/nonsense.pem"},
    ],
)
def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path, fields: dict[str, str]) -> None:
    (tmp_path / "nonsense.pem").write_text("nonsense")
    named = {key: value.format(directory=tmp_path) for key, value in fields.items()}
    settings = KafkaSettings(bootstrap="b:1", security_protocol="SSL", **named)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"Expected TLS files in PEM, got .*\.pem"):
        client_options(settings)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (LOGIN | {"sasl_mechanism": "GSSAPI"}, "Expected a SASL mechanism of PLAIN, SCRAM-SHA-256"),
        (LOGIN | {"sasl_password": ""}, "Expected a SASL username and password with security"),
        ({"security_protocol": "PLAINTEXT", "sasl_username": "u", "sasl_password": "p"}, "only"),
    ],
)
def test_sasl_settings_that_cannot_be_used_are_named(fields: dict[str, str], text: str) -> None:
    settings = KafkaSettings(
        **({"bootstrap": "b:1", "security_protocol": "SASL_SSL"} | fields)  # type: ignore[arg-type]
    )
    with pytest.raises(ConfigurationError, match=text):
        client_options(settings)


def test_a_listener_that_says_nothing_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server((HOST, 0)) as silent:
        settings = KafkaSettings(bootstrap=f"{HOST}:{silent.getsockname()[1]}")
        assert "no answer in time" in waiting_line(settings, caplog)
