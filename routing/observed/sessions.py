"""Where the last request of a session went, and what that is worth: a fold of decisions.

A session's prefix is where its last request was computed, so mostly the index says the same. This
says it before the first event, and of engines that publish none.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from routing.bounds import SESSIONS_MAX
from routing.interface import Choice
from routing.sizes import OBJECT_SIZE, target_bytes, text_bytes
from schemas.limits import MIB
from schemas.routing_records import Decision, Target

SESSIONS_BYTES_MAX: Final = 64 * MIB  # of them, with their names: likewise
AFFINITY_S: Final = 900.0  # without a request, after which a session is forgotten

AFFINITY_SHARE: Final = 0.1
"""The last instance wins where its key is above the best by at most this share of it."""

AFFINITY_SHARE_OF_SECONDS: Final = 0.25
"""The same where keys are seconds: with less, sessions give less than 80 % of what events do, where
there are none (docs/offline.md). A share of other keys may be many seconds.
"""

AFFINITY_SECONDS: Final = 0.05
"""Or by at most so much, where keys are seconds."""

SessionKey = tuple[str, str]
"""Tenant, and the session's name there."""


class SessionsState(msgspec.Struct, frozen=True, array_like=True):
    """See `Sessions.state`; its encoding is canonical."""

    sessions: tuple[tuple[SessionKey, float, Target], ...]
    forgotten: int


class Sessions:
    """At most `most`, in `bytes_most`; the one without a request for longest goes first. Cost O(1).

    Attributes:
        forgotten: that were given up for want of room.
    """

    def __init__(self, most: int = SESSIONS_MAX, bytes_most: int = SESSIONS_BYTES_MAX) -> None:
        self.forgotten = 0
        self._most = most
        self._bytes_most = bytes_most
        self._bytes = 0
        self._last: OrderedDict[SessionKey, tuple[float, Target]] = OrderedDict()

    def __len__(self) -> int:
        """How many are remembered, those that are too old among them."""
        return len(self._last)

    def decided(self, time: float, decision: Decision) -> None:
        """A request was sent to somebody, by the time of records, which never goes back."""
        place = decision.chosen if decision.chosen >= 0 else decision.decode
        if not decision.session_id or not 0 <= place < len(decision.candidates):
            return
        key = (decision.scope.tenant_id, decision.session_id)
        self.note(time, key, decision.target(place))

    def note(self, time: float, key: SessionKey, target: Target) -> None:
        """A request of the session was sent there."""
        self._keep(key, time, target)
        self._expire(time)
        while len(self._last) > self._most or self._bytes > self._bytes_most:
            self._drop(next(iter(self._last)))
            self.forgotten += 1

    def _keep(self, key: SessionKey, time: float, target: Target) -> None:
        if key in self._last:
            self._drop(key)
        self._last[key] = (time, target)
        self._bytes += OBJECT_SIZE + text_bytes(*key) + target_bytes(target)

    def _drop(self, key: SessionKey) -> None:
        _, target = self._last.pop(key)
        self._bytes -= OBJECT_SIZE + text_bytes(*key) + target_bytes(target)

    def forget(self, key: SessionKey) -> None:
        """Nothing is remembered of a session."""
        if key in self._last:
            self._drop(key)

    def last(self, tenant_id: str, session_id: str, now: float) -> tuple[float, Target] | None:
        """When its last request went where; None where that is not known, or too long ago."""
        found = self._last.get((tenant_id, session_id))
        return found if found is not None and found[0] + AFFINITY_S > now else None

    def state(self) -> SessionsState:
        """All of it. Cost O(sessions)."""
        return SessionsState(
            tuple((key, time, target) for key, (time, target) in self._last.items()),
            self.forgotten,
        )

    def restore(self, state: SessionsState) -> None:
        """The inverse of `state`, into one that is empty."""
        self.forgotten = state.forgotten
        for key, time, target in state.sessions:
            self._keep(key, time, target)

    def _expire(self, now: float) -> None:
        while self._last and next(iter(self._last.values()))[0] + AFFINITY_S <= now:
            self._drop(next(iter(self._last)))


def with_affinity(
    choices: Sequence[Choice], last: Target | None, *, keys_are_seconds: bool
) -> list[Choice]:
    """The choices, with the session's last instance first where it is nearly the best.

    Args:
        choices: of a policy, the best first.
        last: where the session's last request went.
        keys_are_seconds: of the policy; else only the share counts.
    """
    ordered = list(choices)
    if last is None or not ordered:
        return ordered
    best = ordered[0].key
    most = best + AFFINITY_SHARE * abs(best)
    if keys_are_seconds:
        most = best + max(AFFINITY_SHARE_OF_SECONDS * abs(best), AFFINITY_SECONDS)
    for place, choice in enumerate(ordered):
        if choice.key > most:
            break
        one = choice.candidate
        if (one.instance_id, one.dp_rank) == (last.instance_id, last.dp_rank):
            return [choice, *ordered[:place], *ordered[place + 1 :]]
    return ordered
