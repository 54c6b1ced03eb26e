"""What a bridge says of its publishers, and when it says nothing."""

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from bridge.bounds import HOST_NAME_CHARS_MAX, WATCH_LATE_S
from bridge.heartbeats import HEARTBEAT_COMPLETE_S, Heartbeats, new_bridge_name
from bridge.publisher.publisher import Publisher, PublisherDoubt, PublisherStatement
from schemas.answer_states import Doubt
from schemas.clock import REAL_CLOCK, Clock
from schemas.identities import PublisherKey, StreamKey
from schemas.records import HeartbeatRecord
from tests.unit.bridge.messages import registration

ONE, TWO = (registration(instance_id=name) for name in ("w-1", "w-2"))


class Told(Publisher):
    """A publisher of which a test says what is doubted."""

    doubt: Doubt | None = Doubt.LINK_DOWN

    @property
    def doubted(self) -> PublisherDoubt:
        return PublisherDoubt(self.doubt, 7.0)


@dataclass
class Pump:
    followed: dict[PublisherKey, Publisher] = field(default_factory=dict)
    watched_at: float = 0.0
    waiting: set[PublisherKey] = field(default_factory=set)
    clock: Clock = REAL_CLOCK

    def has_waiting(self, publisher: PublisherKey) -> bool:
        return publisher in self.waiting

    def follow(self, *names: str) -> None:
        self.followed = {one.publisher: Told(one) for one in (ONE, TWO) if one.instance_id in names}


@dataclass
class Sink:
    records: list[HeartbeatRecord] = field(default_factory=list)
    is_ready: bool = True

    def append(self, records: Iterable[HeartbeatRecord]) -> None:
        self.records += records


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def pump(clock: list[float]) -> Pump:
    hands = REAL_CLOCK._replace(monotonic=lambda: clock[0])
    pump = Pump(watched_at=clock[0], clock=hands)
    pump.follow("w-1", "w-2")
    return pump


def partition_of(stream: StreamKey) -> int:
    return 0 if stream.instance_id == "w-1" else 1


def said(record: HeartbeatRecord | None) -> dict[str, str]:
    assert record is not None
    reasons = {one.stream.instance_id: one.reason for one in record.reports}
    assert len(reasons) == len(record.reports), "of each one thing"
    return reasons


def test_a_bridge_is_named_after_its_host_and_no_two_runs_alike() -> None:
    one, two = new_bridge_name(), new_bridge_name()
    host = socket.gethostname()[:HOST_NAME_CHARS_MAX]
    assert one.startswith(f"{host}-")
    assert two.startswith(f"{host}-")
    assert one != two


def test_each_partition_hears_of_its_own_publishers(pump: Pump) -> None:
    beats = Heartbeats(pump, partition_of, clock=pump.clock)
    assert sorted(beats.partitions()) == [0, 1]
    assert said(beats.make(0)) == {"w-1": "link_down"}
    assert said(beats.make(1)) == {"w-2": "link_down"}
    assert beats.make(2) is None
    assert beats.has_news(2) is False


def test_what_is_written_is_not_said_again_until_it_changes_or_all_is_told(
    pump: Pump, clock: list[float]
) -> None:
    beats = Heartbeats(pump, clock=pump.clock)
    beats.partitions()
    first = beats.make(0)
    assert first is not None
    assert (first.complete, first.uptime) == (True, 0.0)
    assert beats.has_news(0), "it is not written yet"
    beats.written(0, first)
    assert not beats.has_news(0)
    second = beats.make(0)
    assert second is not None
    assert (said(second), second.complete) == ({}, False)
    pump.followed[ONE.publisher].doubt = None  # type: ignore[attr-defined]
    assert beats.has_news(0)
    assert said(beats.make(0)) == {"w-1": ""}
    clock[0] += HEARTBEAT_COMPLETE_S
    pump.watched_at = clock[0]
    third = beats.make(0)
    assert third is not None
    assert third.complete
    assert third.uptime - first.uptime == HEARTBEAT_COMPLETE_S
    assert said(third) == {"w-1": "", "w-2": "link_down"}


