"""TLS with real processes and certificates: verified, reloaded, mutual, and nothing to be read."""

import http.client
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from query_api.access.key_editing import add_key
from query_api.access.keys import Key, digest_of, spell
from query_api.access.rights import Access, Right
from reprise.http.tls import TLS_FILES_CHECK_S
from reprise.http.tls_listener import TLS_HANDSHAKES_MAX
from tests.processes import Service, until
from tests.router_protos import PACKED
from tests.sniffer import Sniffer
from tests.unit.reprise.http.test_tls import Files

SECRET = "secret-secret"
TOKENS = list(range(1_234_500, 1_234_516))
QUERY = json.dumps({"model": "m", "block_size": 4, "token_ids": TOKENS}).encode()
MATCH = "/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


class Encrypted(Service):
    """Asked over TLS."""

    context: ssl.SSLContext

    def connection(self, context: ssl.SSLContext | None = None) -> http.client.HTTPSConnection:
        port = int(self.base_url.rpartition(":")[2])
        return http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=20, context=context or self.context
        )

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Any = ()
    ) -> tuple[int, bytes, Any]:
        with closing(self.connection()) as connection:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", int(self.base_url.rpartition(":")[2]))


@pytest.fixture
def service(tmp_path: Path, files: Files) -> Iterator[Encrypted]:
    running = Encrypted(tmp_path / "data", *files.options, "--grpc", "0")
    running.context = files.client()
    with running:
        yield running


