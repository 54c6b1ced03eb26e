"""What is booked at one target, added up."""

from typing import Final, NamedTuple

from routing.fold.booking import Booking, DecisionKey
from schemas.limits import LOAD_SUM_MAX


class Load(NamedTuple):
    """What is booked at a target.

    Attributes:
        wait_s: seconds until it would begin with another request.
        requests: under way.
        pending: tokens that it has yet to compute of these.
        active: tokens that they take in its KV cache, but for prefixes that others hold, too.
        decoding: of the requests, those that have had their first token, or are only decoded there.
        kv_tokens: that they take in the end, prefixes included.
    """

    wait_s: float = 0.0
    requests: int = 0
    pending: int = 0
    active: int = 0
    decoding: int = 0
    kv_tokens: int = 0


NO_LOAD: Final = Load()


class Place:
    """What is booked at one target."""

    __slots__ = ("active", "decoding", "free_at", "kv_tokens", "pending", "queued", "requests")

    def __init__(self) -> None:
        self.queued: dict[DecisionKey, Booking] = {}  # not computed yet, in order
        self.free_at = 0.0
        self.requests = self.pending = self.active = self.decoding = self.kv_tokens = 0


def load_of(place: Place, now: float) -> Load:
    """What is booked there, at that time."""
    wait = place.free_at - now if place.queued else 0.0
    pending, active, tokens = place.pending, place.active, place.kv_tokens
    return Load(
        wait if wait > 0.0 else 0.0,
        place.requests,
        pending if pending < LOAD_SUM_MAX else LOAD_SUM_MAX,
        active if active < LOAD_SUM_MAX else LOAD_SUM_MAX,
        place.decoding,
        tokens if tokens < LOAD_SUM_MAX else LOAD_SUM_MAX,
    )
