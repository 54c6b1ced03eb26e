"""What is known of requests by the ids that their clients gave them: each tenant has its own."""

from collections.abc import Mapping
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class RequestNames(Generic[ValueT]):
    """Cost O(1) each. What is put is taken out by its owner, who bounds it."""

    def __init__(self) -> None:
        self._tenants: dict[str, dict[str, ValueT]] = {}

    def put(self, request_id: str, tenant_id: str, value: ValueT) -> None:
        """The last of that id; nothing where the request has none."""
        if request_id:
            self._tenants.setdefault(request_id, {})[tenant_id] = value

    def discard(self, request_id: str, tenant_id: str, value: ValueT) -> None:
        """Nothing is known by that id any more, unless another one has it by now."""
        named = self._tenants.get(request_id)
        if named is not None and named.get(tenant_id) == value:
            del named[tenant_id]
            if not named:
                del self._tenants[request_id]

    def by_tenant(self, request_id: str) -> Mapping[str, ValueT]:
        """All of that id."""
        return self._tenants.get(request_id, {})

    def find(self, request_id: str, tenant_id: str | None) -> ValueT | None:
        """That of a tenant; of None: whosever it is, if it is one tenant's."""
        return only(self.by_tenant(request_id), tenant_id)


def only(named: Mapping[str, ValueT], tenant_id: str | None) -> ValueT | None:
    """See `RequestNames.find`."""
    if tenant_id is None:
        return next(iter(named.values())) if len(named) == 1 else None
    return named.get(tenant_id)
