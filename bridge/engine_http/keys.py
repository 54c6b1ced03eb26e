"""Keys of engines that want one (`--api-key` of vLLM and SGLang), by the address of their HTTP
server.

Registrations come from whoever has the right to register, so a key goes to no address but those
that it is written for. It stands in no log, error or answer.

A file of keys is read again once it changes. One that cannot be read then, or is wrong, changes
nothing, and is logged.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from bridge.engine_http.address import BaseUrl, read_base_url
from schemas.clock import REAL_CLOCK
from schemas.conditions import Conditions, Part
from schemas.errors import ConfigurationError
from schemas.limits import KIB, MIB, PUBLISHERS_MAX
from storage.files import version_of

ENGINE_KEYS_LOOK_S: Final = 1.0  # between two looks whether the file of keys has changed
ENGINE_KEYS_NAMED_MAX: Final = 8  # engines that refuse theirs, in a condition
ENGINE_KEYS_BYTES_MAX: Final = 1 * MIB  # of a file of keys
ENGINE_KEY_CHARS_MAX: Final = 4 * KIB  # of one

VARIABLE: Final = "env:"
"""Before the name of a variable that has what a file would."""

_REFUSED: Final = frozenset({401, 403})
_GUARDED: Final = "/v1/"
"""What the paths begin with that vLLM answers by a right key alone; it answers others without."""

logger = logging.getLogger(__name__)


class EngineKey(NamedTuple):
    """One of them.

    Attributes:
        pattern: of the addresses that it is for, as `10.0.0.7:8000`, a name, or with `*` for any
            part; "" for the engines that the settings name.
        key: as the engine wants it.
    """

    pattern: str
    key: str


class EngineKeys:
    """See the module. Set once, at the start; read by any thread.

    Args:
        monotonic: seconds.

    Attributes:
        conditions: told which engines refuse their keys; None: nobody is.
    """

    def __init__(self, monotonic: Callable[[], float] = REAL_CLOCK.monotonic) -> None:
        self.conditions: Conditions | None = None
        self._monotonic = monotonic
        self._keys: Sequence[EngineKey] = ()
        self._named: frozenset[str] = frozenset()
        self._found: dict[BaseUrl, str] = {}
        self._refusing: set[str] = set()
        self._path: Path | None = None
        self._version: object = None
        self._next_look = 0.0

    def use(self, keys: Sequence[EngineKey]) -> None:
        """These and no others; of several for an address the first one counts."""
        self._keys = tuple(keys)
        self._found = {}
        self._path = None

    def follow(self, source: str) -> None:
        """Those that a file has, now and once it changes, or those that a variable has.

        Raises:
            ConfigurationError: see `read_engine_keys`.
        """
        path = None if source.startswith(VARIABLE) else Path(source)
        self._version = None if path is None else version_of(path)
        self.use(read_engine_keys(source))
        self._path = path
        self._next_look = self._monotonic() + ENGINE_KEYS_LOOK_S

    def name(self, base_urls: Iterable[str]) -> None:
        """The engines that the settings name."""
        self._named = frozenset(read_base_url(one).authority for one in base_urls)
        self._found = {}

    def of(self, url: BaseUrl) -> str:
        """The value of `Authorization` for an engine; "" for none. Cost O(1) the second time, and
        the first time each ENGINE_KEYS_LOOK_S a look at the file.
        """
        if self._path is not None and self._monotonic() >= self._next_look:
            self._look(self._path)
        found = self._found.get(url)
        if found is None:
            found = next((f"Bearer {one.key}" for one in self._keys if self._is_for(one, url)), "")
            if len(self._found) >= PUBLISHERS_MAX:
                self._found.clear()
            self._found[url] = found
        return found

    def _look(self, path: Path) -> None:
        self._next_look = self._monotonic() + ENGINE_KEYS_LOOK_S
        version = version_of(path)
        if version == self._version:
            return
        self._version = version
        try:
            self._keys = tuple(read_engine_keys(str(path)))
        except ConfigurationError as error:
            logger.warning("%s; the keys of engines that were read last stay in force", error)
            return
        self._found = {}
        logger.info("The keys of engines were read again")

    def note(self, url: BaseUrl, path: str, status: int) -> bool:
        """Notes what an engine answers to its key, where it has one; whether it refuses that."""
        if not self.of(url):
            return False
        if status in _REFUSED:
            if url.authority not in self._refusing:
                self._refusing.add(url.authority)
                self._tell()
            return True
        if url.authority in self._refusing and path.startswith(_GUARDED):
            self._refusing.remove(url.authority)
            self._tell()
        return False

    def keep(self, base_urls: Collection[str]) -> None:
        """Forgets what all engines but these have answered."""
        if self._refusing:
            self._refusing &= {read_base_url(one).authority for one in base_urls}
            self._tell()

    def _tell(self) -> None:
        if self.conditions is None:
            return
        if not self._refusing:
            self.conditions.clear(Part.ENGINE_KEYS)
            return
        more = ", ..." if len(self._refusing) > ENGINE_KEYS_NAMED_MAX else ""
        names = ", ".join(sorted(self._refusing)[:ENGINE_KEYS_NAMED_MAX])
        self.conditions.set(
            Part.ENGINE_KEYS,
            "key_refused",
            f"{len(self._refusing)} engines refuse the key that engines.keys has for them, and"
            f" answer nothing: {names}{more}",
        )

    def _is_for(self, one: EngineKey, url: BaseUrl) -> bool:
        if not one.pattern:
            return url.authority in self._named
        return fnmatchcase(url.authority, one.pattern) or fnmatchcase(url.host, one.pattern)


def read_engine_keys(source: str) -> list[EngineKey]:
    """The keys that a file or a variable has: `ADDRESS KEY` a line, or a key alone.

    Args:
        source: the path, or `env:NAME`.

    Raises:
        ConfigurationError: there is none, or it has something else. Nothing of it is said.
    """
    if source.startswith(VARIABLE):
        text = os.environ.get(source.removeprefix(VARIABLE), "")
        if not text:
            name = source.removeprefix(VARIABLE)[:80]
            text = f"Expected keys of engines in the variable {name!r}, got none"
            raise ConfigurationError(text)
    else:
        text = _read(Path(source))
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        pattern, key = ("", words[0]) if len(words) == 1 else (words[0], words[1])
        pattern = pattern.removeprefix("http://").removeprefix("https://").rstrip("/").lower()
        is_key = key.isascii() and key.isprintable() and len(key) <= ENGINE_KEY_CHARS_MAX
        if len(words) > 2 or not is_key:
            raise ConfigurationError(
                f"Expected ADDRESS KEY, or KEY alone, in line {number} of {source[:80]}, got"
                " something else"
            )
        found.append(EngineKey(pattern, key))
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(ENGINE_KEYS_BYTES_MAX + 1)
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise ConfigurationError(f"Cannot read the keys of engines in {path}: {reason}") from error
    if len(content) > ENGINE_KEYS_BYTES_MAX:
        text = f"Expected at most {ENGINE_KEYS_BYTES_MAX} bytes of keys in {path}, got more"
        raise ConfigurationError(text)
    return content.decode("utf-8", "replace")


ENGINE_KEYS: Final = EngineKeys()
"""Those of this process."""
