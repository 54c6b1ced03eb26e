"""What waits for the owner of the publishers while it is busy."""

import asyncio
from typing import Any

import pytest

from bridge.membership.ownership import Ownership
from schemas.identities import PublisherKey
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
