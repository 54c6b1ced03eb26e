"""Changes to a file of keys: one at a time, and whole or not at all. Comments stay."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT

from query_api.access.keys import Key, check_id, read_key_file, read_keys
from schemas.errors import ConfigurationError

_HEAD = "Keys of Reprise: `reprise keys`. A key is shown once, when it is made; here is its hash."


def list_keys(path: Path) -> dict[str, Key]:
    """The keys of a file, by id.

    Raises:
        ConfigurationError: it cannot be read, or is wrong.
    """
    return read_keys(read_key_file(path), str(path))


def add_key(path: Path, key: Key) -> None:
    """Adds a key; makes the file, for its owner alone, where there is none.

    Raises:
        ConfigurationError: it has a key of that id, is wrong, or cannot be written.
    """

    def add(document: tomlkit.TOMLDocument) -> None:
        if any(entry["id"] == key.id for entry in document.get("key", ())):
            raise ConfigurationError(
                f"The key {key.id} is there already: `reprise keys revoke {key.id}` ends it"
            )
        entry = tomlkit.table()
        entry["id"] = check_id(key.id)
        entry["sha256"] = key.digest.hex()
        entry["rights"] = sorted(key.access.rights)
        if key.access.tenants is not None:
            entry["tenants"] = sorted(key.access.tenants)
        if key.expires is not None:
            entry["expires"] = datetime.fromtimestamp(int(key.expires), UTC)
        if key.rate is not None:
            entry["rate"] = key.rate
        if key.certificate:
            entry["certificate"] = key.certificate
        if not document.get("key"):
            document["key"] = tomlkit.aot()
        _tables(document, path).append(entry)

    _change(path, add, may_make=True)


def revoke_key(path: Path, key_id: str) -> None:
    """Takes a key out of the file; services end it within KEY_FILE_CHECK_S of their next request.

    Raises:
        ConfigurationError: it has none of that id, is wrong, or cannot be written.
    """

    def revoke(document: tomlkit.TOMLDocument) -> None:
        keys = _tables(document, path) if document.get("key") else ()
        for index, entry in enumerate(keys):
            if entry["id"] == key_id:
                assert isinstance(keys, AoT)
                del keys[index]
                if not keys:
                    del document["key"]
                return
        raise ConfigurationError(f"Expected a key of {path}, got: {key_id}")

    _change(path, revoke, may_make=False)


def _tables(document: tomlkit.TOMLDocument, path: Path) -> AoT:
    keys = document["key"]
    if not isinstance(keys, AoT):
        raise ConfigurationError(
            f"Expected keys as tables [[key]] in {path}, got a list: change it by hand"
        )
    return keys


def _change(path: Path, change: Callable[[tomlkit.TOMLDocument], None], *, may_make: bool) -> None:
    try:
        with _locked(path):
            if may_make and not path.exists():
                document = tomlkit.document()
                document.add(tomlkit.comment(_HEAD))
            else:
                text = read_key_file(path)
                read_keys(text, str(path))  # what is wrong is not written over
                document = tomlkit.parse(text)
            change(document)
            written = tomlkit.dumps(document)
            read_keys(written, str(path))
            _replace(path, written)
    except TOMLKitError as error:
        raise ConfigurationError(f"Expected TOML in {path}: {error}") from error
    except OSError as error:
        raise ConfigurationError(
            f"Cannot write the file of keys {path}: {error.strerror or error}"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time: by a file beside it, for the file itself is replaced."""
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: Path, text: str) -> None:
    """The file has the whole text, or what it had, whatever happens; owner and mode stay."""
    before = path.stat() if path.exists() else None
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            os.chmod(name, before.st_mode & 0o7777)
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.chown(name, before.st_uid, before.st_gid)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
