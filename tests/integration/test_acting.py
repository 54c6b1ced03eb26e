"""Advice that is acted on, by the service as a process, with LMCache's workers by their script.

engines   by vLLM's publisher: `hot` holds a prompt that all ask for, `cold` has nothing
workers   one of each, which write down what they are asked
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from brokers.broker_settings import KafkaSettings
from devtools.broker import free_ports
from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import BlockStored
from schemas.registration import LMCACHE
from tests.kafka_fixtures import own_topics, settings_for
from tests.lmcache import CPU, ScriptedWorker
from tests.lmcache_commands import CommandSocket, plain_answer
from tests.lmcache_service import LmcacheService
from tests.processes import Api

pytestmark = pytest.mark.timeout(300)

PERIOD_S = 0.5
ROUNDS = 6
"""Looks after which nothing more is expected of what might be done."""

SIZE, BLOCKS = 16, 64
TOKENS = list(range(1, 1 + SIZE * BLOCKS))
PROMPTS = 12
"""More than a prefix needs to be hot: 0.1 a second over a minute are 6."""

PEERS = {"hot": "10.0.0.1:8200", "cold": "10.0.0.2:8200"}


class Stage(LmcacheService):
    """A service with these instances."""

    def __init__(self, directory: Path, kafka: KafkaSettings | None, *acting: str) -> None:
        self.ports = free_ports(3)
        listed = ",".join(map(str, self.ports))
        options = ("--lmcache", f"127.0.0.1:{listed}", "--set", "lmcache.model=m")
        super().__init__(directory, kafka, *options, answering=acting)
        self._ending = ExitStack()
        self._ending.callback(super().close)
        self.sockets = {name: self._ending.enter_context(CommandSocket()) for name in PEERS}
        self.scripts = {name: self._worker(name) for name in PEERS}
        self._engine("hot", TOKENS)
        self._engine("cold", [])

    @property
    def api(self) -> Api:
        """As it is after a restart, too."""
        return self.deployment.api

    def close(self) -> None:
        self._ending.close()

    def _worker(self, name: str) -> ScriptedWorker:
        port = self.sockets[name].port
        script = ScriptedWorker(self.ports, name, peer=PEERS[name], command_port=port)
        self._ending.callback(script.close)
        script.register()
        return script

    def _engine(self, name: str, tokens: list[int]) -> None:
        publisher = self._ending.enter_context(closing(Publisher(PublisherOptions())))
        self.api.register(publisher.endpoint, instance_id=name, block_size=SIZE)
        self.until(lambda: publisher.subscribers, "a subscription")
        if tokens:
            hashes = [tokens[0] + block for block in range(len(tokens) // SIZE)]
            event = BlockStored(block_hashes=hashes, token_ids=tokens, block_size=SIZE)
            publisher.publish([event])
            self.until(lambda: self.api.longest(tokens, name) == len(tokens), "its blocks")

    # What is asked for

    def ask(self, prompts: int = 1) -> None:
        """So many prompts to who holds it, where others wait already."""
        load = {"instance_id": "hot", "waiting": 8, "prefill_tokens": 100_000}
        status, _ = self.api.post("/load", load)
        assert status == 202
        for _ in range(prompts):
            status, answer = self.route()
            assert status == 200, answer

    def route(self) -> tuple[int, Any]:
        body = {"model": "m", "block_size": SIZE, "token_ids": TOKENS}
        return self.api.post("/route", body | {"candidates": [{"instance_id": "hot"}]})

    def restart(self) -> None:
        """kill -9, and a start; an engine whose link is not up yet gets no prompts."""
        self.deployment.restart()
        self.until(lambda: self.route()[0] == 200, "routes")

    def asks_until(self, holds: Callable[[], object], what: str) -> None:
        def asked() -> object:
            self.ask()
            return holds()

        self.until(asked, what)

    def await_rounds(self, count: int = ROUNDS) -> None:
        """So many looks more, while prompts go on."""
        before = self.api.metric("reprise_acting_rounds_total")
        self.asks_until(
            lambda: self.api.metric("reprise_acting_rounds_total") >= before + count, "more looks"
        )

    # What came of it

    def advice(self) -> dict[str, Any]:
        status, document = self.api.get("/advice")
        assert status == 200, document
        found: dict[str, Any] = document
        return found

    def copies(self) -> list[dict[str, Any]]:
        """That are advised now."""
        return [one for one in self.advice()["advice"] if one["action"] == "copy"]

    def acted(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.advice()["acted"]
        return found

    def results(self) -> list[str]:
        return [one["result"] for one in self.acted()]

    def listed(self) -> list[dict[str, Any]]:
        """What the log of commands has of it."""
        status, document = self.api.get("/commands?origin=advice")
        assert status == 200, document
        found: list[dict[str, Any]] = document["commands"]
        return found

    def away(self) -> set[str]:
        """Instances whose LMCache workers are known to have no link."""
        status, document = self.api.get("/services")
        assert status == 200, document
        return {
            one["InstanceID"]
            for one in document["services"]
            if one["Type"] == LMCACHE
            and (one["Connected"] is False or one["Reason"] == "link_down")
        }

    def moves(self) -> list[dict[str, Any]]:
        """What the worker that holds it was asked; who holds nothing is asked for nothing."""
        assert not self.sockets["cold"].requests
        return self.sockets["hot"].requests

    def counted(self, what: str, **labels: str) -> float:
        return self.api.metric(f"reprise_acting_{what}_total", **labels)


Staged = Callable[..., Stage]


@pytest.fixture
def staged(form: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Staged]:
    with ExitStack() as ending:
        kafka = None
        if form == "kafka":
            broker = request.getfixturevalue("kafka")
            kafka = settings_for(broker, ending.enter_context(own_topics(broker)))

        def make(*options: str) -> Stage:
            return ending.enter_context(closing(Stage(tmp_path, kafka, *options)))

        yield make


ACT = ("--set", "acting.on=true", "--set", f"acting.period_s={PERIOD_S}")


@pytest.mark.both_forms
def test_a_hot_prefix_is_copied_once_and_that_is_seen(staged: Staged) -> None:
    stage = staged(*ACT)
    stage.ask(PROMPTS)
    stage.asks_until(stage.moves, "a move")
    [move] = stage.moves()
    assert (move["type"], move["tokens"], move["copy"]) == ("MoveWorkerMsg", TOKENS, True)
    assert (move["old_position"], move["new_position"]) == (CPU, [PEERS["cold"], CPU])
    stage.until(lambda: stage.results() == ["done"], "its result")
    stage.await_rounds()
    assert len(stage.moves()) == 1

    [act] = stage.acted()
    assert (act["action"], act["source"], act["target"]) == ("copy", "hot", "cold")
    assert (act["tokens"], act["reason"]) == (len(TOKENS), "")
    status, command = stage.api.get(f"/commands/{act['command_id']}")
    assert status == 200
    assert (command["state"], command["origin"]) == ("done", "advice")
    assert command["prefix_hash"] == act["prefix_hash"]
    assert stage.listed() == [command]
    assert stage.advice()["acting"]
    assert not stage.copies(), "what was copied counts as held"
    assert (stage.counted("acted", action="copy"), stage.counted("failed")) == (1, 0)

    stage.restart()
    stage.ask(PROMPTS)
    stage.await_rounds()
    assert len(stage.moves()) == 1
    assert [one["command_id"] for one in stage.acted()] == [act["command_id"]]


def test_nothing_is_done_where_that_is_not_switched_on(staged: Staged) -> None:
    stage = staged()
    stage.ask(PROMPTS)
    stage.asks_until(stage.copies, "advice")
    time.sleep(ROUNDS * PERIOD_S)
    stage.asks_until(stage.copies, "advice, still")
    assert not any(one["held_back"] for one in stage.copies())
    assert not stage.moves()
    document = stage.advice()
    assert (document["acting"], document["acted"], stage.listed()) == (False, [], [])


@pytest.mark.both_forms
def test_a_kill_between_a_command_and_its_result_repeats_nothing(staged: Staged) -> None:
    stage = staged(*ACT)
    stage.sockets["hot"].answer = lambda request: None
    stage.ask(PROMPTS)
    stage.asks_until(stage.moves, "a move")
    stage.restart()
    stage.sockets["hot"].answer = plain_answer
    stage.ask(PROMPTS)
    stage.asks_until(lambda: stage.results() == ["failed"], "the end of the command")
    stage.await_rounds()
    assert len(stage.moves()) == 1


def test_a_worker_whose_link_is_down_is_not_asked(staged: Staged) -> None:
    stage = staged(*ACT)
    stage.scripts["hot"].close()
    stage.until(lambda: "hot" in stage.away(), "the link is known to be down")
    stage.ask(PROMPTS)
    stage.asks_until(lambda: stage.counted("suppressed", reason="no_worker"), "a reason")
    stage.await_rounds()
    assert not stage.moves()
    assert not stage.acted()
    assert [one["held_back"] for one in stage.copies()] == ["no_worker"]
