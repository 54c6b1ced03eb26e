"""Who is let through, how often, and what is remembered of those who are not."""

from pathlib import Path

import pytest

from query_api.access.access_settings import AccessSettings, check_loopback
from query_api.access.errors import AccessError
from query_api.access.guard import KEY_FAILURES_BURST, KEYS_SHOWN_MAX, OTHER_KEYS, Guard
from query_api.access.key_editing import add_key
from query_api.access.key_ring import KeyRing
from query_api.access.keys import Key, digest_of, spell
from query_api.access.rates import RATE_BUCKETS_MAX, RateLimit
from query_api.access.rights import PROBE, Access, Right
from schemas.errors import ConfigurationError

SECRET = "secret-secret"
FAR = "198.51.100.7"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def guard_of(path: Path, clock: Clock, *keys: Key, **options: float | bool) -> Guard:
    for one in keys:
        add_key(path, one)
    ring = KeyRing(path, clock=clock, monotonic=clock)
    return Guard(ring, monotonic=clock, **options)  # type: ignore[arg-type]


def key(key_id: str = "a", *rights: Right, rate: float | None = None) -> Key:
    access = Access(key_id, frozenset(rights or {Right.QUERY}))
    return Key(digest=digest_of(SECRET), access=access, rate=rate)


def bearer(key_id: str = "a") -> bytes:
    return f"Bearer {spell(key_id, SECRET)}".encode()


def refused(guard: Guard, header: bytes, right: Right = Right.QUERY, address: str = FAR) -> str:
    try:
        guard.admit(header, address, right)
    except AccessError as error:
        found = error
    else:
        return ""
    if found.status == 429:
        assert int(found.headers["retry-after"]) >= 1
    if found.status == 401:
        assert found.headers["www-authenticate"].startswith("Basic realm=")
    return found.reason


@pytest.mark.parametrize("right", list(Right))
def test_a_key_has_its_rights_and_admin_has_all(tmp_path: Path, clock: Clock, right: Right) -> None:
    guard = guard_of(tmp_path / "k", clock, key("a", right), key("ops", Right.ADMIN))
    for asked in Right:
        expected = "" if right in (asked, Right.ADMIN) else "no_right"
        assert refused(guard, bearer(), asked) == expected
        assert refused(guard, bearer("ops"), asked) == ""


def test_a_key_may_ask_as_often_as_its_rate_says(tmp_path: Path, clock: Clock) -> None:
    guard = guard_of(tmp_path / "k", clock, key(rate=10.0), key("b"))
    assert [refused(guard, bearer()) for _ in range(11)] == [""] * 10 + ["key_rate"]
    assert refused(guard, bearer("b")) == ""
    clock.now += 0.5
    assert [refused(guard, bearer()) for _ in range(6)] == [""] * 5 + ["key_rate"]
    assert guard.refused == {"key_rate": 2}
    assert guard.by_key == {"a": 15, "b": 1}


def test_an_address_may_ask_as_often_as_its_rate_says(clock: Clock) -> None:
    guard = Guard(address_rate=2.0, monotonic=clock)
    assert [refused(guard, b"") for _ in range(3)] == ["", "", "address_rate"]
    assert refused(guard, b"", address="198.51.100.8") == ""
    # One customer has 2**64 addresses, which are one here; and an IPv4 address is itself in IPv6.
    six = [f"2001:db8:0:1::{number:x}" for number in range(3)]
    assert [refused(guard, b"", address=one) for one in six] == ["", "", "address_rate"]
    assert refused(guard, b"", address="2001:db8:0:2::") == ""
    assert refused(guard, b"", address=f"::ffff:{FAR}") == "address_rate"
    assert refused(guard, b"", address="") == ""


def test_who_tries_keys_is_told_to_wait_and_a_right_key_of_there_is_let_in(
    tmp_path: Path, clock: Clock
) -> None:
    guard = guard_of(tmp_path / "k", clock, key())
    wrong = [refused(guard, b"Bearer rk_a_%010d" % number) for number in range(60)]
    assert wrong == ["unknown_key"] * int(KEY_FAILURES_BURST) + ["key_failures"] * 10
    assert refused(guard, bearer()) == ""
    assert refused(guard, b"Bearer rk_a_0000000000", address="198.51.100.8") == "unknown_key"
    clock.now += 1.0
    assert refused(guard, b"") == "no_key"


@pytest.mark.parametrize(
    ("address", "opens", "is_let_in"),
    [
        ("127.0.0.1", False, True),
        ("::1", False, True),
        ("::ffff:127.0.0.1", False, True),
        (FAR, False, False),
        (FAR, True, True),
        ("", False, False),
        ("unix", False, False),
    ],
)
def test_probes_need_no_key_on_loopback_or_where_they_are_opened(
    tmp_path: Path, clock: Clock, address: str, opens: bool, is_let_in: bool
) -> None:
    guard = guard_of(tmp_path / "k", clock, key("a", Right.READ), opens_probes=opens)
    try:
        found = guard.admit(b"", address, Right.READ, is_probe=True)
    except AccessError:
        assert not is_let_in
    else:
        assert is_let_in
        assert found is PROBE
    assert not guard.admit(bearer(), address, Right.READ, is_probe=True).is_probe


def test_names_in_metrics_are_bounded(tmp_path: Path, clock: Clock) -> None:
    guard = guard_of(tmp_path / "k", clock, key())
    guard.by_key.update({f"k{number}": 1 for number in range(KEYS_SHOWN_MAX)})
    guard.admit(bearer(), FAR, Right.QUERY)
    assert guard.by_key[OTHER_KEYS] == 1
    assert len(guard.by_key) == KEYS_SHOWN_MAX + 1


def test_names_whose_rate_is_known_are_bounded(clock: Clock) -> None:
    limit = RateLimit(clock)
    for number in range(RATE_BUCKETS_MAX + 10):
        assert limit.take(str(number), 1.0) == 0.0
    assert len(limit._buckets) == RATE_BUCKETS_MAX
    assert limit.take(str(RATE_BUCKETS_MAX), 1.0) > 0.0  # heard of a moment ago
    assert limit.take("0", 1.0) == 0.0  # forgotten


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    AccessSettings().check_host(host, "--host")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "", "no such host", "x" * 300])
def test_beyond_loopback_needs_keys_or_a_word(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--host.*--keys FILE.*--insecure"):
        AccessSettings().check_host(host, "--host")
    AccessSettings(is_insecure=True).check_host(host, "--host")
    AccessSettings(keys=Path("keys.toml")).check_host(host, "--host")
    with pytest.raises(ConfigurationError, match="--metrics-host"):
        check_loopback(host, "--metrics-host", False)
