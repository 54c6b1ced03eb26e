"""What a caller may do, and whose data it sees.

Every request is made with an `Access`, the empty service's `OPEN` where there are no keys. Routes
ask it three things: `tenant_of` for the tenant that a request is about, `admits` for what may be
shown, `check_all_tenants` where an answer cannot be told apart by tenant.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from query_api.access.errors import AccessError
from schemas.identities import DEFAULT_TENANT


class Right(StrEnum):
    """What a key may do; `admin` includes all others."""

    QUERY = "query"  # who holds a prefix, now, then, and why not
    ROUTE = "route"  # decisions, which are booked
    FEEDBACK = "feedback"  # what came of decisions, and loads
    REGISTER = "register"  # what is followed
    COMMANDS = "commands"  # to LMCache's workers
    READ = "read"  # views, metrics, the page and the documentation
    ADMIN = "admin"


class Access(NamedTuple):
    """What one caller may do.

    Attributes:
        key_id: of its key; "" for nobody's.
        tenants: whose data it sees; None: everybody's.
        is_probe: without a key; it learns whether the service is ready, and nothing else.
    """

    key_id: str = ""
    rights: frozenset[Right] = frozenset(Right)
    tenants: frozenset[str] | None = None
    is_probe: bool = False

    def may(self, right: Right) -> bool:
        """Whether it has that right."""
        return right in self.rights or Right.ADMIN in self.rights

    def check(self, right: Right) -> None:
        """Raises AccessError where it may not."""
        if not self.may(right):
            has = ", ".join(sorted(self.rights)) or "none"
            text = f"Expected a key with the right {right}; this one, {self.key_id}, has: {has}"
            raise AccessError("no_right", text)

    def admits(self, tenant_id: str) -> bool:
        """Whether that tenant's data may be shown."""
        return self.tenants is None or tenant_id in self.tenants

    def tenant_of(self, named: str | None, field: str = "tenant_id") -> str:
        """The tenant that a request is about: the one it names, or else the key's.

        Args:
            named: by the request; None or "" where it names none.
            field: that would name it.

        Raises:
            AccessError: the key is not for that tenant, or for several and none is named.
        """
        if self.tenants is None:
            return named or DEFAULT_TENANT
        if named:
            if named in self.tenants:
                return named
            text = f"The key {self.key_id} is not for that tenant"
            raise AccessError("other_tenant", text, field=field)
        if len(self.tenants) == 1:
            return next(iter(self.tenants))
        if DEFAULT_TENANT in self.tenants:
            return DEFAULT_TENANT
        text = f"Expected {field}: the key {self.key_id} is for several tenants"
        raise AccessError("tenant_unnamed", text, field=field)

    def check_all_tenants(self) -> None:
        """Raises AccessError where the key is for some tenants only: the answer has all of them."""
        if self.tenants is not None:
            text = f"The answer is about all tenants, and the key {self.key_id} is for some"
            raise AccessError("all_tenants", text)


OPEN: Final = Access()
"""Of everybody, where there are no keys."""

PROBE: Final = Access(rights=frozenset(), tenants=frozenset(), is_probe=True)
"""Of who asks without a key whether the service is up."""
