"""Whose confirmation a heartbeat finds, and what it says."""

import pytest

from lmcache_adapter.confirmed import FollowedWorkers
from lmcache_adapter.journal import WorkerReport, gone
from lmcache_adapter.settings import Model
from schemas.answer_states import Activity, Doubt
from schemas.clock import REAL_CLOCK
from schemas.identities import PublisherKey
from schemas.limits import CHECK_LATE_S

PUBLISHER = PublisherKey(Model().stream("a"), 0)


class Moment:
    """A clock that is set; all that had arrived at 0.0 is in the log."""

    def __init__(self) -> None:
        self.now = 0.0
        clock = REAL_CLOCK._replace(monotonic=lambda: self.now, unix=lambda: 1000.0 + self.now)
        self.followed = FollowedWorkers(lambda: 0.0, clock)

    def take(self, doubt: Doubt | None) -> None:
        self.followed.take(WorkerReport(PUBLISHER, (), doubt))


@pytest.fixture
def moment() -> Moment:
    return Moment()


def test_a_publisher_is_followed_from_its_first_report_to_its_last(moment: Moment) -> None:
    moment.take(Doubt.NOT_SYNCED)
    assert moment.followed[PUBLISHER].doubted.doubt is Doubt.NOT_SYNCED
    moment.followed.take(gone(PUBLISHER))
    assert not moment.followed
    moment.followed.take(gone(PUBLISHER))


def test_later_reports_are_of_the_same_confirmation(moment: Moment) -> None:
    moment.take(Doubt.LINK_DOWN)
    found = moment.followed[PUBLISHER]
    assert found.statement.activity is not None
    assert found.statement.activity.kind is Activity.DISCONNECTED
    moment.now = 1.0
    moment.take(None)
    assert moment.followed[PUBLISHER] is found
    assert found.doubted == (None, 1001.0)


def test_what_is_not_in_the_log_for_long_is_late(moment: Moment) -> None:
    moment.take(None)
    moment.now = CHECK_LATE_S
    assert moment.followed[PUBLISHER].doubted.doubt is None
    moment.now = CHECK_LATE_S + 1
    assert moment.followed[PUBLISHER].doubted == (Doubt.RECEIVED_LATE, 1001.0 + CHECK_LATE_S)
