"""Where the last requests of sessions went, own decisions included that are not back yet."""

from routing.bounds import SESSIONS_MAX
from routing.observed.sessions import SessionKey, Sessions
from routing.overlay.own_records import OwnRecords, Stamps
from schemas.routing_records import Decision, Target


class OverlaidSessions:
    """See the module. An own decision that is not back counts as later than all of the fold.

    Attributes:
        base: of the fold.
    """

    def __init__(self, own: OwnRecords) -> None:
        """Args:
        own: records of this process.
        """
        self.base = Sessions()
        self._own = Sessions()
        self._stamps: Stamps[SessionKey] = Stamps(own, SESSIONS_MAX)

    def decided(self, now: float, decision: Decision) -> None:
        """An own decision, told last."""
        if decision.session_id:
            self._own.decided(now, decision)
            for gone in self._stamps.put((decision.scope.tenant_id, decision.session_id)):
                self._own.forget(gone)

    def leave(self) -> None:
        """Gives up what came back, or is lost."""
        for key in self._stamps.leaving():
            self._own.forget(key)

    def last(self, tenant_id: str, session_id: str, now: float) -> Target | None:
        """Where the last request of a session went; None where that is not known."""
        found = self._own.last(tenant_id, session_id, now)
        found = found or self.base.last(tenant_id, session_id, now)
        return None if found is None else found[1]
