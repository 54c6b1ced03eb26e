"""Stands before every route: who asks, whether it may, and whether not too often."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Final

from query_api.access.errors import AccessError, too_often
from query_api.access.key_ring import KeyRing
from query_api.access.keys import Key
from query_api.access.rates import RateLimit, whole_seconds
from query_api.access.rights import OPEN, PROBE, Access, Right
from query_api.bounds import KEYS_VERIFIED_MAX
from schemas.clock import REAL_CLOCK
from schemas.limits import REFUSALS_LOG_S

KEYS_SHOWN_MAX: Final = 1_000  # as labels of a metric; all others are one more
KEY_FAILURES_PER_S: Final = 5.0  # requests of one address without a key that is known
KEY_FAILURES_BURST: Final = 50.0  # so many at once

_TOLD: Final = (Right.QUERY, Right.ROUTE, Right.FEEDBACK)
_WhenAdmitted = Callable[[bytes, float, bool, bool, bool, list[str] | None], None]
logger = logging.getLogger(__name__)
OTHER_KEYS: Final = "other"


class Guard:
    """Who may ask one service. Used on one thread.

    Attributes:
        ring: the keys; None: whoever reaches the address may ask.
        address_rate: requests a second of one address; None: as many as there are.
        opens_probes: whether `GET /health` and `/ready` say without a key, to any address, whether
            the service is up; to loopback they always do.
        when_admitted: called with the header of a query, of a request to be routed or of a report
            that was let through, where it may as well be elsewhere, since its key has no rate: for
            so many seconds, for queries, routes, reports, about these tenants; None: about any.
        when_changed: called when what `when_admitted` said holds no more.
        by_key: requests that were let through, by the key's id.
    """

    def __init__(
        self,
        ring: KeyRing | None = None,
        *,
        address_rate: float | None = None,
        opens_probes: bool = False,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self.ring = ring
        self.address_rate = address_rate
        self.opens_probes = opens_probes
        self.when_admitted: _WhenAdmitted = _nobody
        self.when_changed: Callable[[], None] = lambda: None
        if ring is not None:
            ring.when_changed = self._change
        self._admitted: dict[bytes, str] = {}
        self.refused: Counter[str] = Counter()
        self.by_key: Counter[str] = Counter()
        self._monotonic = monotonic
        self._keys = RateLimit(monotonic)
        self._addresses = RateLimit(monotonic)
        self._failures = RateLimit(monotonic)
        self._logged: Counter[str] = Counter()
        self._log_at = -REFUSALS_LOG_S

    @property
    def is_open(self) -> bool:
        """Whether it lets everything through."""
        return self.ring is None and self.address_rate is None

    def admit(
        self,
        authorization: bytes,
        address: str,
        right: Right,
        *,
        certificate: Sequence[str] = (),
        is_probe: bool = False,
    ) -> Access:
        """What the caller may do. Cost: under 2 us with a key that was seen before.

        Args:
            authorization: the value of that header, or b"".
            address: of the client; "" where it has none.
            right: that the route needs.
            certificate: the names of the client's, which counts where there is no authorization.
            is_probe: whether it is one that may be asked without a key.

        Raises:
            AccessError: it may not, or not now.
        """
        try:
            return self._admit(authorization, address, right, certificate, is_probe)
        except AccessError as error:
            self.refused[error.reason] += 1
            self._log()
            raise

    def _admit(
        self,
        authorization: bytes,
        address: str,
        right: Right,
        certificate: Sequence[str],
        is_probe: bool,
    ) -> Access:
        if self.address_rate is not None and address:
            wait = self._addresses.take(_network(address), self.address_rate)
            if wait:
                text = f"Expected at most {self.address_rate:g} requests/s of one address"
                raise too_often("address_rate", text, whole_seconds(wait))
        if self.ring is None:
            return OPEN
        if is_probe and not authorization and (self.opens_probes or _is_loopback(address)):
            return PROBE
        key = None
        if certificate and not authorization:
            key = self.ring.find_certified(certificate)
        if key is None:
            key = self._find(self.ring, authorization, address)
        access = key.access
        access.check(right)
        if key.rate is not None:
            wait = self._keys.take(key.id, key.rate)
            if wait:
                text = f"Expected at most {key.rate:g} requests/s of the key {key.id}"
                raise too_often("key_rate", text, whole_seconds(wait))
        self._count(key.id, 1)
        if right in _TOLD and key.rate is None and authorization:
            self._tell(self.ring, authorization, key)
        return access

    def _tell(self, ring: KeyRing, authorization: bytes, key: Key) -> None:
        holds_s = ring.holds_s(key)
        if len(self._admitted) >= KEYS_VERIFIED_MAX:
            self._admitted.clear()
        self._admitted[authorization] = key.id
        access = key.access
        tenants = None if access.tenants is None else list(access.tenants)
        queries, routes, reports = (access.may(right) for right in _TOLD)
        self.when_admitted(authorization, holds_s, queries, routes, reports, tenants)

    def _change(self) -> None:
        self.when_changed()

    def renew(self, answered: Iterable[tuple[bytes, int]]) -> None:
        """Looks at the file of keys, and tells those again that are in use. To be called about once
        in KEY_FILE_CHECK_S where `when_admitted` is heeded.

        Args:
            answered: headers that were told, and how many requests of each were answered elsewhere
                since the last call.
        """
        if self.ring is None:
            return
        self.ring.refresh()
        for authorization, requests in answered:
            self._count(self._admitted.get(authorization, OTHER_KEYS), requests)
            with suppress(AccessError):  # it is told to its next request
                key = self.ring.find(authorization)
                if key.rate is None:
                    self._tell(self.ring, authorization, key)

    def _count(self, key_id: str, requests: int) -> None:
        has_room = key_id in self.by_key or len(self.by_key) < KEYS_SHOWN_MAX
        self.by_key[key_id if has_room else OTHER_KEYS] += requests

    def _find(self, ring: KeyRing, authorization: bytes, address: str) -> Key:
        """The key. Who tries many wrong ones is told to wait; a right one of the same address is
        let in all the same, for behind a proxy all addresses are one.
        """
        try:
            return ring.find(authorization)
        except AccessError as error:
            name = _network(address)
            wait = self._failures.take(name, KEY_FAILURES_PER_S, KEY_FAILURES_BURST)
            if wait:
                text = "Too many requests of this address without a key that is known"
                raise too_often("key_failures", text, whole_seconds(wait)) from error
            raise

    def _log(self) -> None:
        now = self._monotonic()
        if now < self._log_at + REFUSALS_LOG_S:
            return
        news = self.refused - self._logged
        self._log_at, self._logged = now, self.refused.copy()
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(news.items()))
        logger.warning("Requests were refused, by reason: %s; their callers are told", counts)


def _nobody(
    header: bytes,
    seconds: float,
    queries: bool,
    routes: bool,
    reports: bool,
    tenants: list[str] | None,
) -> None:
    """Everything is answered here."""


def _network(address: str) -> str:
    """Who counts as one: an IPv4 address, or the /64 of an IPv6 one, which is one customer's."""
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    assert isinstance(parsed, IPv6Address)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> 64 << 64))


def _is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback
