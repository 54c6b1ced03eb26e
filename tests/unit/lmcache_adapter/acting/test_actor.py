"""What acts on advice, over a table, a router and a log of commands that do no I/O."""

import asyncio
from typing import Any

import pytest

from lmcache_adapter.acting import actor as acting
from lmcache_adapter.acting.actor import Actor
from lmcache_adapter.commands.book import CommandView
from query_api.http.errors import RequestError
from routing.advice.acting import ACT_BACKOFF_MAX_S
from routing.advice.advice import Advice, AdviceReason, AdvisedAction
from routing.advice.advice_context import NOTHING_DONE
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from routing.observed.hot_prefixes import HotPrefix
from schemas.command_records import CommandAction as Command
from schemas.command_records import CommandOutcome
from schemas.errors import StorageError
from schemas.limits import ACT_COMMANDS_MAX, ACT_RATE_MAX, ACT_RATE_S, ACT_UNKNOWN_S
from schemas.routing_records import DecidedScope, Target
from tests.fakes import FakeTable
from tests.processes import until
from tests.unit.lmcache_adapter.http.test_command_routes import CPU, FakeCommands, join

SCOPE = DecidedScope("default", "m", "", 4, "")
TOKENS = bytes(range(16))
NOW = 1_800_000_000.0


class Commands(FakeCommands):
    """Attributes: is_read: whether what was done is known."""

    is_read = True

    async def latest(
        self, limit: int, *, origin: str | None = None, since: float = 0.0
    ) -> list[CommandView]:
        if not self.is_read:
            raise RequestError("recovering", "the log of commands is being read", status=503)
        return await super().latest(limit, origin=origin, since=since)


def advice(
    prefix: int = 5,
    action: AdvisedAction = AdvisedAction.COPY,
    target: str = "b",
    holders: str = "a",
    blocks: int = 1,
) -> Advice:
    hot = HotPrefix(SCOPE, prefix, 0, blocks, 99.0, 0.0, 0.0, 0.0, 99, 0, 0, 0, 0, 0)
    sources = tuple(Target("default", one, 0) for one in holders)
    targets = (Target("default", target, 0),)
    return Advice(hot, sources, targets, 9.0, 1.0, action, AdviceReason.OVERLOAD, "", sources)


