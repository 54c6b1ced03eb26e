"""Keys, and the file that has them.

A key is `rk_<id>_<secret>`. The file has the SHA-256 of the secret only: 32 random bytes need no
slower hash. It is TOML, one table a key:

    [[key]]
    id = "router-1"
    sha256 = "..."                     # of the secret, 64 hex digits
    rights = ["query", "route", "feedback"]
    tenants = ["default"]              # without it: all
    expires = 2027-06-01T00:00:00Z     # without it: never
    rate = 500                         # requests a second; without it: as many as there are
    certificate = "router-1.example"   # a name of the client's certificate that stands for the key
"""

import base64
import hashlib
import re
import secrets
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from query_api.access.rights import Access, Right
from query_api.bounds import KEY_RATE_MAX
from schemas.errors import ConfigurationError
from schemas.limits import MIB, NAME_BYTES_MAX, SETTING_SHOWN_CHARS_MAX
from storage.files import read_file

KEYS_MAX: Final = 10_000  # in a file of keys
KEY_FILE_BYTES_MAX: Final = 16 * MIB  # of that file
KEY_SECRET_BYTES: Final = 32  # random; so many need no slow hash
KEY_TENANTS_MAX: Final = 1_000  # of one key

_ID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_KEY: Final = re.compile(rb"rk_([A-Za-z0-9.-]{1,64})_([A-Za-z0-9_-]{8,256})")
_FIELDS: Final = frozenset({"id", "sha256", "rights", "tenants", "expires", "rate", "certificate"})


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key, as the file has it.

    Attributes:
        digest: SHA-256 of its secret, 32 bytes.
        expires: Unix seconds; None: never.
        rate: requests a second; None: as many as there are.
        certificate: a client whose certificate is for this name needs no other key (mutual TLS);
            "" for none.
    """

    digest: bytes
    access: Access
    expires: float | None = None
    rate: float | None = None
    certificate: str = ""

    @property
    def id(self) -> str:
        """Its name, which is no secret."""
        return self.access.key_id


class PresentedKey(NamedTuple):
    """What a caller says to be its key."""

    id: str
    digest: bytes


def make_secret() -> str:
    """A new one, of KEY_SECRET_BYTES random bytes."""
    return base64.urlsafe_b64encode(secrets.token_bytes(KEY_SECRET_BYTES)).rstrip(b"=").decode()


def spell(key_id: str, secret: str) -> str:
    """The key as its holder sends it."""
    return f"rk_{key_id}_{secret}"


def digest_of(secret: str) -> bytes:
    """What the file has of it."""
    return hashlib.sha256(secret.encode()).digest()


def read_authorization(header: bytes) -> PresentedKey | None:
    """The key of `Authorization: Bearer <key>`, or of `Basic`, whose password it is; None where
    there is none.
    """
    scheme, _, value = header.partition(b" ")
    scheme, value = scheme.lower(), value.strip()
    if scheme == b"basic":
        try:
            _, _, value = base64.b64decode(value, validate=True).partition(b":")
        except ValueError:
            return None
    elif scheme != b"bearer":
        return None
    found = _KEY.fullmatch(value)
    if found is None:
        return None
    return PresentedKey(found[1].decode(), hashlib.sha256(found[2]).digest())


def check_id(key_id: str) -> str:
    """The id, if it can be one.

    Raises:
        ConfigurationError: it cannot.
    """
    if not _ID.fullmatch(key_id):
        raise ConfigurationError(
            "Expected a key's id of at most 64 letters, digits, `-` and `.`, got:"
            f" {key_id[:SETTING_SHOWN_CHARS_MAX]!r}"
        )
    return key_id


def check_tenants(tenants: frozenset[str], where: str) -> frozenset[str]:
    """The tenants, if they can be some.

    Args:
        where: what names them, for the error.

    Raises:
        ConfigurationError: none, too many, or a name that no tenant can have.
    """
    if not 0 < len(tenants) <= KEY_TENANTS_MAX:
        raise ConfigurationError(
            f"Expected 1 to {KEY_TENANTS_MAX} tenants in {where}, got: {len(tenants)}"
        )
    for name in tenants:
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise ConfigurationError(
                f"Expected tenants of 1 to {NAME_BYTES_MAX} bytes in {where}, got:"
                f" {name[:SETTING_SHOWN_CHARS_MAX]!r}"
            )
    return tenants


def check_rate(rate: float, where: str) -> float:
    """Requests a second, if they can be a bound.

    Raises:
        ConfigurationError: they cannot.
    """
    if not 0 < rate <= KEY_RATE_MAX:
        raise ConfigurationError(
            f"Expected a rate above 0, up to {KEY_RATE_MAX:g} requests/s, in {where}, got: {rate}"
        )
    return float(rate)


def read_key_file(path: Path) -> str:
    """The text of a file of keys.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        return read_file(path, KEY_FILE_BYTES_MAX).decode()
    except OSError as error:
        raise ConfigurationError(
            f"Cannot read the file of keys {path}: {error.strerror or error};"
            " `reprise keys add --file` makes one"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"Expected UTF-8 in the file of keys {path}: {error.reason} at byte {error.start}"
        ) from error


