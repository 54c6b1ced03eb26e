"""What waits for the owner of the publishers while it is busy."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from bridge.membership import ownership
from bridge.membership.cursors import LogState
from bridge.membership.ownership import Ownership
from schemas.errors import EndpointError
from schemas.identities import PublisherKey
from schemas.positions import Cursor
from schemas.records import UnregisteredRecord
from schemas.registration import Registration
from tests.unit.bridge.messages import registration

OLD, NEW = registration(), registration(endpoint="tcp://127.0.0.1:5600")
OTHER = registration(instance_id="w-2")
ONE, TWO = OLD.publisher, OTHER.publisher
BEFORE = registration(instance_id="w-3").publisher
Done = list[tuple[PublisherKey, Registration | None]]


def alone() -> Ownership:
    """Of one partition of the registry, without what it works with."""
    nobody: Any = None
    return Ownership(
        lease=nobody,
        follower=nobody,
        writer=nobody,
        producer=nobody,
        cursors=nobody,
        registry_partitions=1,
    )


def carried_out(
    monkeypatch: pytest.MonkeyPatch, *changes: tuple[PublisherKey, Registration | None]
) -> Done:
    """What is done of changes that come while an earlier one is being carried out."""
    done: Done = []
    fails = {TWO}

    async def change(
        owner: Ownership, home: int, publisher: PublisherKey, wanted: Registration | None
    ) -> None:
        await asyncio.sleep(0)
        done.append((publisher, wanted))
        if publisher in fails:
            fails.discard(publisher)
            raise RuntimeError("for a test")

    async def run() -> None:
        owner = alone()
        owner._owned = {0}
        for publisher, wanted in changes:
            owner.change(0, publisher, wanted)
            owner.change(1, BEFORE, OTHER)  # no longer ours
        assert owner._running is not None
        await owner._running
        assert not list(owner._changes)

    monkeypatch.setattr(Ownership, "_changed", change)
    asyncio.run(run())
    return done


def test_only_the_last_of_a_publishers_registrations_is_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert carried_out(monkeypatch, (ONE, OLD), (ONE, NEW)) == [(ONE, NEW)]


def test_a_publisher_that_was_unregistered_meanwhile_is_forgotten_before_it_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = carried_out(monkeypatch, (ONE, OLD), (ONE, None), (ONE, NEW))
    assert done == [(ONE, None), (ONE, NEW)]


def test_an_error_with_one_publisher_keeps_no_other_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = carried_out(monkeypatch, (TWO, OTHER), (ONE, OLD))
    assert done == [(TWO, OTHER), (ONE, OLD)]


def test_what_has_been_forgotten_is_not_forgotten_again_for_a_later_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine without a replay socket would lose what it has sent since."""
    done: Done = []

    async def change(
        owner: Ownership, home: int, publisher: PublisherKey, wanted: Registration | None
    ) -> None:
        done.append((publisher, wanted))
        if wanted is OLD:
            owner.change(0, publisher, NEW)

    async def run() -> None:
        owner = alone()
        owner._owned = {0}
        owner.change(0, ONE, None)
        owner.change(0, ONE, OLD)
        assert owner._running is not None
        await owner._running

    monkeypatch.setattr(Ownership, "_changed", change)
    asyncio.run(run())
    assert done == [(ONE, None), (ONE, OLD), (ONE, NEW)]


@pytest.mark.parametrize(
    ("known", "is_due"),
    [
        (LogState(0), False),
        (LogState(0, registered=7), True),
        (LogState(0, has_unread=True), True),
    ],
)
def test_who_is_not_in_the_registry_is_unregistered_where_a_table_may_have_it(
    known: LogState, is_due: bool
) -> None:
    cursors, partition, written = mock.AsyncMock(), mock.Mock(), mock.Mock()
    cursors.known = mock.Mock(return_value=[ONE])
    cursors.recover.return_value = {ONE: known}
    partition.has_forgotten.return_value = True
    owner: Any = alone()
    owner._cursors, owner._lease, owner._writer = cursors, mock.Mock(), mock.Mock(append=written)
    owner._lease.clock.unix.return_value = 5.0
    asyncio.run(owner._end_registrations({0: partition}, set()))
    due = [UnregisteredRecord.of(ONE, 5.0)] if is_due else []
    assert [record for call in written.call_args_list for record in call.args[0]] == due


def test_what_the_registry_still_brings_after_the_stop_begins_no_takeover() -> None:
    """The sockets are closed by then: it would be an unexpected error in the log."""

    async def run() -> None:
        owner = alone()
        owner._owned = {0}
        await owner.stop()
        owner.change(0, ONE, OLD)
        owner.assign({})
        await asyncio.sleep(0)
        assert owner._running is None
        assert owner.faults == 0

    asyncio.run(run())


def test_a_rebalance_waits_until_it_is_noted_who_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bridge that leaves holds its publishers first: the rebalance would find none to keep, and
    take the lease before the note is acknowledged.
    """
    steps: list[str] = []

    async def revoke(owner: Ownership, flush_s: float) -> None:
        steps.append(f"holds {flush_s:g}")
        await asyncio.sleep(0)
        steps.append(f"keeps {flush_s:g}")

    async def run() -> None:
        owner = alone()
        await asyncio.gather(owner.revoke(flush_s=1.0), owner.revoke(flush_s=3.0))

    monkeypatch.setattr(Ownership, "_revoke", revoke)
    asyncio.run(run())
    assert steps == ["holds 1", "keeps 1", "holds 3", "keeps 3"]


def test_who_cannot_be_followed_is_refused_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "PUBLISHERS_MAX", 2)
    asked: list[Registration] = []

    async def follow(wanted: Registration) -> None:
        asked.append(wanted)
        raise EndpointError("for a test")

    owner = alone()
    followed: dict[PublisherKey, object] = {BEFORE: None}
    owner._follower = SimpleNamespace(followed=followed, follow=follow)  # type: ignore[assignment]
    asyncio.run(owner._follow(OLD))
    followed[TWO] = None  # there is no room for another one
    asyncio.run(owner._follow(OLD))
    assert (asked, owner.refused) == ([OLD], 2)


@pytest.mark.parametrize(
    ("ours", "logged", "is_same"),
    [
        (Cursor(2, 5), Cursor(2, 5), True),
        (Cursor(2, 5), Cursor(2, 6), False),
        (Cursor(1, -1), Cursor(0, -1), True),  # nothing was written yet
        (Cursor(1, -1), Cursor(2, -1), False),
        (Cursor(1, 1), Cursor(0, 1), False),
        (Cursor(1, 0), Cursor(0, -1), False),
    ],
)
def test_the_log_has_what_this_bridge_has_written(
    ours: Cursor, logged: Cursor, is_same: bool
) -> None:
    assert ownership._same(ours, logged) is is_same
