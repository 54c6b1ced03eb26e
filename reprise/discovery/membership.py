"""Which engines there are, by what the API server has told so far. Pure; time is handed in.

Two sources tell of the same pods: pods with the label, and slices of Services with it. A pod is
there for as long as one of them says so; what the pod itself says counts first.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from reprise.discovery.engines import Engine

DISCOVERED_DELETED_MAX: Final = 4_096  # objects that are known to be gone; the oldest are forgotten


class PodSource(Enum):
    """Who tells of pods; what comes first counts first."""

    PODS = "pods"
    SLICES = "endpointslices"


class Membership:
    """Pods by uid. Cost O(pods) of each event, listing and question.

    Args:
        grace_s: for so long a pod that is gone stays wanted, unless another one takes its name:
            what it had can be asked for again where it was only the API server that lost it.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._told: dict[PodSource, dict[str, dict[str, Engine]]] = {one: {} for one in PodSource}
        self._known: dict[str, Engine] = {}
        self._gone_at: dict[str, float] = {}  # of those that nobody says are there
        self._was_ready: set[str] = set()
        # An object that is gone never comes back: an event that says so comes too late.
        self._deleted: OrderedDict[str, None] = OrderedDict()

    def listed(
        self, source: PodSource, objects: Mapping[str, Iterable[Engine]], now: float
    ) -> None:
        """All that there is, by the uid of the object that says so: what is not named is gone."""
        self._told[source] = {
            uid: {engine.uid: engine for engine in engines} for uid, engines in objects.items()
        }
        self._join(now)

    def changed(self, source: PodSource, uid: str, engines: Iterable[Engine], now: float) -> None:
        """What one object says now; nothing: it says that no engine is there."""
        if uid in self._deleted:
            return
        self._told[source][uid] = {engine.uid: engine for engine in engines}
        self._join(now)

    def deleted(self, source: PodSource, uid: str, now: float) -> None:
        """An object is there no more."""
        self._told[source].pop(uid, None)
        self._deleted[uid] = None
        if len(self._deleted) > DISCOVERED_DELETED_MAX:
            self._deleted.popitem(last=False)
        self._join(now)

    def wanted(self, now: float) -> list[Engine]:
        """Those to be registered, sorted: each that has been ready once, and those gone for less
        than the grace whose names nobody has taken.
        """
        names = {
            (engine.namespace, engine.pod)
            for uid, engine in self._known.items()
            if uid not in self._gone_at
        }
        for uid, gone_at in list(self._gone_at.items()):
            engine = self._known[uid]
            if now - gone_at >= self._grace_s or (engine.namespace, engine.pod) in names:
                del self._known[uid], self._gone_at[uid]
                self._was_ready.discard(uid)
        found = [engine for uid, engine in self._known.items() if uid in self._was_ready]
        return sorted(found, key=lambda one: (one.namespace, one.pod, one.uid))

    def next_end(self, now: float) -> float | None:
        """Seconds until a grace ends; None: there is none."""
        if not self._gone_at:
            return None
        return max(min(self._gone_at.values()) + self._grace_s - now, 0.0)

    def _join(self, now: float) -> None:
        found: dict[str, Engine] = {}
        for source in reversed(PodSource):
            for engines in self._told[source].values():
                found |= engines
                # A Service may know earlier than the kubelet's status whether it is ready.
                self._was_ready |= {uid for uid, engine in engines.items() if engine.is_ready}
        for uid in self._known.keys() - found.keys():
            self._gone_at.setdefault(uid, now)
        for uid in self._gone_at.keys() & found.keys():
            del self._gone_at[uid]
        self._known |= found
