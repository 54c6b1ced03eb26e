"""Engines in memory that a service routes to, and that report what came of it."""

from tests.unit.routing.http.conftest import Service


class SimulatedEngines:
    """Each computes one prompt after another; reports are made when their time comes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._free_at: dict[str, float] = {}
        self._reports: list[tuple[float, str, str, float]] = []

    def take(
        self, instance: str, decision_id: str, seconds: float, event: str = "completed"
    ) -> float:
        """Gives an engine a request that keeps it busy so long. Returns the time to its first
        token, at which the event is reported.
        """
        now = self._service.clock.now
        self._free_at[instance] = max(self._free_at.get(instance, 0.0), now) + seconds
        ttft_s = self._free_at[instance] - now
        self._reports.append((self._free_at[instance], decision_id, event, 1000 * ttft_s))
        return ttft_s

    def pass_time(self, seconds: float) -> None:
        """So long, with what is reported meanwhile."""
        until = self._service.clock.now + seconds
        for at, decision_id, event, ttft_ms in sorted(self._reports):
            if at > until:
                break
            self._service.clock.now = max(at, self._service.clock.now)
            told = {"decision_id": decision_id, "event": event, "ttft_ms": ttft_ms}
            assert self._service.client.post_json("/feedback", told).status == 202
        self._reports = [one for one in self._reports if one[0] > until]
        self._service.clock.now = until
        self._service.write()
