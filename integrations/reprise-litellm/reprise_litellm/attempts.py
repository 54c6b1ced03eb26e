"""Requests under way, by LiteLLM's names of them: a request is a trace, an attempt of it a call.

Every table is bounded; what has no room is forgotten, oldest first, and Reprise lets its booking
expire by itself.
"""

import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

DECIDED_MAX: Final = 4096
"""Decisions whose request has not gone out yet."""

CALLS_MAX: Final = 65536
"""Requests that have gone out, and of which nothing is known since."""

FAILED_TRACES_MAX: Final = 4096
"""Requests of which an attempt has failed, and that may be tried again."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One decision of Reprise; `since` is monotonic, seconds."""

    decision_id: str
    instance_id: str
    dp_rank: int
    since: float = field(default_factory=time.monotonic)

    @property
    def outcome(self) -> dict[str, Any]:
        """The fields of `/feedback` that say what it is about."""
        return {
            "decision_id": self.decision_id,
            "instance_id": self.instance_id,
            "dp_rank": self.dp_rank,
        }

    def ttft(self) -> dict[str, float]:
        """How long it has taken, if the first token comes now."""
        return {"ttft_ms": round((time.monotonic() - self.since) * 1000, 3)}


class _Bounded(OrderedDict[K, V], Generic[K, V]):
    """Forgets the oldest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> None:
        self[key] = value
        while len(self) > self._most:
            self.popitem(last=False)


class Attempts:
    """See the module."""

    def __init__(self) -> None:
        self._decided = _Bounded[tuple[str, str], Attempt](DECIDED_MAX)
        self._calls = _Bounded[str, tuple[str, str, Attempt]](CALLS_MAX)
        self._failed = _Bounded[str, frozenset[str]](FAILED_TRACES_MAX)

    def decided(self, trace_id: str, deployment_id: str, attempt: Attempt) -> None:
        """Reprise has chosen this deployment for the request."""
        self._decided.keep((trace_id, deployment_id), attempt)

    def sent(self, trace_id: str, deployment_id: Any, call_id: Any) -> Attempt | None:
        """The decision, if there is one, that the call carries out."""
        if not isinstance(deployment_id, str) or not isinstance(call_id, str):
            return None
        attempt = self._decided.pop((trace_id, deployment_id), None)
        if attempt is not None:
            self._calls.keep(call_id, (trace_id, deployment_id, attempt))
        return attempt

    def is_open(self, call_id: str) -> bool:
        """Whether nothing was heard of the end of the call."""
        return call_id in self._calls

    def ended(self, call_id: str, *, failed: bool) -> Attempt | None:
        """The decision that the call carried out, once."""
        found = self._calls.pop(call_id, None)
        if found is None:
            return None
        trace_id, deployment_id, attempt = found
        if failed:
            before = self._failed.get(trace_id, frozenset())
            self._failed.keep(trace_id, before | {deployment_id})
        else:
            self._failed.pop(trace_id, None)
        return attempt

    def failed_deployments(self, trace_id: str) -> frozenset[str]:
        """Those that have failed this request."""
        return self._failed.get(trace_id, frozenset())
