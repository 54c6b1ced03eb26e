"""The monitor of bridges and workers over real sockets: statuses, bounds, hostile clients."""

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from reprise.cli import main
from reprise.http.monitor_settings import MonitorSettings
from reprise.http.tls_settings import MonitorTlsSettings
from reprise.metrics.process import PROCESS, Role
from reprise.monitor import (
    Listening,
    listening_of,
    monitor_app,
    monitor_connections,
    monitored_beside,
)
from schemas.conditions import Conditions, Level, Part
from schemas.errors import ConfigurationError
from schemas.metric_family import RoleCollector

HOST = "127.0.0.1"
WAIT_S = 10.0


def listening_at(port: int, tls: MonitorTlsSettings | None = None) -> Listening:
    found = listening_of(MonitorSettings(host=HOST, port=port, tls=tls))
    assert found is not None
    return found


class Monitored:
    """A monitor on a thread, and a client that speaks HTTP by hand."""

    def __init__(self, tls: MonitorTlsSettings | None = None) -> None:
        self.conditions = Conditions(lambda: 1000.0)
        self.fields: Callable[[], Mapping[str, object]] = lambda: {"partitions": {"0": 7}}
        registry = CollectorRegistry()
        collector = RoleCollector()
        collector.add(PROCESS, lambda: Role(self.conditions, lambda: 3))
        registry.register(collector)
        self.listening = listening_at(0, tls)
        self.port: int = self.listening.socket.getsockname()[1]
        self.app = monitor_app("streams", self.conditions, registry, lambda: self.fields())

    def connect(self) -> socket.socket:
        return socket.create_connection((HOST, self.port), timeout=WAIT_S)

    def send(self, request: bytes) -> bytes:
        """All that comes until the connection is closed."""
        with self.connect() as connection:
            connection.sendall(request)
            return _until_closed(connection)

    def get(self, path: str) -> tuple[int, bytes]:
        answer = self.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    def document(self, path: str) -> tuple[int, Any]:
        status, body = self.get(path)
        return status, msgspec.json.decode(body)


def _until_closed(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


@pytest.fixture
def monitored() -> Iterator[Monitored]:
    one = Monitored()
    with monitored_beside(one.app, one.listening, monitor_connections(lifetime_s=0.5)):
        yield one


def test_health_is_200_and_ready_follows_the_rule(monitored: Monitored) -> None:
    status, health = monitored.document("/health")
    assert status == 200
    assert health.pop("version")
    assert health == {
        "status": "alive",
        "ready": True,
        "role": "streams",
        "problem": "",
        "conditions": [],
        "partitions": {"0": 7},
    }
    assert monitored.document("/ready") == (200, {"ready": True})
    monitored.conditions.set(Part.KAFKA, "unreachable", "refused", Level.UNAVAILABLE)
    status, health = monitored.document("/health")
    assert (status, health["ready"], health["problem"]) == (200, False, "refused")
    assert health["conditions"][0]["since"] == 1000.0
    expected = {"ready": False, "error": "refused", "reason": "unreachable"}
    assert monitored.document("/ready") == (503, expected)


def test_metrics_and_unknown_paths(monitored: Monitored) -> None:
    monitored.conditions.set(Part.WORKER, "app_failed", "no")
    status, body = monitored.get("/metrics")
    assert status == 200
    assert b"reprise_ready 1.0" in body
    assert b'reprise_condition{level="degraded",part="worker",reason="app_failed"} 1.0' in body
    assert b"reprise_internal_errors_total 3.0" in body
    assert monitored.get("/metrics?name=x")[0] == 200
    assert monitored.get("/")[0] == 404


@pytest.mark.parametrize(
    "request_",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x00\xff" * 64 + b"\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_a_bad_request_ends_its_own_connection_at_most(
    monitored: Monitored, request_: bytes
) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # before all of it was sent
        monitored.send(request_)
    assert monitored.document("/health")[0] == 200


def test_a_client_that_says_nothing_is_cut_off(monitored: Monitored) -> None:
    assert monitored.send(b"") == b""
    assert monitored.send(b"GET /health HTTP/1.1\r\nHost: x\r\n") == b""
    assert monitored.document("/health")[0] == 200


def test_an_error_of_the_role_is_a_500_and_the_monitor_goes_on(monitored: Monitored) -> None:
    def fail() -> Mapping[str, object]:
        raise RuntimeError("for a test")

    good, monitored.fields = monitored.fields, fail
    assert monitored.get("/health")[0] == 500
    monitored.fields = good
    assert monitored.get("/health")[0] == 200


def test_the_monitor_ends_with_its_context() -> None:
    one = Monitored()
    with monitored_beside(one.app, one.listening, monitor_connections()):
        assert one.get("/ready")[0] == 200
    assert "monitor" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ConnectionRefusedError):
        one.connect()


def test_an_address_that_is_taken_names_the_option(monitored: Monitored) -> None:
    with pytest.raises(ConfigurationError, match="--metrics-port"):
        listening_at(monitored.port)


def test_it_is_encrypted_for_those_who_have_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    server, client = authority.issue_cert(HOST), authority.issue_cert("prometheus.example")
    (tmp_path / "cert.pem").write_bytes(b"".join(b.bytes() for b in server.cert_chain_pems))
    (tmp_path / "key.pem").write_bytes(server.private_key_pem.bytes())
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = MonitorTlsSettings(
        certificate=tmp_path / "cert.pem",
        key=tmp_path / "key.pem",
        client_authority=tmp_path / "ca.pem",
    )
    context, stranger = (ssl.create_default_context(cafile=tmp_path / "ca.pem") for _ in range(2))
    client.configure_cert(context)
    one = Monitored(tls)
    connections = monitor_connections()

    def ready(context: ssl.SSLContext) -> int:
        with contextlib.closing(
            http.client.HTTPSConnection(HOST, one.port, context=context, timeout=WAIT_S)
        ) as asking:
            asking.request("GET", "/ready")
            return asking.getresponse().status

    with monitored_beside(one.app, one.listening, connections):
        assert ready(context) == 200
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            ready(stranger)
        told = one.send(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 400 "), "nothing but that TLS is spoken here"
        assert b"Expected TLS, got plain HTTP" in told
        assert ready(context) == 200
    assert connections.refused["tls_handshake"] >= 1


@pytest.mark.parametrize("role", ["bridge", "streams", "relay"])
def test_beyond_loopback_it_wants_certificates(role: str, tmp_path: Path) -> None:
    files = {name: str(tmp_path / name) for name in ("cert", "key", "ca")}
    options = ["--metrics-host", "0.0.0.0", "--metrics-port", "0"]
    options += ["--kafka", "127.0.0.1:1", "--data", str(tmp_path / "data")]
    if role == "relay":
        options = [*options[:4], "--engine", "tcp://127.0.0.1:1", "--listen", "tcp://127.0.0.1:2"]
        options += ["--curve-key", "none", "--bridge-keys", "none"]
    tls = ["--set", f"metrics.tls_cert={files['cert']}", "--set", f"metrics.tls_key={files['key']}"]
    if role == "relay":
        tls = ["--metrics-tls-cert", files["cert"], "--metrics-tls-key", files["key"]]
    done = CliRunner().invoke(main, [role, *options, *tls])
    assert "Expected a loopback address as --metrics-host" in done.output
    done = CliRunner().invoke(main, [role, *options, *tls[:2]])
    assert "--metrics-tls-cert and --metrics-tls-key together" in done.output
