import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from reprise.roles import leaving
from reprise.roles.leaving import LOCK_FILE, LeaveSettings, ReplicaLeave
from storage.slots import lock_file


class World:
    """Names, and who is ready."""

    def __init__(self, shared: Path) -> None:
        self.names = {"serve": ["10.0.0.1", "10.0.0.2"], "front": ["10.0.0.9"]}
        self.ready = {"10.0.0.1", "10.0.0.2"}
        self.settings = LeaveSettings(to="serve", asked_by="front", shared=shared)

    def leave(self, own: str) -> ReplicaLeave:
        return ReplicaLeave(
            self.settings,
            13333,
            own=lambda: [own],
            ready=lambda address, port: address in self.ready,
            resolve=lambda name, port: self.names[name],
        )


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK_S", 0.01), ("SETTLE_S", 0.0), ("UNSEEN_S", 0.2), ("S", 2.0)):
        monkeypatch.setattr(leaving, f"LEAVE_{name}", seconds)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "shared")


def begun(replica: ReplicaLeave) -> threading.Event:
    left = threading.Event()
    replica.begin(left.set)
    return left


def test_it_leaves_at_once_where_another_one_is_ready(world: World) -> None:
    assert world.leave("10.0.0.1").wait() == "another replica is ready"


def test_it_waits_for_another_one(world: World) -> None:
    world.ready = {"10.0.0.1"}
    left = begun(world.leave("10.0.0.1"))
    assert not left.wait(0.3)
    world.ready.add("10.0.0.2")
    assert left.wait(10)


def test_of_two_that_leave_one_waits_until_the_other_has_ended(world: World) -> None:
    world.settings.shared.mkdir()
    other = lock_file(world.settings.shared / LOCK_FILE)
    assert other is not None
    left = begun(world.leave("10.0.0.1"))
    assert not left.wait(0.3)
    os.close(other)
    assert left.wait(10)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda world: world.names.update(front=[]), "nobody is there to ask"),
        (lambda world: world.names.update(serve=["10.0.0.1"]), "no other replica is ready in time"),
        (lambda world: world.ready.clear(), "no other replica is ready in time"),
    ],
)
def test_it_does_not_wait_for_nothing(
    world: World, change: Callable[[World], None], reason: str
) -> None:
    change(world)
    began = monotonic()
    assert world.leave("10.0.0.1").wait() == reason
    assert monotonic() - began < 10


def test_told_twice_it_waits_no_longer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "LEAVE_S", 60.0)
    world.ready.clear()
    replica = world.leave("10.0.0.1")
    left = begun(replica)
    assert not left.wait(0.2)
    replica.begin(left.set)
    assert left.wait(10)


def test_an_error_keeps_nobody(world: World) -> None:
    world.settings = LeaveSettings(to="unknown", shared=world.settings.shared)
    assert begun(world.leave("10.0.0.1")).wait(10)
