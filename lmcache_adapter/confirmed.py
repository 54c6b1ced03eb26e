"""Whether an LMCache worker is confirmed, for the heartbeats that a bridge writes into the log."""

from collections.abc import Callable, Mapping
from typing import Final

from bridge.publisher.ports import PublisherWatch, ReportedPublisher
from bridge.publisher.publisher import PublisherActivity, PublisherDoubt, PublisherStatement
from lmcache_adapter.journal import WorkerReport
from schemas.answer_states import Activity, Doubt
from schemas.clock import Clock
from schemas.identities import PublisherKey
from schemas.limits import CHECK_LATE_S

_ACTIVITIES: Final = {
    Doubt.LINK_DOWN: Activity.DISCONNECTED,
    Doubt.WORKER_SILENT: Activity.SILENT,
    Doubt.RECEIVED_LATE: Activity.ACTIVE,
}
"""What a worker does, by why it is not confirmed; else it is asked for what may be missing."""


class WorkerConfirmation:
    """One worker, as `bridge.heartbeats` looks at it; for the loop of its log.

    Args:
        heard_until: as of when all that had arrived is in the log; monotonic seconds.

    Attributes:
        last_statement: what was last written of it into the log.
    """

    def __init__(self, heard_until: Callable[[], float], clock: Clock) -> None:
        self._heard_until = heard_until
        self._clock = clock
        self._told: Doubt | None = Doubt.CATCHING_UP
        self._doubted = PublisherDoubt(Doubt.CATCHING_UP, clock.unix())
        self.last_statement: PublisherStatement | None = None

    def tell(self, doubt: Doubt | None) -> None:
        """What is behind this is in the log, or waits for it."""
        self._told = doubt

    @property
    def as_of(self) -> float:
        """See `bridge.publisher.publisher.Publisher`."""
        return self._heard_until()

    @property
    def doubted(self) -> PublisherDoubt:
        """Why it is not confirmed, or None, and since when."""
        doubt = self._told
        if doubt is None and self._clock.monotonic() - self._heard_until() > CHECK_LATE_S:
            doubt = Doubt.RECEIVED_LATE
        if doubt is not self._doubted.doubt:
            self._doubted = PublisherDoubt(doubt, self._clock.unix())
        return self._doubted

    @property
    def has_news(self) -> bool:
        """Whether that differs from what was last written of it into the log."""
        return self.last_statement is None or self.last_statement.doubted != self.doubted

    @property
    def statement(self) -> PublisherStatement:
        """What there is to say of it."""
        doubted = self.doubted
        activity = Activity.ACTIVE
        if doubted.doubt is not None:
            activity = _ACTIVITIES.get(doubted.doubt, Activity.REPLAYING)
        return PublisherStatement(doubted, PublisherActivity(activity, doubted.since), None)


class FollowedWorkers(dict[PublisherKey, WorkerConfirmation]):
    """The publishers of one service, for the loop of its log.

    Args:
        heard_until: see `WorkerConfirmation`.
    """

    def __init__(self, heard_until: Callable[[], float], clock: Clock) -> None:
        super().__init__()
        self._heard_until = heard_until
        self._clock = clock

    def take(self, report: WorkerReport) -> None:
        """The sink has the records of the report: a heartbeat may be made behind them."""
        if report.is_gone:
            self.pop(report.publisher, None)
            return
        found = self.get(report.publisher)
        if found is None:
            found = WorkerConfirmation(self._heard_until, self._clock)
            self[report.publisher] = found
        found.tell(report.doubt)


class WatchedBeside:
    """The publishers of a pump and LMCache's workers together; see `PublisherWatch`."""

    def __init__(
        self, pump: PublisherWatch, workers: Callable[[], Mapping[PublisherKey, WorkerConfirmation]]
    ) -> None:
        self._pump = pump
        self._workers = workers

    @property
    def followed(self) -> Mapping[PublisherKey, ReportedPublisher]:
        """See `PublisherWatch`. Cost O(publishers)."""
        return {**self._pump.followed, **self._workers()}

    @property
    def watched_at(self) -> float:
        """See `PublisherWatch`."""
        return self._pump.watched_at

    def has_waiting(self, publisher: PublisherKey) -> bool:
        """See `PublisherWatch`."""
        return self._pump.has_waiting(publisher)
