"""Which bridges may connect to a relay: a file of their public keys, one a line.

```text
vKe<U{Bd1-NzTc0w3iqP!4pWJ}%2m)Qf8Yr7sLhD  bridge-1
# what follows a key, and a line that begins with #, is for the reader
```
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bridge.sockets.curve import is_key
from schemas.clock import REAL_CLOCK
from schemas.errors import ConfigurationError
from schemas.limits import MIB
from storage.files import read_file, version_of

RELAY_BRIDGES_MAX: Final = 1024  # public keys in its list
RELAY_KEYS_BYTES_MAX: Final = 1 * MIB  # of the file with the list
RELAY_KEYS_CHECK_S: Final = 1.0  # how often it is looked whether the list has changed

_logger = logging.getLogger(__name__)


class BridgeKeys:
    """See the module. A file that cannot be used changes nothing: the list of before goes on, and
    the log says so once.

    `callback` is called by ZAP's thread (RFC 27), the others by the relay's.

    Args:
        monotonic: seconds.

    Attributes:
        refused: handshakes of keys that are not listed.
        problem: why the file cannot be used now, or "".

    Raises:
        ConfigurationError: it cannot be used.
    """

    def __init__(
        self, path: Path, *, monotonic: Callable[[], float] = REAL_CLOCK.monotonic
    ) -> None:
        self.refused = 0
        self.problem = ""
        self._path = path
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._version = version_of(path)
        self._keys = self._read()
        self._next_look = monotonic() + RELAY_KEYS_CHECK_S
        self._warned: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a bridge with this key may connect; see `zmq.auth`."""
        with self._lock:
            if key in self._keys:
                return True
            self.refused += 1
            is_new = key not in self._warned and len(self._warned) < RELAY_BRIDGES_MAX
            if is_new:
                self._warned.add(key)
        if is_new:
            _logger.warning(
                "Refusing a bridge whose public key %s is not in %s; add it there if it is yours",
                key.decode("ascii", "replace"),
                self._path,
            )
        return False

    def look(self) -> bool:
        """Reads the file again if it has changed, at most each RELAY_KEYS_CHECK_S.

        Returns:
            Whether a key is gone, so that links that are up may be those of a stranger.
        """
        if self._monotonic() < self._next_look:
            return False
        self._next_look = self._monotonic() + RELAY_KEYS_CHECK_S
        version = version_of(self._path)
        if version == self._version and not self.problem:
            return False
        try:
            keys = self._read()
        except ConfigurationError as error:
            if str(error) != self.problem:
                self.problem = str(error)
                _logger.error("%s. The list of before goes on", self.problem.rstrip("."))
            return False
        self._version, self.problem = version, ""
        with self._lock:
            gone = self._keys - keys
            changed = self._keys != keys
            self._keys = keys
            self._warned.clear()
        if changed:
            _logger.info("%d bridges are listed in %s", len(keys), self._path)
        return bool(gone)

    def _read(self) -> frozenset[bytes]:
        expected = f"Expected public keys of bridges, one a line, in {self._path}"
        try:
            content = read_file(self._path, RELAY_KEYS_BYTES_MAX)
        except OSError as error:
            raise ConfigurationError(f"{expected}: {error.strerror}") from error
        keys: set[bytes] = set()
        for number, line in enumerate(content.splitlines(), 1):
            words = line.split()
            if words and is_key(words[0]):
                keys.add(words[0])
            elif words and not words[0].startswith(b"#"):
                raise ConfigurationError(f"{expected}: line {number} does not begin with one")
        if len(keys) > RELAY_BRIDGES_MAX:
            raise ConfigurationError(f"{expected}, {RELAY_BRIDGES_MAX} at most, got {len(keys)}")
        return frozenset(keys)
