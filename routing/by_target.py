"""What is kept of each target, bounded.

Where there is no room for one more target, the tenant of which most are known loses its oldest: one
tenant's targets, however many, cost no other tenant any.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from routing.bounds import LOAD_TARGETS_MAX
from schemas.routing_records import Target

ValueT = TypeVar("ValueT")


class ByTarget(Generic[ValueT]):
    """See the module; in the order in which they were put last. Cost O(1) each.

    Attributes:
        dropped: targets that had to go for others.
        get: what is kept of a target, or None.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._known: OrderedDict[Target, ValueT] = OrderedDict()
        self._tenants: dict[str, OrderedDict[Target, None]] = {}
        self.get: Callable[[Target], ValueT | None] = self._known.get

    def __len__(self) -> int:
        """Of how many targets."""
        return len(self._known)

    def put(self, target: Target, value: ValueT) -> None:
        """Keeps it in place of what was."""
        self._known[target] = value
        self._known.move_to_end(target)
        of_tenant = self._tenants.get(target.tenant_id)
        if of_tenant is None:
            of_tenant = self._tenants[target.tenant_id] = OrderedDict()
        of_tenant[target] = None
        of_tenant.move_to_end(target)
        if len(self._known) > LOAD_TARGETS_MAX:
            tenant = max(self._tenants, key=lambda name: (len(self._tenants[name]), name))
            self.pop(next(iter(self._tenants[tenant])))
            self.dropped += 1

    def pop(self, target: Target) -> None:
        """Nothing is kept of it."""
        if self._known.pop(target, None) is None:
            return
        of_tenant = self._tenants[target.tenant_id]
        del of_tenant[target]
        if not of_tenant:
            del self._tenants[target.tenant_id]

    def items(self) -> Iterator[tuple[Target, ValueT]]:
        """All of it, the oldest first; it must not change meanwhile."""
        return iter(self._known.items())
