"""What a bridge writes of itself into the log: that it is there, and who of its publishers is
confirmed (`schemas.answer_states`). One loop.

A heartbeat is made when it is written and not before, behind all records of its publishers. So
whoever has folded it has all that those which are confirmed had published when they were last
looked at, but for what had not been received by then: the heartbeat says how long ago that is (its
`age`). It says something of a publisher where that has changed, and now and then of all.
"""

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from bridge.bounds import HOST_NAME_CHARS_MAX, WATCH_LATE_S
from bridge.publisher.ports import PublisherWatch, ReportedPublisher
from bridge.publisher.publisher import PublisherActivity, PublisherDoubt, PublisherStatement
from schemas.answer_states import Activity, Doubt
from schemas.clock import REAL_CLOCK, Clock
from schemas.identities import PublisherKey, StreamKey
from schemas.records import HeartbeatRecord, PublisherReport

HEARTBEAT_COMPLETE_S: Final = 15.0  # how often one names all publishers: what was lost is healed
BRIDGE_NAME_RANDOM_BYTES: Final = 4  # of a bridge's name: no other run of it has the same


def new_bridge_name() -> str:
    """A name that no other run of a bridge has: of the host, and a random part."""
    return (
        f"{socket.gethostname()[:HOST_NAME_CHARS_MAX]}-{os.urandom(BRIDGE_NAME_RANDOM_BYTES).hex()}"
    )


class HeartbeatSink(Protocol):
    """A log of this process."""

    @property
    def is_ready(self) -> bool:
        """Whether nothing waits for the disk."""
        ...

    def append(self, records: Iterable[HeartbeatRecord]) -> None:
        """Appends them, where nothing waits."""
        ...


class _Partition:
    """The publishers of one partition of the log.

    Attributes:
        released: those that are no more, and of which that has not been written yet.
        complete_at: when the next heartbeat is to name all, monotonic seconds.
    """

    def __init__(self) -> None:
        self.followed: dict[PublisherKey, ReportedPublisher] = {}
        self.released: dict[PublisherKey, None] = {}
        self.complete_at = 0.0


class Heartbeats:
    """See the module.

    Args:
        partition_of: the partition of a stream's records.

    Attributes:
        bridge: the name of this run.
    """

    def __init__(
        self,
        pump: PublisherWatch,
        partition_of: Callable[[StreamKey], int] = lambda stream: 0,
        *,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._clock = clock
        self.bridge = new_bridge_name()
        self._pump = pump
        self._partition_of = partition_of
        self._partitions: dict[int, _Partition] = {}
        self._started_at = self._clock.monotonic()

    def partitions(self) -> list[int]:
        """Those for which there may be something to say, as of now. Cost O(publishers)."""
        groups: dict[int, dict[PublisherKey, ReportedPublisher]] = {}
        for publisher, followed in self._pump.followed.items():
            number = self._partition_of(publisher.stream)
            groups.setdefault(number, {})[publisher] = followed
        for number in groups.keys() | self._partitions.keys():
            self._regroup(number, groups.get(number, {}))
        return list(self._partitions)

    def _regroup(self, number: int, followed: Mapping[PublisherKey, ReportedPublisher]) -> None:
        partition = self._partitions.setdefault(number, _Partition())
        for publisher in partition.followed:
            if publisher not in followed:
                partition.released[publisher] = None
        for publisher in followed:
            partition.released.pop(publisher, None)
        partition.followed = dict(followed)
        if not followed and not partition.released:
            del self._partitions[number]

    def has_news(self, number: int) -> bool:
        """Whether something is to be said that has not been written. Cost O(its publishers)."""
        partition = self._partitions.get(number)
        if partition is None:
            return False
        return bool(partition.released) or any(
            followed.has_news for followed in partition.followed.values()
        )

    def make(self, number: int) -> HeartbeatRecord | None:
        """A heartbeat for one partition.

        Returns:
            None where nothing can be said now: the partition has no publishers; this process has
            been paused, and may have missed what it has not looked at yet; or records of a
            confirmed publisher have been spooled since then, and do not stand before this.
        """
        now, wall_now = self._clock.monotonic(), self._clock.unix()
        partition = self._partitions.get(number)
        if partition is None or now - self._pump.watched_at > WATCH_LATE_S:
            return None
        confirmed = _confirmed(partition.followed)
        if any(map(self._pump.has_waiting, confirmed)):
            return None
        complete = now >= partition.complete_at
        reports = [
            PublisherReport(publisher.stream, publisher.dp_rank, Doubt.NOT_FOLLOWED, wall_now)
            for publisher in partition.released
        ]
        for publisher, followed in partition.followed.items():
            statement = followed.statement
            if complete or statement != followed.last_statement:
                reports.append(_report(publisher, statement))
        return HeartbeatRecord(
            bridge=self.bridge,
            uptime=now - self._started_at,
            bridge_time=wall_now,
            age=now - _as_of(confirmed, now),
            complete=complete,
            reports=tuple(reports),
        )

    def write_news(self, sink: HeartbeatSink) -> float | None:
        """Writes what is new into a log of this process, which need not be told that it is there.

        Returns:
            As of when the log then has all that confirmed publishers had sent, monotonic seconds;
            None where that cannot be said now.
        """
        now = self._clock.monotonic()
        if now - self._pump.watched_at > WATCH_LATE_S:
            return None
        for number in self.partitions():
            record = self.make(number) if self.has_news(number) else None
            if record is not None and sink.is_ready:
                sink.append([record])
                if sink.is_ready:
                    self.written(number, record)
        return _as_of(_confirmed(self._pump.followed), now) if sink.is_ready else None

    def written(self, number: int, record: HeartbeatRecord) -> None:
        """The heartbeat is in the log: what it says need not be said again."""
        partition = self._partitions.get(number)
        if partition is None:
            return
        if record.complete:
            partition.complete_at = self._clock.monotonic() + HEARTBEAT_COMPLETE_S
        for report in record.reports:
            followed = partition.followed.get(report.publisher)
            if followed is not None:
                followed.last_statement = _statement_of(report)
            elif report.reason == Doubt.NOT_FOLLOWED:
                partition.released.pop(report.publisher, None)


def _report(publisher: PublisherKey, statement: PublisherStatement) -> PublisherReport:
    doubt, since = statement.doubted
    report = PublisherReport(
        publisher.stream,
        publisher.dp_rank,
        doubt or "",
        since,
        process=statement.process,
        facts=statement.facts,
        clock_s=statement.clock_s,
        troubles=statement.troubles,
    )
    if statement.activity is None:
        return report
    activity, activity_since = statement.activity
    return msgspec.structs.replace(report, activity=activity, activity_since=activity_since)


def _statement_of(report: PublisherReport) -> PublisherStatement:
    doubted = PublisherDoubt(Doubt(report.reason) if report.reason else None, report.since)
    activity = None
    if report.activity:
        activity = PublisherActivity(Activity(report.activity), report.activity_since)
    return PublisherStatement(
        doubted, activity, report.process, report.facts, report.clock_s, report.troubles
    )


def _confirmed(
    followed: Mapping[PublisherKey, ReportedPublisher],
) -> dict[PublisherKey, ReportedPublisher]:
    return {publisher: one for publisher, one in followed.items() if one.doubted.doubt is None}


def _as_of(confirmed: Mapping[PublisherKey, ReportedPublisher], now: float) -> float:
    """As of when all of them had been received; now where there are none."""
    return min((one.as_of for one in confirmed.values()), default=now)
