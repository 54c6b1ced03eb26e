"""What engines carry by their own word: the newest sample of each, a fold of load records.

Where there is no room for one more target, the tenant of which most are known loses its oldest: one
tenant's samples, however many, cost no other tenant any.
"""

from collections import OrderedDict
from collections.abc import Iterable

from schemas.limits import LOAD_SAMPLE_S, LOAD_TARGETS_MAX
from schemas.routing_records import LoadSample, Target


class Samples:
    """The newest sample of each target, by when it was observed. Cost O(1) a sample.

    Attributes:
        dropped: targets that had to go for others.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._newest: OrderedDict[Target, LoadSample] = OrderedDict()
        self._tenants: dict[str, OrderedDict[Target, None]] = {}

    def __len__(self) -> int:
        """Of how many targets."""
        return len(self._newest)

    def note(self, sample: LoadSample) -> bool:
        """Keeps it, unless a newer one is there; says whether it is kept."""
        known = self._newest.get(sample.target)
        if known is not None and known.observed_at > sample.observed_at:
            return False
        self._keep(sample)
        if len(self._newest) > LOAD_TARGETS_MAX:
            self._drop_one()
            self.dropped += 1
        return True

    def _keep(self, sample: LoadSample) -> None:
        target = sample.target
        self._newest[target] = sample
        self._newest.move_to_end(target)
        of_tenant = self._tenants.setdefault(target.tenant_id, OrderedDict())
        of_tenant[target] = None
        of_tenant.move_to_end(target)

    def _drop_one(self) -> None:
        """Cost O(tenants)."""
        tenant = max(self._tenants, key=lambda name: (len(self._tenants[name]), name))
        target = next(iter(self._tenants[tenant]))
        del self._newest[target]
        self._take_out(target)

    def _take_out(self, target: Target) -> None:
        of_tenant = self._tenants[target.tenant_id]
        del of_tenant[target]
        if not of_tenant:
            del self._tenants[target.tenant_id]

    def forget(self, target: Target) -> None:
        """Whoever has its name next is another one."""
        if self._newest.pop(target, None) is not None:
            self._take_out(target)

    def newest(self, target: Target, now: float) -> LoadSample | None:
        """That of a target; None where there is none that still says something."""
        sample = self._newest.get(target)
        if sample is None or now - sample.observed_at > LOAD_SAMPLE_S:
            return None
        return sample

    def all(self) -> tuple[LoadSample, ...]:
        """In the order in which they came, the oldest first."""
        return tuple(self._newest.values())

    def restore(self, samples: Iterable[LoadSample]) -> None:
        """The inverse of `all`."""
        for sample in samples:
            self._keep(sample)
