"""What the HTTP API needs of the service behind it. The embedded service is one; a replica
another.
"""

from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry

from schemas.identities import PrefixScope, PublisherKey
from schemas.positions import AnswerState, Position, PublisherState
from schemas.registration import Registration
from streams.kernel.interface import Kernel


class ServiceView(NamedTuple):
    """One registered publisher for `/services`: as registered, what is folded, whether it is
    connected.
    """

    registration: Registration
    state: PublisherState
    connected: bool


class Health(NamedTuple):
    """What `/health` and `/ready` tell. `problem` is "" or says why the service is not ready."""

    ready: bool
    problem: str
    kernel: str
    position: Position


class View(Protocol):
    """Read access to one table. Every method is cheap, thread-safe and free of I/O."""

    @property
    def kernel(self) -> Kernel:
        """The index that answers queries; only its reading methods may be called."""
        ...

    @property
    def metrics(self) -> CollectorRegistry:
        """What `/metrics` exposes."""
        ...

    def health(self) -> Health:
        """Readiness, and why not."""
        ...

    def position(self) -> Position:
        """What the table has folded."""
        ...

    def state(self, scope: PrefixScope) -> AnswerState:
        """Whether answers in the scope are exact now."""
        ...

    def services(self) -> list[ServiceView]:
        """All registered publishers, sorted by service key."""
        ...

    def service(self, publisher: PublisherKey) -> ServiceView | None:
        """One of them."""
        ...


class Registry(Protocol):
    """Write access to the set of publishers."""

    async def register(self, registration: Registration) -> None:
        """Follows a publisher; returns once the registration is durable. Repeating one is no
        change.

        Raises:
            RegistrationConflictError: endpoint or publisher taken by a different registration.
            EndpointError: the endpoint can never be connected to.
            RegistrationError: anything else that cannot be accepted.
            StorageError: it cannot be written now.
        """
        ...

    async def unregister(
        self,
        *,
        tenant_id: str,
        instance_id: str,
        dp_rank: int,
        model_name: str | None,
        block_size: int | None,
    ) -> list[Registration]:
        """Forgets the publishers that match, with their blocks; None matches any. Returns them.

        Raises:
            NotRegisteredError: none matches.
            StorageError: it cannot be written now.
        """
        ...
