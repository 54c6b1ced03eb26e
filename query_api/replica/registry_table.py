"""The registry topic in memory: which publishers are registered, by the log that all roles share.

The topic is compacted and keyed by publisher, so the last entry of a publisher counts: where two
replicas write different registrations of one publisher at once, the later one in the log wins
everywhere, and both requests were answered with success.

An entry that cannot be read is skipped, counted and named by its place, as if it had never been
written. Pure.
"""

import msgspec

from schemas.identities import PublisherKey
from schemas.registration import Registration
from schemas.topics import decode_publisher

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Registration)


def encode_registration(registration: Registration) -> bytes:
    """The value of an entry."""
    return _encoder.encode(registration)


class RegistryTable:
    """One writer; `registrations` may be read from other threads."""

    def __init__(self) -> None:
        self.registrations: dict[PublisherKey, Registration] = {}
        self.skipped = 0
        self._ahead: dict[PublisherKey, int] = {}

    def put(self, offset: int, key: bytes, value: bytes | None) -> str:
        """Applies an entry as it is read, in the order of its partition.

        Returns:
            "", or why it was skipped.
        """
        try:
            publisher = decode_publisher(key)
            registration = None if value is None else _decoder.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if value is None:
                return ""  # somebody cleans up after an entry that was skipped
            self.skipped += 1
            return str(error)
        if registration is not None and registration.publisher != publisher:
            self.skipped += 1
            return f"its key is another publisher's: {publisher}"
        if offset >= self._ahead.get(publisher, -1):
            self._ahead.pop(publisher, None)
            self._set(publisher, registration)
        return ""

    def put_written(
        self, offset: int, publisher: PublisherKey, registration: Registration | None
    ) -> None:
        """Applies an entry that this process has written and not read yet: what was acknowledged
        is seen at once, and what was written before it no longer counts.
        """
        if offset > self._ahead.get(publisher, -1):
            self._ahead[publisher] = offset
            self._set(publisher, registration)

    def _set(self, publisher: PublisherKey, registration: Registration | None) -> None:
        if registration is None:
            self.registrations.pop(publisher, None)
        else:
            self.registrations[publisher] = registration
