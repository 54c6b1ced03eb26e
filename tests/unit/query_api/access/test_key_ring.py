"""Keys follow their file: a change, a revocation, damage, an end."""

import logging
import os
from pathlib import Path

import pytest

from query_api.access.errors import AccessError
from query_api.access.key_editing import add_key, list_keys, revoke_key
from query_api.access.key_ring import KEY_FILE_CHECK_S, KeyRing
from query_api.access.keys import KEY_FILE_BYTES_MAX, Key, digest_of, spell
from query_api.access.rights import Access, Right
from query_api.bounds import KEYS_VERIFIED_MAX
from schemas.errors import ConfigurationError

SECRET = "secret-secret"


def key(
    key_id: str,
    secret: str = SECRET,
    expires: float | None = None,
    rate: float | None = None,
    certificate: str = "",
) -> Key:
    access = Access(key_id, frozenset({Right.QUERY}))
    digest = digest_of(secret)
    return Key(digest=digest, access=access, expires=expires, rate=rate, certificate=certificate)


def bearer(key_id: str, secret: str = SECRET) -> bytes:
    return f"Bearer {spell(key_id, secret)}".encode()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def reason(ring: KeyRing, header: bytes) -> str:
    try:
        ring.find(header)
    except AccessError as error:
        found = error
    else:
        return "found"
    assert SECRET not in found.message
    return found.reason


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "keys.toml"
    add_key(found, key("a"))
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ring(path: Path, clock: Clock) -> KeyRing:
    return KeyRing(path, clock=clock, monotonic=clock)


def later(clock: Clock) -> None:
    clock.now += KEY_FILE_CHECK_S


def test_a_key_is_found_by_its_secret_alone(ring: KeyRing) -> None:
    assert ring.find(bearer("a")).id == "a"
    assert reason(ring, b"") == "no_key"
    assert reason(ring, bearer("a", "another-secret")) == "unknown_key"
    assert reason(ring, bearer("b")) == "unknown_key"
    assert reason(ring, b"Bearer nonsense") == "unknown_key"
    assert ring.find(bearer("a")).id == "a"


def test_keys_come_and_go_with_the_file(ring: KeyRing, path: Path, clock: Clock) -> None:
    changes = []
    ring.when_changed = lambda: changes.append(len(ring))
    assert ring.find(bearer("a")).id == "a"
    add_key(path, key("b"))
    later(clock)
    assert ring.find(bearer("b")).id == "b"
    revoke_key(path, "a")
    assert reason(ring, bearer("a")) == "found"  # not looked at yet
    later(clock)
    assert reason(ring, bearer("a")) == "unknown_key"
    assert reason(ring, bearer("b")) == "found"
    assert changes == [2, 1]


def test_a_key_ends_when_it_expires_also_one_seen_before(path: Path, clock: Clock) -> None:
    add_key(path, key("b", expires=1100.0))
    ring = KeyRing(path, clock=clock, monotonic=clock)
    assert reason(ring, bearer("b")) == "found"
    clock.now = 1099.0
    assert reason(ring, bearer("b")) == "found"
    clock.now = 1100.0
    assert reason(ring, bearer("b")) == "expired_key"
    assert reason(ring, bearer("b", "another-secret")) == "unknown_key"


@pytest.mark.parametrize("damage", ["gone", "torn", "binary", "large", "directory"])
def test_a_file_that_is_wrong_changes_nothing_until_it_is_right(
    ring: KeyRing, path: Path, clock: Clock, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    whole = path.read_bytes()
    path.unlink()
    if damage == "torn":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "binary":
        path.write_bytes(b"\xff\xfe")
    elif damage == "large":
        path.write_bytes(b"#" * (KEY_FILE_BYTES_MAX + 1))
    elif damage == "directory":
        path.mkdir()
    for _ in range(3):
        later(clock)
        assert reason(ring, bearer("a")) == "found"
    assert str(path) in ring.problem
    assert ring.failures == 3
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    assert "stay in force" in said[0].getMessage()
    if damage == "directory":
        path.rmdir()
    path.write_bytes(whole)
    later(clock)
    assert reason(ring, bearer("a")) == "found"
    assert ring.problem == ""


def test_a_file_that_can_never_be_read_to_its_end_changes_nothing(
    ring: KeyRing, path: Path, clock: Clock
) -> None:
    path.unlink()
    os.mkfifo(path)
    clock.now += KEY_FILE_CHECK_S
    assert ring.find(bearer("a")).access.key_id == "a"
    assert "is no regular file" in ring.problem
    with pytest.raises(ConfigurationError, match="regular file"):
        KeyRing(path)


def test_a_service_does_not_start_without_its_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Cannot read the file of keys"):
        KeyRing(tmp_path / "none.toml")


def test_what_is_remembered_of_headers_is_bounded(ring: KeyRing) -> None:
    for number in range(3 * KEYS_VERIFIED_MAX):
        ring.find(bearer("a") + b" " * (number % 5))
    assert reason(ring, bearer("a")) == "found"
    assert len(ring._verified) <= KEYS_VERIFIED_MAX


def test_the_file_is_for_its_owner_and_keeps_comments_and_mode(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    path.write_text(text + "# who: the router's team\n")
    os.chmod(path, 0o640)
    add_key(path, key("b", rate=5.0, expires=2e9))
    assert "# who: the router's team" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640
    assert SECRET not in path.read_text()
    revoke_key(path, "a")
    assert list(list_keys(path)) == ["b"]
    assert list_keys(path)["b"] == key("b", rate=5.0, expires=2e9)
    assert [one.name for one in path.parent.iterdir() if "lock" not in one.name] == ["keys.toml"]


def test_a_wrong_file_is_not_written_over(path: Path) -> None:
    path.write_text("[[key]]\nid = 1\n")
    with pytest.raises(ConfigurationError, match="key 1 of"):
        add_key(path, key("b"))
    with pytest.raises(ConfigurationError, match="key 1 of"):
        revoke_key(path, "a")
    assert path.read_text() == "[[key]]\nid = 1\n"


def test_an_id_is_made_once_and_revoked_once(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there already"):
        add_key(path, key("a"))
    revoke_key(path, "a")
    with pytest.raises(ConfigurationError, match="got: a"):
        revoke_key(path, "a")
    add_key(path, key("a"))
    assert list(list_keys(path)) == ["a"]