def read_keys(text: str, name: str) -> dict[str, Key]:
    """The keys of a file, by id.

    Args:
        name: of the file, for errors.

    Raises:
        ConfigurationError: the first thing that is wrong, and where. No secret is quoted.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"Expected TOML in {name}: {error}") from error
    for unknown in sorted(document.keys() - {"key"}):
        raise ConfigurationError(
            f"Expected tables [[key]] in {name}, got: {unknown[:SETTING_SHOWN_CHARS_MAX]!r}"
        )
    entries = document.get("key", [])
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise ConfigurationError(
            f"Expected at most {KEYS_MAX} tables [[key]] in {name}, got {_came(entries)}"
        )
    keys: dict[str, Key] = {}
    certificates: set[str] = set()
    for number, entry in enumerate(entries, 1):
        key = _read_key(entry, f"key {number} of {name}")
        if key.id in keys:
            raise ConfigurationError(f"Expected each id once in {name}, got twice: {key.id}")
        if key.certificate in certificates:
            raise ConfigurationError(
                f"Expected each certificate once in {name}, got twice that of: {key.id}"
            )
        keys[key.id] = key
        if key.certificate:
            certificates.add(key.certificate)
    return keys


def _read_key(entry: Any, where: str) -> Key:
    if not isinstance(entry, dict):
        raise ConfigurationError(f"Expected a table as {where}, got {_came(entry)}")
    for unknown in sorted(entry.keys() - _FIELDS):
        known = ", ".join(sorted(_FIELDS))
        shown = unknown[:SETTING_SHOWN_CHARS_MAX]
        raise ConfigurationError(f"Expected fields of {known} in {where}, got: {shown!r}")
    key_id = check_id(_text(entry, "id", where))
    where = f"{where} ({key_id})"
    certificate = _text(entry, "certificate", where) if "certificate" in entry else ""
    if certificate and not 0 < len(certificate.encode()) <= NAME_BYTES_MAX:
        raise ConfigurationError(
            f"Expected a certificate's name of 1 to {NAME_BYTES_MAX} bytes in {where}, got"
            f" {len(certificate.encode())}"
        )
    digest = _text(entry, "sha256", where)
    if not _DIGEST.fullmatch(digest):
        raise ConfigurationError(
            f"Expected sha256 of 64 hex digits in {where}, got {len(digest)} characters"
        )
    tenants = None
    if "tenants" in entry:
        tenants = check_tenants(frozenset(_texts(entry, "tenants", where)), where)
    rate = entry.get("rate")
    if rate is not None:
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise ConfigurationError(f"Expected rate to be a number in {where}, got {_came(rate)}")
        rate = check_rate(rate, where)
    return Key(
        digest=bytes.fromhex(digest),
        access=Access(key_id, _rights(entry, where), tenants),
        expires=_expires(entry, where),
        rate=rate,
        certificate=certificate,
    )


def _came(value: object) -> str:
    """What TOML has in place of what was expected; of a text not what it says: it may be a key."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, str):
        return "a text"
    return "a table" if isinstance(value, dict) else "a date or a time"


def _text(entry: dict[str, Any], field: str, where: str) -> str:
    value = entry.get(field)
    if not isinstance(value, str):
        raise ConfigurationError(f"Expected {field} to be a text in {where}, got {_came(value)}")
    return value


def _texts(entry: dict[str, Any], field: str, where: str) -> list[str]:
    values = entry.get(field)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigurationError(
            f"Expected {field} to be a list of texts in {where}, got {_came(values)}"
        )
    return values


def _rights(entry: dict[str, Any], where: str) -> frozenset[Right]:
    found = set()
    for text in _texts(entry, "rights", where):
        try:
            found.add(Right(text))
        except ValueError as error:
            known = ", ".join(Right)
            shown = text[:SETTING_SHOWN_CHARS_MAX]
            message = f"Expected rights of {known} in {where}, got: {shown!r}"
            raise ConfigurationError(message) from error
    return frozenset(found)


def _expires(entry: dict[str, Any], where: str) -> float | None:
    value = entry.get("expires")
    if value is None:
        return None
    if not isinstance(value, datetime):
        text = (
            f"Expected expires to be a date with a time, as 2027-06-01T00:00:00Z, in {where}, got"
            f" {_came(value)}"
        )
        raise ConfigurationError(text)
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