def test_the_first_heartbeat_names_all_also_where_the_clock_begins_at_zero(
    pump: Pump, clock: list[float]
) -> None:
    clock[0] = pump.watched_at = 0.0
    beats = Heartbeats(pump, clock=pump.clock)
    beats.partitions()
    first = beats.make(0)
    assert first is not None
    assert first.complete


def test_who_is_followed_no_more_is_given_up(pump: Pump) -> None:
    beats = Heartbeats(pump, clock=pump.clock)
    beats.partitions()
    first = beats.make(0)
    assert first is not None
    beats.written(0, first)
    pump.follow("w-2")
    pump.followed[TWO.publisher].last_statement = PublisherStatement(
        PublisherDoubt(Doubt.LINK_DOWN, 7.0), None, None
    )
    beats.partitions()
    assert beats.has_news(0)
    released = beats.make(0)
    assert said(released) == {"w-1": "not_followed"}
    assert released is not None
    pump.follow("w-1", "w-2")
    beats.partitions()
    assert said(beats.make(0)) == {"w-1": "link_down", "w-2": "link_down"}


def test_a_partition_without_publishers_is_forgotten_once_it_was_told(pump: Pump) -> None:
    beats = Heartbeats(pump, clock=pump.clock)
    beats.partitions()
    first = beats.make(0)
    assert first is not None
    beats.written(0, first)
    pump.follow()
    assert beats.partitions() == [0]
    released = beats.make(0)
    assert released is not None
    beats.written(0, released)
    assert beats.partitions() == []


def test_a_process_that_was_paused_says_nothing_before_it_has_looked(
    pump: Pump, clock: list[float]
) -> None:
    beats = Heartbeats(pump, clock=pump.clock)
    beats.partitions()
    clock[0] += WATCH_LATE_S
    assert beats.make(0) is not None
    assert beats.write_news(Sink()) == clock[0]
    clock[0] += 0.1
    assert beats.make(0) is None
    assert beats.write_news(Sink()) is None
    pump.watched_at = clock[0]
    assert beats.make(0) is not None


def test_what_a_heartbeat_says_is_as_old_as_what_was_received_last_of_those_confirmed(
    pump: Pump, clock: list[float]
) -> None:
    beats = Heartbeats(pump, clock=pump.clock)
    beats.partitions()
    one, two = pump.followed.values()
    one.as_of, two.as_of = clock[0] - 1.5, clock[0] - 60.0
    unconfirmed = beats.make(0)
    assert unconfirmed is not None
    assert unconfirmed.age == 0.0, "it says of nobody that all is there"
    one.doubt = None  # type: ignore[attr-defined]
    confirmed = beats.make(0)
    assert confirmed is not None
    assert confirmed.age == 1.5
    assert beats.write_news(Sink()) == clock[0] - 1.5
    two.doubt = None  # type: ignore[attr-defined]
    both = beats.make(0)
    assert both is not None
    assert both.age == 60.0


def test_nothing_is_said_while_records_of_a_confirmed_publisher_may_come_behind_it(
    pump: Pump,
) -> None:
    beats = Heartbeats(pump, clock=pump.clock)
    beats.partitions()
    pump.waiting = {ONE.publisher}
    assert beats.make(0) is not None, "it is not confirmed"
    pump.followed[ONE.publisher].doubt = None  # type: ignore[attr-defined]
    assert beats.make(0) is None
    pump.waiting = set()
    assert beats.make(0) is not None


def test_a_log_of_this_process_is_told_what_is_new_and_nothing_else(pump: Pump) -> None:
    beats, sink = Heartbeats(pump, clock=pump.clock), Sink()
    assert beats.write_news(sink) == pump.clock.monotonic()
    assert beats.write_news(sink) == pump.clock.monotonic()
    assert [said(record) for record in sink.records] == [{"w-1": "link_down", "w-2": "link_down"}]


def test_while_the_disk_fails_nothing_is_confirmed(pump: Pump) -> None:
    beats, sink = Heartbeats(pump, clock=pump.clock), Sink(is_ready=False)
    assert beats.write_news(sink) is None
    assert sink.records == []
