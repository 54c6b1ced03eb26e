"""Queries with a key are answered without Python once Python has let the key through."""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from query_api.access.access_settings import AccessSettings
from query_api.access.key_editing import add_key, revoke_key
from query_api.access.key_ring import KEY_ADMITTED_S, KEY_FILE_CHECK_S
from query_api.access.keys import Key, digest_of, spell
from query_api.access.rights import Access, Right
from streams.kernel import native_available
from tests.processes import until
from tests.unit.reprise.http.listening import Server, receive
from tests.unit.reprise.http.plain_requests import BODY, request

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

SECRET = "secret-secret"
QUERY = frozenset({Right.QUERY})
MANY = 50


def key(
    key_id: str, access: Access, rate: float | None = None, expires: float | None = None
) -> Key:
    access = access._replace(key_id=key_id)
    return Key(digest=digest_of(SECRET), access=access, rate=rate, expires=expires)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "keys.toml"
    for one in (
        key("all", Access(rights=QUERY)),
        key("ops", Access(rights=frozenset({Right.ADMIN}))),
        key("reader", Access(rights=frozenset({Right.READ}))),
        key("default", Access(rights=QUERY, tenants=frozenset({"default"}))),
        key("slow", Access(rights=QUERY), rate=10.0),
        key("short", Access(rights=QUERY), expires=time.time() + 3.0),
    ):
        add_key(found, one)
    return found


@pytest.fixture
def server(path: Path) -> Iterator[Server]:
    with Server(guard=AccessSettings(keys=path).open_guard()) as running:
        yield running


def with_key(key_id: str, secret: str = SECRET, scheme: str = "Bearer") -> bytes:
    field = f"Authorization: {scheme} {spell(key_id, secret)}\r\n".encode()
    return request(BODY).replace(b"\r\n", b"\r\n" + field, 1)


def statuses(server: Server, sent: bytes, count: int = MANY) -> list[int]:
    """Of so many requests, one after the other on one connection."""
    found = []
    with server.connect() as connection:
        for _ in range(count):
            connection.sendall(sent)
            answer = receive(connection)
            found.append(int(answer.split()[1]))
    return found


def counted(server: Server, key_id: str) -> float:
    return server.counts().get(f"reprise_key_requests_total{{'key': '{key_id}'}}", 0.0)


@pytest.mark.parametrize("key_id", ["all", "ops", "default"])
def test_a_key_of_all_tenants_is_answered_without_python_and_counted(
    server: Server, key_id: str
) -> None:
    assert statuses(server, with_key(key_id), 1) == [200]  # Python looks
    assert server.answered == 0
    assert statuses(server, with_key(key_id)) == [200] * MANY
    assert server.answered == MANY
    assert counted(server, key_id) == MANY + 1


def test_a_key_in_use_is_let_through_for_as_long_as_it_is_one(server: Server) -> None:
    """Longer than Python's word holds: it looks again by itself."""
    assert statuses(server, with_key("all"), 1) == [200]
    asked = 0
    until_s = time.monotonic() + KEY_ADMITTED_S + 2
    while time.monotonic() < until_s:
        assert statuses(server, with_key("all"), 1) == [200]
        asked += 1
        time.sleep(0.1)
    assert server.answered == asked


def test_nobody_else_is(server: Server) -> None:
    assert statuses(server, with_key("all"))[-1] == 200
    before = server.answered
    assert set(statuses(server, request(BODY), 5)) == {401}
    for refused in (
        with_key("all", "another-secret"),
        with_key("all").replace(b"rk_all", b"rk_ALL"),
        with_key("all").replace(b"Bearer", b"Digest"),
        with_key("nobody"),
    ):
        assert set(statuses(server, refused, 5)) == {401}
    assert set(statuses(server, with_key("reader"), 5)) == {403}
    # Python has to count these.
    assert statuses(server, with_key("slow"), 12) == [200] * 10 + [429] * 2
    assert server.answered == before


@pytest.mark.parametrize("wire", ["json", "octets"])
def test_a_key_of_a_tenant_is_answered_about_that_tenant_alone(server: Server, wire: str) -> None:
    def asked(tenant: str) -> bytes:
        if wire == "json":
            body = msgspec.json.encode(msgspec.json.decode(BODY) | {"tenant_id": tenant})
            sent = request(body)
        else:
            line = (
                b"POST /query?model=m&block_size=4&tenant_id=%b HTTP/1.1" % quote(tenant).encode()
            )
            sent = request(bytes(160), line=line).replace(b"json", b"octet-stream")
        field = f"Authorization: Bearer {spell('default', SECRET)}\r\n".encode()
        return sent.replace(b"\r\n", b"\r\n" + field, 1)

    assert statuses(server, asked("default"), 1) == [200]
    before = server.answered
    assert statuses(server, asked("default")) == [200] * MANY
    assert server.answered == before + MANY
    for other in ("blue", "Default", "default ", "defaul"):
        assert set(statuses(server, asked(other), 3)) == {403}
    assert server.answered == before + MANY


def test_a_field_that_stands_twice_is_pythons_to_read(server: Server) -> None:
    statuses(server, with_key("all"))
    before = server.answered
    field = f"Authorization: Bearer {spell('all', SECRET)}\r\n".encode()
    twice = with_key("all").replace(b"\r\n", b"\r\n" + field, 1)
    assert set(statuses(server, twice, 5)) == {200}
    assert server.answered == before


def test_a_revoked_key_is_refused_a_second_later_whoever_answers(
    server: Server, path: Path
) -> None:
    assert statuses(server, with_key("all"))[-1] == 200
    revoke_key(path, "all")
    revoked = time.monotonic()
    until(lambda: statuses(server, with_key("all"), 1) == [401], what="the end", timeout_s=10)
    # Some slack for a busy machine: it is the bound that counts, not the machine.
    assert time.monotonic() - revoked < KEY_FILE_CHECK_S + 5
    assert statuses(server, with_key("ops"))[-1] == 200
    assert set(statuses(server, with_key("all"), 5)) == {401}


def test_a_key_that_expires_is_refused_from_then_on(server: Server) -> None:
    assert statuses(server, with_key("short"), 1) == [200]
    assert statuses(server, with_key("short"))[-1] == 200
    assert server.answered > 0
    until(lambda: statuses(server, with_key("short"), 1) == [401], what="its end", timeout_s=10)
    assert set(statuses(server, with_key("short"), 5)) == {401}


def test_where_addresses_have_a_rate_python_counts_all_of_them() -> None:
    with Server(guard=AccessSettings(address_rate=1e6).open_guard()) as server:
        assert server.plain is None
        assert statuses(server, request(BODY), 5) == [200] * 5
