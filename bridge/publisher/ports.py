"""What the pump needs of what stands round it: who receives, who replays, where records go."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from bridge.engine_http.inquiries import EngineSource, LinkStates
from bridge.publisher.publisher import PublisherDoubt, PublisherStatement
from bridge.publisher.repair import RepairResult
from bridge.publisher.replay_client import Emit, ReplaySocket
from bridge.publisher.sequencer import Sequencer
from schemas.identities import PublisherKey
from schemas.records import Record
from schemas.registration import Registration
from schemas.routing_records import LoadSample


class RecordSink(Protocol):
    """Where records go: one log. Used on the pump's loop."""

    def has_waiting(self, publisher: PublisherKey) -> bool:
        """Whether records of the publisher wait on the disk or for it, or were dropped."""
        ...

    def append(self, records: Iterable[Record]) -> None:
        """Takes records, in order for each publisher; never waits until they are written."""
        ...

    @property
    def turn_bytes(self) -> int:
        """How many bytes of messages may become records at once, before something else comes."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether what was received may become records now."""
        ...

    async def ready(self) -> None:
        """Returns once that is so."""
        ...

    def holds_back(self, publisher: PublisherKey) -> bool:
        """Whether what the publisher sends is to wait, for others would come behind it; whoever
        made the sink says when that ends (`Appender.resume_held_back`).
        """
        ...

    def let_overflow(self, publisher: PublisherKey) -> None:
        """The publisher is held back, and what waits of it is nearly too much: it comes now, and is
        to wait elsewhere, where there is a place.
        """
        ...

    async def room(self, publisher: PublisherKey) -> None:
        """Returns once what is kept of the publisher, here or by its engine, may become records."""
        ...

    async def idle(self) -> None:
        """Returns once nothing that was appended waits to be folded, where that is known here, or
        after BULK_IDLE_WAIT_S: for what takes long itself, and would delay what comes behind it.
        """
        ...


class Receiver(LinkStates, Protocol):
    """Receives from publishers into the inbox; see `Subscriber` for all of it."""

    @property
    def unexpected_errors(self) -> int:
        """Of ours, since the start."""
        ...

    def start(self) -> None:
        """Starts to receive; called once, before all else."""
        ...

    def follow(self, registration: Registration) -> None:
        """Connects to the publisher; RegistrationError where that is impossible."""
        ...

    def follow_once(self, registration: Registration, *, leaves: bool = False) -> None:
        """The same over one link, in place of one that has ended, or of any where it `leaves` that:
        once this one has ended, another process may have the address, so it is not connected to
        again.
        """
        ...

    def unfollow(self, publisher: PublisherKey) -> None:
        """Disconnects from the publisher; nothing of it arrives afterwards."""
        ...

    def is_silent(self, publisher: PublisherKey) -> bool:
        """Whether the link is up, and its engine's socket has not answered for a while."""
        ...

    def trouble(self, publisher: PublisherKey) -> str:
        """Why no link comes up, in the words of the system; "" where nothing tells."""
        ...

    def received_until(self, publisher: PublisherKey) -> float:
        """All that had been sent over its link by then is in the inbox, as far as that can be
        known; monotonic seconds.
        """
        ...

    def changed(self) -> tuple[float, Iterable[PublisherKey]]:
        """Whose link has gone up or down or fallen silent, or of whom something has arrived or may
        have, since the last call.

        Returns:
            As of when all that had arrived of everybody else is in the inbox, monotonic seconds;
            and those publishers. Cost O(of them).
        """
        ...

    def stop(self) -> None:
        """Ends receiving; may be called again."""
        ...


class ReportedPublisher(Protocol):
    """A publisher of which heartbeats report; see `Publisher`.

    Attributes:
        last_statement: what was last written of it into the log.
    """

    last_statement: PublisherStatement | None

    @property
    def doubted(self) -> PublisherDoubt:
        """Why it is not confirmed, or None; and since when."""
        ...

    @property
    def as_of(self) -> float:
        """Where it is confirmed: as of when the log, or what waits for it, has all of it."""
        ...

    @property
    def has_news(self) -> bool:
        """Whether something is to be said of it that has not been written."""
        ...

    @property
    def statement(self) -> PublisherStatement:
        """What there is to say of it."""
        ...


class PublisherWatch(Protocol):
    """Who follows publishers and looks at them; `PublisherFollower`."""

    @property
    def followed(self) -> Mapping[PublisherKey, ReportedPublisher]:
        """The publishers."""
        ...

    @property
    def watched_at(self) -> float:
        """When all of them were last looked at, monotonic seconds."""
        ...

    def has_waiting(self, publisher: PublisherKey) -> bool:
        """Whether records of it have not reached the log, and a later record may be there first."""
        ...


class ReplaySource(Protocol):
    """Asks engines for what they have sent; see `Replayer`."""

    requests: int
    replayed_batches: int

    async def repair(self, sequencer: Sequencer, engine: ReplaySocket, emit: Emit) -> RepairResult:
        """See `Replayer.repair`."""
        ...

    def close(self) -> None:
        """Ends; no repair is under way."""
        ...


class StreamSource(Protocol):
    """Receives from publishers that stream; see `Receivers`."""

    def place(self, publisher: PublisherKey, sequence: int) -> None:
        """The log has all of the publisher up to this batch, -1 for nothing: its stream begins."""
        ...

    def ask_whole(self, publisher: PublisherKey) -> None:
        """Something of the publisher is missing: asks for all that there is, now and then."""
        ...

    def take_loads(self) -> list[LoadSample]:
        """What engines have said in their streams that they carry, since the last call."""
        ...


class EngineAccess(NamedTuple):
    """How engines are reached; `streams`: None where none of them streams."""

    receiver: Receiver
    replayer: ReplaySource
    http: EngineSource
    streams: StreamSource | None = None
