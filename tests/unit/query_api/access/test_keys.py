"""What a file of keys may say, what a header may, and what is said of errors in them."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query_api.access.keys import digest_of, make_secret, read_authorization, read_keys, spell
from query_api.access.rights import Right
from schemas.errors import ConfigurationError

DIGEST = hashlib.sha256(b"secret-secret").hexdigest()
WHOLE = f"""
# comment
[[key]]
id = "router-1"
sha256 = "{DIGEST}"
rights = ["query", "route"]
tenants = ["acme", "default"]
expires = 2027-06-01T00:00:00Z
rate = 2.5

[[key]]
id = "ops"
sha256 = "{DIGEST}"
rights = ["admin"]
"""


def test_a_file_says_who_may_do_what() -> None:
    keys = read_keys(WHOLE, "keys.toml")
    assert list(keys) == ["router-1", "ops"]
    one, other = keys.values()
    assert one.digest == digest_of("secret-secret")
    assert one.access.rights == {Right.QUERY, Right.ROUTE}
    assert one.access.tenants == frozenset({"acme", "default"})
    assert (one.expires, one.rate) == (1811808000.0, 2.5)
    assert (other.access.tenants, other.expires, other.rate) == (None, None, None)
    assert read_keys("", "empty.toml") == {}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('id = "ops"', 'id = "router-1"', "each id once in keys.toml, got twice: router-1"),
        ('id = "ops"', 'id = "a_b"', "a key's id of at most 64"),
        ('id = "ops"', "id = 1", "id to be a text in key 2 of keys.toml"),
        ('id = "ops"', "", "id to be a text in key 2 of keys.toml"),
        ('id = "ops"', 'id = "ops"\nright = 1', "fields of certificate, expires, id, rate, rights"),
        (f'sha256 = "{DIGEST}"', 'sha256 = "abc"', "64 hex digits in key 1 of keys.toml (router-1"),
        ('rights = ["admin"]', 'rights = ["root"]', "rights of query, route, feedback, register"),
        ('rights = ["admin"]', 'rights = "admin"', "rights to be a list of texts"),
        ('["acme", "default"]', "[]", "1 to 1000 tenants"),
        ('["acme", "default"]', '[""]', "tenants of 1 to"),
        ('["acme", "default"]', f'["{"x" * 10_000}"]', "tenants of 1 to"),
        ("rate = 2.5", "rate = 0", "a rate above 0"),
        ("rate = 2.5", "rate = nan", "a rate above 0"),
        ("rate = 2.5", "rate = inf", "a rate above 0"),
        ("rate = 2.5", "rate = true", "rate to be a number"),
        ("expires = 2027-06-01T00:00:00Z", 'expires = "soon"', "a date with a time"),
        ("expires = 2027-06-01T00:00:00Z", "expires = 2027-06-01", "a date with a time"),
        ("[[key]]", "[key", "Expected TOML in keys.toml"),
        ("[[key]]", "[[keys]]", "tables [[key]] in keys.toml, got: 'keys'"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(before: str, after: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_keys(WHOLE.replace(before, after, 1), "keys.toml")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_key_is_read_as_it_is_spelt() -> None:
    secret = make_secret()
    assert len(base64.urlsafe_b64decode(secret + "==")) == 32
    key = spell("router-1", secret)
    for header in (
        f"Bearer {key}",
        f"bearer  {key} ",
        "Basic " + base64.b64encode(f"anybody:{key}".encode()).decode(),
    ):
        given = read_authorization(header.encode())
        assert given == ("router-1", digest_of(secret))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer rk_a_short",
        b"Bearer xk_router_secretsecret",
        b"Digest rk_router_secretsecret",
        b"Basic !!!",
        b"Basic " + base64.b64encode(b"rk_router_secretsecret"),
        b"Bearer rk_router_secret secret",
        b"Bearer rk_router_" + b"s" * 257,
        b"Bearer \xff\xfe",
    ],
)
def test_what_is_no_key_is_none(header: bytes) -> None:
    assert read_authorization(header) is None


@given(st.binary(max_size=300))
def test_no_header_raises(header: bytes) -> None:
    read_authorization(header)
    read_authorization(b"Bearer rk_" + header)
    read_authorization(b"Basic " + base64.b64encode(header))
