"""What clients are opened with: files and logins that cannot be used, and a listener that says
nothing.
"""

import asyncio
import socket
from pathlib import Path

import pytest

from brokers import availability
from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from brokers.topics import ensure_topics
from devtools.broker import HOST
from schemas.errors import ConfigurationError

BOUND_S = 40.0
LOGIN = {"sasl_mechanism": "PLAIN", "sasl_username": "reprise", "sasl_password": "secret"}


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


def test_a_listener_that_says_nothing_is_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "KAFKA_ATTEMPT_MS", 100)
    with socket.create_server((HOST, 0)) as silent:
        settings = KafkaSettings(bootstrap=f"{HOST}:{silent.getsockname()[1]}")
        assert "no answer in time" in waiting_line(settings, caplog)