class Scene:
    def __init__(self, table: FakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table, self.commands, self.now = table, Commands(), NOW
        self.commands.answer(0, tokens=4)
        self.commands.is_closing = False
        self.advice: list[Advice] = [advice()]
        self.router = Router(table, RoutingQueue(), LiveLoad())
        self.actor = self.restarted()
        monkeypatch.setattr(acting, "advised", lambda *_: self.advice)

    def restarted(self) -> Actor:
        return Actor(self.table, self.router, self.commands, clock=lambda: self.now)

    def look(self, times: int = 1) -> None:
        """Each followed by a prompt of every prefix that is advised."""

        async def looks() -> None:
            for _ in range(times):
                await self.actor.look()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                for one in self.advice:
                    prefix = one.prefix.prefix.to_bytes(8, "little")
                    self.router.wanted.note(SCOPE, prefix, TOKENS)  # type: ignore[arg-type]

        asyncio.run(looks())

    @property
    def counts(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        return dict(self.actor.acted), dict(self.actor.failed), dict(self.actor.suppressed)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    table = FakeTable()
    for name in "abc":
        join(table, name)
    return Scene(table, monkeypatch)


def test_what_is_advised_is_done_once_its_tokens_have_come(scene: Scene) -> None:
    scene.look()
    assert (scene.commands.issued, scene.counts[2]) == ([], {"no_tokens": 1})
    scene.look()
    [command] = scene.commands.issued
    assert (command.action, command.instance_id, command.copy) == (Command.MOVE, "a", True)
    assert (command.target, command.tokens) == (("b", CPU), TOKENS)
    assert (command.origin, command.prefix) == ("advice", 5)
    assert scene.counts[:2] == ({"copy": 1}, {})
    [act] = scene.actor.acts()
    assert (act.command_id, act.state) == (command.command_id, "done")
    scene.look()
    assert scene.actor.done().copied == {5: {"b"}}
    assert len(scene.commands.issued) == 1


def test_a_restart_repeats_nothing_within_the_horizon(scene: Scene) -> None:
    scene.look(2)
    scene.actor = scene.restarted()
    scene.now += 299.0
    scene.look(2)
    assert (len(scene.commands.issued), scene.counts[2]) == (1, {"repeated": 2})
    scene.now += 1.0
    scene.look()
    assert len(scene.commands.issued) == 2


def test_a_failure_is_counted_once_and_backs_off(scene: Scene) -> None:
    scene.commands.answer(0, CommandOutcome.TIMEOUT)
    scene.look(3)
    scene.advice = [advice(6, target="c")]  # of the same source
    scene.look(2)
    assert len(scene.commands.issued) == 1
    suppressed = {"no_tokens": 1, "backing_off": 3}
    assert scene.counts == ({"copy": 1}, {"failed": 1}, suppressed)
    assert not scene.actor.done().is_target(SCOPE, "b")
    assert scene.actor.done().is_target(SCOPE, "c")


def test_a_copy_of_nothing_is_no_copy(scene: Scene) -> None:
    scene.commands.answer(0, tokens=0)
    scene.look(3)
    assert scene.counts[:2] == ({"copy": 1}, {"empty": 1})
    assert scene.actor.done().copied == {}
    [act] = scene.actor.acts()
    assert (act.result, act.tokens) == ("empty", 0)
    assert scene.actor.held_back() == {(SCOPE, 5): "backing_off"}


def test_why_each_was_not_done_is_said_until_the_next_look(scene: Scene) -> None:
    scene.advice = [advice(5), advice(6, holders="x")]
    scene.look()
    assert scene.actor.held_back() == {(SCOPE, 5): "no_tokens", (SCOPE, 6): "no_worker"}
    scene.look()
    assert scene.actor.held_back() == {(SCOPE, 6): "no_worker"}
    assert scene.counts[2] == {"no_tokens": 1, "no_worker": 2}


def test_tokens_are_kept_only_of_what_somebody_could_do(scene: Scene) -> None:
    scene.advice = [advice(6, holders="x"), advice(5)]
    scene.look()
    assert scene.router.wanted.find((SCOPE, 5)) == TOKENS
    assert scene.router.wanted.find((SCOPE, 6)) is None


def test_no_more_is_done_at_once_or_in_a_minute_than_may_be(scene: Scene) -> None:
    scene.advice = [advice(number, target="bc"[number % 2]) for number in range(1, 31)]
    scene.commands.outcomes.clear()  # nobody answers
    scene.look(3)
    assert len(scene.commands.issued) == ACT_COMMANDS_MAX
    assert scene.counts[2]["at_once"] == 2 * (len(scene.advice) - ACT_COMMANDS_MAX)
    scene.commands.answer(0, tokens=4)
    scene.now += ACT_UNKNOWN_S + ACT_BACKOFF_MAX_S
    scene.look(10)
    assert len(scene.commands.issued) == ACT_COMMANDS_MAX + ACT_RATE_MAX
    assert scene.counts[2]["rate"] > 0
    scene.now += ACT_RATE_S
    scene.look()
    assert len(scene.commands.issued) > ACT_COMMANDS_MAX + ACT_RATE_MAX


def test_what_fails_otherwise_is_counted_and_the_next_look_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = Actor(scene.table, scene.router, scene.commands, period_s=0.001)
    monkeypatch.setattr(acting, "advised", lambda *_: 1 // 0)
    actor.start()
    try:
        until(lambda: actor.faults >= 2, what="two faults")
        monkeypatch.setattr(acting, "advised", lambda *_: [])
        rounds = actor.rounds
        until(lambda: actor.rounds > rounds + 1, what="more looks")
    finally:
        actor.stop()
    actor.stop()  # nothing more


def test_what_was_never_started_stops_at_once(scene: Scene) -> None:
    scene.actor.stop()


def test_a_pin_is_made_where_the_prefix_is(scene: Scene) -> None:
    scene.advice = [advice(action=AdvisedAction.PIN, target="a")]
    scene.look(2)
    [command] = scene.commands.issued
    assert (command.action, command.instance_id) == (Command.PIN, "a")
    assert scene.counts[0] == {"pin": 1}


@pytest.mark.parametrize(
    ("advised", "reason"),
    [
        (advice(holders="x"), "no_worker"),
        (advice(holders="b"), "no_worker"),
        (advice(target="x"), "no_worker"),
        (advice(action=AdvisedAction.PIN, target="x"), "no_worker"),
    ],
)
def test_who_takes_no_commands_is_asked_for_nothing(
    scene: Scene, advised: Advice, reason: str
) -> None:
    scene.advice = [advised]
    scene.look(2)
    assert not scene.commands.issued
    assert reason in scene.counts[2]


def test_nothing_is_done_while_what_was_done_is_not_known(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.look()
    scene.commands.is_read = False
    scene.look(2)
    assert (scene.commands.issued, scene.actor.unread) == ([], 2)
    assert caplog.text.count("Cannot read what advice is about") == 1, "not each time"
    scene.commands.is_read = True
    scene.look()
    assert len(scene.commands.issued) == 1
    scene.commands.is_read = False
    scene.look()
    assert caplog.text.count("Cannot read what advice is about") == 2


def test_before_the_first_look_advice_is_as_without_acting(scene: Scene) -> None:
    assert scene.actor.done() == NOTHING_DONE
    scene.look()
    assert scene.actor.done().is_target(SCOPE, "b")
    assert not scene.actor.done().is_target(SCOPE, "x"), "that has no worker"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (RequestError("too_many_commands", "", status=503), "refused"),
        (StorageError("the disk is full"), "unwritten"),
    ],
)
def test_a_command_that_is_not_taken_is_not_counted_as_done(
    scene: Scene, failure: Any, reason: str
) -> None:
    scene.commands.failure = failure
    scene.look(2)
    assert scene.counts == ({}, {}, {"no_tokens": 1, reason: 1})
    scene.commands.failure = None
    scene.look()
    # The log may have what it did not confirm.
    assert len(scene.commands.issued) == (0 if reason == "unwritten" else 1)
