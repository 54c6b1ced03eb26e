"""What the HTTP API needs of the service behind it: the embedded service, or a replica."""

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry

from query_api.gaps import LedgerView
from schemas.answer_states import AnswerState, Standing, Verdict
from schemas.conditions import Condition, is_ready, problem
from schemas.identities import PrefixScope, PublisherKey, StreamKey
from schemas.memory_segments import SegmentKey, SegmentStanding, SegmentState
from schemas.positions import Position, PublisherState
from schemas.registration import PublisherKind, Registration, Unregistration
from streams.history.explain import Explanation, Question
from streams.kernel.interface import ReadOnlyKernel

Positions = tuple[Position, ...]
"""What a table has folded of each partition of the log; the embedded log is one partition."""


def positions_text(positions: Positions) -> str:
    """`partition:offset` of each, with commas between: how HTTP spells it."""
    return ",".join(map(str, positions))


class ServiceView(NamedTuple):
    """One registered publisher for `/services`.

    Attributes:
        state: what is folded of it.
        connected: None where this process cannot know, because another one's bridge follows it.
        standing: how far answers of it can be trusted.
        activity: its `Activity`, or "" where that is not known; and since when, Unix seconds.
    """

    registration: Registration
    state: PublisherState
    connected: bool | None
    standing: Standing
    activity: tuple[str, float] = ("", 0.0)


class SegmentView(NamedTuple):
    """One segment of memory for `/memory`.

    Attributes:
        key: its host and name.
        state: what was read last.
        standing: what that is worth now.
        age_s: since it was read, seconds.
        instances: the registrations that name it, sorted by service key.
    """

    key: SegmentKey
    state: SegmentState
    standing: SegmentStanding
    age_s: float
    instances: tuple[Registration, ...]


class Lag(NamedTuple):
    """How far a table is behind the logs that it is made from.

    Attributes:
        table_records: rows of the table log that are not applied.
        source_records: records of the event log that no applied row covers.
        seconds: the table holds all that the logs held this long ago; 0.0 where it holds all of it.
        reachable: whether the log answered when it was last asked.
    """

    table_records: int
    source_records: int
    seconds: float
    reachable: bool


class Health(NamedTuple):
    """What `/health` and `/ready` show; `schemas.conditions` has the rule of readiness.

    Attributes:
        role: `embedded`, or `serve`.
        conditions: what is wrong now, the worst first.
        kernel: the name of the one in use.
        lag: None where the process itself writes the log.
    """

    role: str
    conditions: tuple[Condition, ...]
    kernel: str
    positions: Positions
    lag: Lag | None = None

    @property
    def ready(self) -> bool:
        """Whether queries may be answered."""
        return is_ready(self.conditions)

    @property
    def problem(self) -> str:
        """All that is wrong in one line, or ""."""
        return problem(self.conditions)


class View(Protocol):
    """Read access to one table. Every method is cheap, thread-safe and free of I/O."""

    @property
    def kernel(self) -> ReadOnlyKernel:
        """The index that answers queries."""
        ...

    @property
    def metrics(self) -> CollectorRegistry:
        """What `/metrics` exposes."""
        ...

    @property
    def ready(self) -> bool:
        """Whether queries may be answered."""
        ...

    def health(self) -> Health:
        """What is wrong, and how far the table is."""
        ...

    def positions(self) -> Positions:
        """What the table has folded, by rising partition."""
        ...

    def state(self, scope: PrefixScope) -> AnswerState:
        """How far answers in the scope can be trusted now."""
        ...

    def verdict(self, scope: PrefixScope) -> Verdict:
        """The same, and until when it holds by `time.monotonic` where nothing changes."""
        ...

    def notify(self, changed: Callable[[], None]) -> None:
        """Has it call this after a change by which a verdict, `ready` or `kernel` is another than
        before; states that get better may come without. From any thread, and often.
        """
        ...

    def standing(self, publisher: PublisherKey) -> Standing:
        """The same of one publisher alone."""
        ...

    def instance_standings(self, scope: PrefixScope) -> dict[str, Standing]:
        """The same of each instance in the scope: of the worst of its publishers. Cost
        O(publishers of the scope).
        """
        ...

    def services(self) -> list[ServiceView]:
        """All registered publishers, sorted by service key."""
        ...

    def registered(self) -> list[Registration]:
        """The same, without what is known of them, in no order. Cost O(publishers)."""
        ...

    def ledgers(self) -> list[LedgerView]:
        """What became of the batches of each publisher."""
        ...

    def memory(self) -> list[SegmentView]:
        """All segments of memory that are known, sorted by host and name. Cost O(segments), and of
        each O(patterns that registrations name).
        """
        ...


class AsOf(NamedTuple):
    """A past moment: one of these.

    Attributes:
        seconds: Unix seconds.
    """

    positions: Positions | None = None
    seconds: float | None = None


class PastQuestion(NamedTuple):
    """What a past table is asked about, and nothing else.

    Attributes:
        tenant_id, model_name, block_size: of the streams that such queries depend on.
        prefixes: makes the prefix hashes of the prompt's blocks, (n,) u64 LE, in any order. A long
            prompt has megabytes of them: called in a thread, when it is this query's turn.
    """

    tenant_id: str
    model_name: str
    block_size: int
    lora_name: str = ""
    prefixes: Callable[[], bytes] = bytes

    def includes(self, stream: StreamKey) -> bool:
        """Whether the stream is one of them."""
        return self[:3] == (stream.tenant_id, stream.model_name, stream.block_size)


class PastView(Protocol):
    """As `View`, of a table that no longer changes, as far as queries need it."""

    @property
    def kernel(self) -> ReadOnlyKernel:
        """The index as it was, of the streams that were asked for."""
        ...

    def positions(self) -> Positions:
        """See `View`."""
        ...

    def state(self, scope: PrefixScope) -> AnswerState:
        """What an answer then could have said: all that is known of it stands in the log."""
        ...

    def instance_standings(self, scope: PrefixScope) -> dict[str, Standing]:
        """See `View`."""
        ...


class History(Protocol):
    """What a service knows of its past."""

    async def view_as_of(self, as_of: AsOf, asked: PastQuestion) -> PastView:
        """The table as of then. Waits for others that ask, within a bound.

        Raises:
            PastError: it cannot be had; its text says what can.
            StorageError: what was kept cannot be read.
        """
        ...

    async def explain(self, as_of: AsOf, question: Question) -> Explanation:
        """What an instance held of a prompt then, and why no more. Raises as `view_as_of`."""
        ...


class PublisherRegistry(Protocol):
    """Write access to the set of publishers."""

    @property
    def kinds(self) -> Collection[PublisherKind]:
        """Those that can be followed, in the order in which errors name them."""
        ...

    async def register(self, registration: Registration, *, replace: bool = False) -> None:
        """Follows a publisher; returns once the registration is durable. Repeating one is no
        change.

        Args:
            replace: whether it takes the place of what `schemas.registration.replaced_by` names,
                which stays where an error is raised.

        Raises:
            RegistrationConflictError: endpoint or publisher taken by a different registration.
            EndpointError: the endpoint can never be connected to.
            RegistrationError: anything else that cannot be accepted.
            StorageError: it cannot be written now.
        """
        ...

    async def unregister(self, target: Unregistration) -> list[Registration]:
        """Forgets the publishers that match, with their blocks; None matches any. Returns them.

        Raises:
            NotRegisteredError: none matches.
            StorageError: it cannot be written now.
        """
        ...
