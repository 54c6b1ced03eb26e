"""The keys of a service: read from their file, again whenever it changes."""

import hmac
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from query_api.access.errors import expired_key, no_key, unknown_key
from query_api.access.keys import Key, read_authorization, read_key_file, read_keys
from query_api.bounds import KEYS_VERIFIED_MAX
from schemas.clock import REAL_CLOCK
from schemas.errors import ConfigurationError
from storage.files import version_of

KEY_FILE_CHECK_S: Final = 1.0  # between two looks whether the file of keys has changed
KEY_ADMITTED_S: Final = 5.0  # a header is let through without Python, unless the file changes

logger = logging.getLogger(__name__)
_NO_DIGEST: Final = bytes(32)


class KeyRing:
    """See the module. Used on one thread.

    A file that can no longer be read, or is wrong, changes nothing: the keys of before go on, and
    `problem` and the log say so, for an editor that is half through must not lock everybody out.

    Attributes:
        problem: what is wrong with the file now, in one sentence, or "".
        failures: how often it could not be read anew.
        when_changed: called after the keys have changed.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = REAL_CLOCK.unix,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        """Args:
        clock: Unix seconds.
        monotonic: seconds.

        Raises:
            ConfigurationError: the file cannot be read, or is wrong.
        """
        self.problem = ""
        self.failures = 0
        self.when_changed: Callable[[], None] = lambda: None
        self._path = path
        self._clock = clock
        self._monotonic = monotonic
        self._version = version_of(path)
        self._keys = self._read()
        self._certified = _certified(self._keys)
        self._verified: dict[bytes, Key] = {}
        self._next_look = monotonic() + KEY_FILE_CHECK_S

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, header: bytes) -> Key:
        """The key that an `Authorization` header has. Cost: under 1 us for one seen before; of a
        new one a hash, and of the first each KEY_FILE_CHECK_S a look at the file.

        Raises:
            AccessError: there is none, it is unknown or has expired.
        """
        if self._monotonic() >= self._next_look:
            self.refresh()
        key = self._verified.get(header)
        if key is None:
            key = self._verify(header)
            if len(self._verified) >= KEYS_VERIFIED_MAX:
                self._verified.clear()
            self._verified[header] = key
        if key.expires is not None and self._clock() >= key.expires:
            raise expired_key(key.id)
        return key

    def find_certified(self, names: Sequence[str]) -> Key | None:
        """The key of a client whose certificate is for one of these names; None where there is
        none.

        Raises:
            AccessError: it has expired.
        """
        if self._monotonic() >= self._next_look:
            self.refresh()
        for name in names:
            key = self._certified.get(name)
            if key is not None:
                if key.expires is not None and self._clock() >= key.expires:
                    raise expired_key(key.id)
                return key
        return None

    def holds_s(self, key: Key) -> float:
        """For how long the key need not be looked for again, where `refresh` is called meanwhile
        and `when_changed` is heeded: until it expires, or somebody has forgotten to.
        """
        if key.expires is None:
            return KEY_ADMITTED_S
        return max(min(KEY_ADMITTED_S, key.expires - self._clock()), 0.0)

    def _verify(self, header: bytes) -> Key:
        if not header:
            raise no_key()
        given = read_authorization(header)
        if given is None:
            raise unknown_key()
        key = self._keys.get(given.id)
        # Of an id that does not exist as long as of one that does.
        is_same = hmac.compare_digest(given.digest, _NO_DIGEST if key is None else key.digest)
        if key is None or not is_same:
            raise unknown_key()
        return key

    def refresh(self) -> None:
        """Reads the file, if it has changed."""
        self._next_look = self._monotonic() + KEY_FILE_CHECK_S
        try:
            version = version_of(self._path)
            if version == self._version and not self.problem:
                return
            keys = self._read()
        except ConfigurationError as error:
            self._complain(str(error))
            return
        self._version = version
        if self.problem:
            self.problem = ""
            logger.info("The file of keys can be read again: %s", self._path)
        if keys != self._keys:
            logger.info("Keys read from %s: %d", self._path, len(keys))
            self._keys = keys
            self._certified = _certified(keys)
            self._verified.clear()
            self.when_changed()

    def _complain(self, problem: str) -> None:
        self.failures += 1
        if problem != self.problem:
            self.problem = problem
            logger.error("%s. The keys that were read last stay in force", problem.rstrip("."))

    def _read(self) -> dict[str, Key]:
        return read_keys(read_key_file(self._path), str(self._path))


def _certified(keys: Mapping[str, Key]) -> dict[str, Key]:
    """The keys of each name that a certificate may be for."""
    return {key.certificate: key for key in keys.values() if key.certificate}