def ask(connection: http.client.HTTPConnection, key: str = "") -> int:
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {spell(key, SECRET)}"
    connection.request("POST", "/query", QUERY, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def certificate_of(service: Encrypted) -> bytes:
    with (
        socket.create_connection(service.address, timeout=20) as plain,
        service.context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        found = encrypted.getpeercert(binary_form=True)
        assert found is not None
        return found


def test_a_service_is_what_its_certificate_says_and_speaks_nothing_else(
    service: Encrypted, files: Files
) -> None:
    assert service.base_url.startswith("https://127.0.0.1:")
    with closing(service.connection()) as connection:
        assert [ask(connection) for _ in range(3)] == [200] * 3
    stranger = ssl.create_default_context(cafile=_file(files, trustme.CA()))
    with (
        pytest.raises(ssl.SSLCertVerificationError),
        closing(service.connection(stranger)) as connection,
    ):
        ask(connection)
    with socket.create_connection(service.address, timeout=20) as plain:
        plain.sendall(b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        told = plain.recv(1000)
        assert told.startswith(b"HTTP/1.1 400 "), "nothing but that TLS is spoken here"
        assert b"Expected TLS, got plain HTTP: ask this address by https://" in told
        assert plain.recv(1000) == b""
    old = files.client()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is old is what is tried
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, OSError)), closing(service.connection(old)) as connection:
        ask(connection)
    assert service.first_traceback() == ""


def _file(files: Files, authority: trustme.CA) -> str:
    path = files.certificate.with_name("other.pem")
    authority.cert_pem.write_to_path(path)
    return str(path)


def test_a_certificate_is_reloaded_and_no_request_is_dropped(
    service: Encrypted, files: Files
) -> None:
    statuses: list[int] = []
    stop = threading.Event()

    def go_on() -> None:
        with closing(service.connection()) as connection:
            while not stop.is_set():
                statuses.append(ask(connection))
                time.sleep(0.002)

    asking = [threading.Thread(target=go_on) for _ in range(3)]
    for thread in asking:
        thread.start()
    try:
        assert service.process is not None
        for _ in range(5):
            files.issue()
            service.process.send_signal(signal.SIGHUP)
            until(lambda: certificate_of(service) == files.serials[-1], what="the new one")
        whole = files.key.read_bytes()
        files.key.write_bytes(b"no key")
        service.process.send_signal(signal.SIGHUP)
        until(lambda: "The certificate of before goes on" in service.log(), what="the complaint")
        assert certificate_of(service) == files.serials[-1]
        files.key.write_bytes(whole)
        # Without a signal: it is looked at by itself.
        files.issue()
        until(
            lambda: certificate_of(service) == files.serials[-1],
            what="the last one",
            timeout_s=TLS_FILES_CHECK_S + 20,
        )
    finally:
        stop.set()
        for thread in asking:
            thread.join(20)
    assert len(statuses) > 100
    assert set(statuses) == {200}
    assert service.first_traceback() == ""


def test_a_certificate_of_a_client_is_a_key(tmp_path: Path, files: Files) -> None:
    keys = tmp_path / "keys.toml"
    query = Access("router", frozenset({Right.QUERY}))
    add_key(keys, Key(digest=digest_of(SECRET), access=query, certificate="router-1.example"))
    read = Access("reader", frozenset({Right.READ}))
    add_key(keys, Key(digest=digest_of(SECRET), access=read))
    service = Encrypted(
        tmp_path / "data",
        *files.options,
        *("--set", f"tls.client_ca={files.authority_file}", "--keys", str(keys)),
    )
    router = files.authority.issue_cert("router-1.example")
    other = files.authority.issue_cert("router-2.example")
    service.context = files.client(router)
    with service:
        with closing(service.connection()) as connection:
            assert ask(connection) == 200
            assert ask(connection, "reader") == 403  # what is said counts, not what is worn
            connection.request("GET", "/services")
            assert connection.getresponse().status == 403
        with closing(service.connection(files.client(other))) as connection:
            assert ask(connection) == 401
            assert ask(connection, "router") == 200
        forged = trustme.CA().issue_cert("router-1.example")
        for issued in (None, forged):
            context = files.client(issued)
            with pytest.raises(OSError), closing(service.connection(context)) as connection:  # noqa: PT011
                ask(connection)
        assert service.first_traceback() == ""


def test_handshakes_that_never_end_keep_nobody_out(service: Encrypted) -> None:
    hanging = [socket.create_connection(service.address, timeout=20) for _ in range(400)]
    try:
        for number, one in enumerate(hanging):
            with suppress(OSError):
                one.sendall(b"\x16\x03\x01\x02\x00"[: number % 6])
        time.sleep(0.5)
        # Those that are shaking hands fill the room; it is there again once their time is over.
        until(lambda: can_ask(service), what="an answer", timeout_s=40)
        counted = service.metric("reprise_http_refused_total", reason="too_many_handshakes")
        assert counted >= 400 - TLS_HANDSHAKES_MAX - 20
    finally:
        for one in hanging:
            one.close()
    assert service.first_traceback() == ""


def can_ask(service: Encrypted) -> bool:
    try:
        with closing(service.connection()) as connection:
            return ask(connection) == 200
    except OSError:
        return False


def test_grpc_and_commands_speak_tls(service: Encrypted, files: Files) -> None:
    address = service.whole_log().partition("Answering gRPC on ")[2].split()[0]
    credentials = grpc.ssl_channel_credentials(files.authority_file.read_bytes())
    message = PACKED.MatchExternalKvPrefixRequest(hashes=[1]).SerializeToString()
    with grpc.secure_channel(address, credentials) as channel:
        call: Any = channel.unary_unary(MATCH)
        call(message, timeout=20)
    with grpc.insecure_channel(address) as channel:
        plain: Any = channel.unary_unary(MATCH)
        with pytest.raises(grpc.RpcError):
            plain(message, timeout=5)
    command = [sys.executable, "-m", "reprise", "gaps", "--url", service.base_url]
    environment = os.environ | {"REPRISE_CA": str(files.authority_file)}

    def asked(environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    done = asked(environment)
    assert done.returncode == 0, done.stderr
    assert "its certificate is not trusted" in asked(os.environ).stderr


def test_who_listens_on_the_wire_reads_no_token(service: Encrypted, files: Files) -> None:
    sniffer = Sniffer(service.address)
    packed = struct.pack(f"<{len(TOKENS)}I", *TOKENS)
    forms = [
        ("/query", QUERY, "application/json"),
        ("/query?model=m&block_size=4", packed, "application/octet-stream"),
    ]
    with closing(
        http.client.HTTPSConnection("127.0.0.1", sniffer.port, timeout=20, context=files.client())
    ) as connection:
        for path, body, form in forms:
            connection.request("POST", path, body, {"Content-Type": form})
            assert connection.getresponse().read() == b"{}"
    sniffer.close()
    seen = bytes(sniffer.seen)
    assert len(seen) > 1000
    assert not any(str(token).encode() in seen for token in TOKENS)
    assert not any(struct.pack("<I", token) in seen for token in TOKENS)
    assert b"/query" not in seen
