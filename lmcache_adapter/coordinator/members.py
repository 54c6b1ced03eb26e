"""Who has registered at the coordinator, and is there. Pure; `now` is in monotonic seconds.

A member that has not sent a heartbeat for 30 s has left, as in LMCache's own coordinator. Nothing
of it outlasts a restart: a heartbeat that is answered by 404 makes its server register again.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from lmcache_adapter.bounds import LMCACHE_WORKERS_MAX
from lmcache_adapter.coordinator.wire import Register
from lmcache_adapter.topic.batches import Batch

COORDINATOR_LEFT_S: Final = 30.0  # without a heartbeat, as LMCache's `instance_timeout`
COORDINATOR_BACKENDS_MAX: Final = 64  # of one server's declaration: others are not shown

Backend = tuple[str, str, bool]
"""Tier, name, and whether it is shared."""


class Member(NamedTuple):
    """One server.

    Attributes:
        registered_wall: Unix seconds.
        heard_at: its last heartbeat.
    """

    instance_id: str
    registration: Register
    registered_wall: float
    heard_at: float


class Capacities:
    """What one server has said its backends can take.

    Attributes:
        of: bytes, by backend; 0 where it is not said.
    """

    def __init__(self, declaration: tuple[int, int]) -> None:
        self._declaration = declaration
        self.of: dict[Backend, int] = {}

    @property
    def declaration(self) -> tuple[int, int]:
        """Incarnation and revision."""
        return self._declaration


class Members:
    """See the module."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self.capacities: dict[str, Capacities] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, instance_id: object) -> bool:
        return instance_id in self._members

    def all(self) -> list[Member]:
        """In the order in which they came."""
        return list(self._members.values())

    def find(self, instance_id: str) -> Member | None:
        """That of this name."""
        return self._members.get(instance_id)

    def register(
        self, instance_id: str, registration: Register, *, now: float, wall: float
    ) -> bool | None:
        """Whether it was registered before; None where there is no room for one more."""
        known = instance_id in self._members
        if not known and len(self._members) >= LMCACHE_WORKERS_MAX:
            return None
        self._members[instance_id] = Member(instance_id, registration, wall, now)
        return known

    def beat(self, instance_id: str, now: float) -> bool:
        """Whether it is registered."""
        member = self._members.get(instance_id)
        if member is None:
            return False
        self._members[instance_id] = member._replace(heard_at=now)
        return True

    def remove(self, instance_id: str) -> bool:
        """It has left; whether it was there."""
        self.capacities.pop(instance_id, None)
        return self._members.pop(instance_id, None) is not None

    def silent(self, now: float) -> Iterable[str]:
        """Those that have not been heard of for too long."""
        return [
            one.instance_id
            for one in self._members.values()
            if now - one.heard_at > COORDINATOR_LEFT_S
        ]

    def declare(self, batch: Batch) -> None:
        """A batch of `config` has counted. A newer declaration takes the place of the whole one."""
        declaration = (batch.incarnation, batch.capacity_revision)
        known = self.capacities.get(batch.instance_id)
        if known is None and len(self.capacities) >= LMCACHE_WORKERS_MAX:
            return
        if known is None or declaration > known.declaration:
            known = self.capacities[batch.instance_id] = Capacities(declaration)
        if declaration == known.declaration and len(known.of) < COORDINATOR_BACKENDS_MAX:
            known.of[batch.tier, batch.backend, batch.shared] = batch.capacity_bytes
