"""The registry topic in memory: which publishers are registered, by the log that all roles share.

The topic is compacted and keyed by publisher, so the last entry of a publisher counts: where two
replicas write different registrations of one publisher at once, the later one in the log wins
everywhere, and both requests were answered with success.

An entry that cannot be read is skipped, counted and logged with its offset, as if it had never been
written. Pure.
"""

from collections import Counter
from collections.abc import Callable

from schemas.codec import TOO_MANY, decode_registry_entry
from schemas.errors import EntryError
from schemas.identities import PublisherKey
from schemas.limits import REGISTRY_ENTRIES_MAX
from schemas.registration import Registration


class RegistryTable:
    """One writer; `registrations` may be read from other threads.

    Args:
        on_change: told whether a publisher of events is registered now, where that may have
            changed.
    """

    def __init__(self, on_change: Callable[[PublisherKey, bool], None]) -> None:
        self._on_change = on_change
        self.registrations: dict[PublisherKey, Registration] = {}
        self.skipped: Counter[str] = Counter()
        self._ahead: dict[PublisherKey, int] = {}

    def put(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Applies an entry as it is read, in the order of its partition.

        Raises:
            EntryError: it was skipped, and counted in `skipped` by its reason.
        """
        try:
            self._put(offset, key, value)
        except EntryError as error:
            self.skipped[error.reason] += 1
            raise

    def _put(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        entry = decode_registry_entry(key, value)
        if entry is None:
            return
        publisher, registration = entry
        if offset < self._ahead.get(publisher, -1):
            return
        is_new = registration is not None and publisher not in self.registrations
        if is_new and len(self.registrations) >= REGISTRY_ENTRIES_MAX:
            detail = f"one more publisher than {REGISTRY_ENTRIES_MAX}"
            raise EntryError(TOO_MANY, detail=detail, publisher=publisher)
        self._ahead.pop(publisher, None)
        self._set(publisher, registration)

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
        self._on_change(publisher, registration is not None and registration.has_events)
