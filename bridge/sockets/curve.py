"""CURVE: the encryption of ZMQ's own links (CurveZMQ), between `reprise relay` and bridges.

A relay has a key pair, and so has each bridge. The public key of a relay is registered with its
engine, so a bridge connects to whoever has the secret one and to nobody else; the relay lists the
public keys of its bridges. All keys are 40 characters of Z85, as libzmq writes them.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import zmq
from zmq.auth import load_certificate

from schemas.errors import ConfigurationError, CurveError
from schemas.limits import SETTINGS_FILE_BYTES_MAX
from schemas.registration import is_curve_key
from storage.files import read_file

HANDSHAKE_FAILED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
)
"""What a socket's monitor tells of a link that did not come up."""


class KeyPair(NamedTuple):
    """Both keys, as Z85."""

    public: bytes
    secret: bytes


def is_key(text: bytes) -> bool:
    """See `is_curve_key`."""
    return is_curve_key(text.decode("latin-1"))


def read_key_pair(path: Path) -> KeyPair:
    """The keys of a file such as `zmq.auth.create_certificates` and `reprise curve-key` write.

    Raises:
        ConfigurationError: it cannot be read, or is no such file; never quotes what is in it.
    """
    try:
        read_file(path, SETTINGS_FILE_BYTES_MAX)  # pyzmq would wait for what is no file
        public, secret = load_certificate(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be read, or names no public-key"
        raise ConfigurationError(
            f"Expected a key pair of CURVE in {path}, as `reprise curve-key` makes them: {reason}"
        ) from error
    if secret is None:
        raise ConfigurationError(
            f"Expected a secret-key in {path}: it has the public one alone, which is for the others"
        )
    if not (is_key(public) and is_key(secret)) or zmq.curve_public(secret) != public:
        raise ConfigurationError(
            f"Expected two keys of 40 characters that belong together in {path}, got others; make a"
            " pair with `reprise curve-key`"
        )
    return KeyPair(public, secret)


def is_readable_by_others(path: Path) -> bool:
    """Whether other users of this machine may read the file."""
    return bool(os.stat(path).st_mode & 0o077)


def why_refused(event: Mapping[str, Any], *, is_encrypted: bool) -> str:
    """Why the handshake of a link has failed; "" where it was cut, or that is not known.

    Args:
        event: one of HANDSHAKE_FAILED, as `parse_monitor_message` has it.
        is_encrypted: whether the link was to be.
    """
    if event["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "it does not list this process's public key"
    if event["value"] == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        if is_encrypted:
            return "it does not encrypt, but is registered with a curve_server_key"
        return "it encrypts, but is registered without a curve_server_key"
    if is_encrypted:
        return "the handshake fails: it may have another key than the curve_server_key"
    return ""


class CurveClient:
    """This process's side of encrypted links. Set once, at the start; used by any thread.

    Attributes:
        required: whether engines without a key are connected to at all.
    """

    def __init__(self) -> None:
        self.required = False
        self._pair: KeyPair | None = None

    def use(self, pair: KeyPair | None, *, required: bool = False) -> None:
        """Takes the process's own keys; None: it has none, and reaches no relay."""
        self._pair, self.required = pair, required

    def check(self, server_key: str) -> None:
        """Whether such a link can be had.

        Args:
            server_key: public, of the other end; "" where that does not encrypt.

        Raises:
            CurveError: it cannot.
        """
        if not server_key:
            if self.required:
                raise CurveError(
                    "Expected a curve_server_key, got none: engines.require_curve lets engines be"
                    " followed by `reprise relay` only"
                )
            return
        if not is_key(server_key.encode()):
            raise CurveError(
                "Expected the public key of a relay as curve_server_key, 40 characters, got:"
                f" {server_key[:80]!r}"
            )
        if self._pair is None:
            raise CurveError(
                "Expected engines.curve_key where an engine is registered with a curve_server_key:"
                " this process has no key of its own; make one with `reprise curve-key`"
            )

    def secure(self, socket: "zmq.Socket[Any]", server_key: str) -> None:
        """Has the socket, which is not connected yet, encrypt, where there is a key to do it with.

        Args:
            socket: of the calling thread.
            server_key: see `check`.

        Raises:
            CurveError: see `check`.
        """
        self.check(server_key)
        if server_key and self._pair is not None:
            socket.curve_serverkey = server_key.encode()
            socket.curve_publickey, socket.curve_secretkey = self._pair


CURVE: Final = CurveClient()
"""That of this process."""
