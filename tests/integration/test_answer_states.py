"""What answers say of themselves, of engines and services as processes that die, pause and restart.

`exact` is said only where everything is there that had been published until 5 s ago; and it is
said, where all is well.
"""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from devtools.broker import free_ports
from schemas.limits import STALE_S
from tests.deployment import Deployment, answers_are_right, query_for, states_of
from tests.integration.test_repair import (
    Engine,
    register,
    shown,
    until_caught_up,
    until_heard,
)
from tests.load import Load
from tests.processes import Service, until
from tests.proxy import Proxy

PROMPTS = range(0, 200, 20)
BOUND_S = STALE_S + 0.5
"""`unconfirmed` by then: the answer of a busy machine may take a moment."""


class Told(NamedTuple):
    """One answer: when it was asked for, of which prompt, what it said."""

    at: float
    prompt: int
    matched: int
    state: str


class Asker:
    """Asks all the time, from a thread of its own."""

    def __init__(self, service: Service) -> None:
        self.told: list[Told] = []
        self._service = service
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        number = 0
        while not self._ending.wait(0.02):
            number = (number + 1) % len(PROMPTS)
            with_prompt = PROMPTS[number]
            at = time.monotonic()
            try:
                told = ask(self._service, with_prompt)
            except (OSError, AssertionError):
                continue  # it is down, or not ready
            self.told.append(Told(at, with_prompt, *told))

    def end(self) -> None:
        self._ending.set()
        self._thread.join(10)


def ask(service: Service, prompt: int) -> tuple[int, str]:
    """The longest match of the engine, and the state of the answer."""
    body = {"model": "m", "block_size": 16, "token_ids": Engine.prompt(prompt)}
    status, answer, headers = service.exchange("/query", body)
    assert status == 200
    found = answer.get("default", {}).get("a", {}).get("longest_matched", 0)
    return found, headers["reprise-state"]


def truth(engine: Engine) -> dict[int, int]:
    return {
        number: engine.post("/truth", {"token_ids": Engine.prompt(number)})["ranks"]["0"]["any"]
        for number in PROMPTS
    }


@contextmanager
def asked(service: Service) -> Iterator[Asker]:
    asker = Asker(service)
    try:
        yield asker
    finally:
        asker.end()


def assert_never_exact_and_wrong(told: list[Told], right: dict[int, int], since: float) -> None:
    """From STALE_S after `since` on, when the engine had come to what is right."""
    wrong = [
        one
        for one in told
        if one.at > since + STALE_S and one.state == "exact" and one.matched != right[one.prompt]
    ]
    assert not wrong, f"{len(wrong)} of {len(told)} are exact and wrong, as {wrong[0]}"


def until_state(service: Service, state: str, *, timeout_s: float = 20.0) -> None:
    until(
        lambda: ask(service, 0)[1] == state,
        what=f"{state}: {shown(service)}\n{service.log()}",
        timeout_s=timeout_s,
    )


def assert_within_bound(service: Service, state: str, since: float) -> None:
    until_state(service, state)
    took = time.monotonic() - since
    assert took < BOUND_S, f"{state} only after {took:.1f} s"


def doubted(service: Service) -> str:
    return str(shown(service)["Reason"])


@pytest.fixture
def engine(seed: int) -> Iterator[Engine]:
    opened = Engine(seed, "0.33.0")
    yield opened
    opened.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
        yield running


@pytest.fixture
def proxy(service: Service, engine: Engine) -> Iterator[Proxy]:
    """The service follows the engine through it, without its replay socket, and is exact."""
    opened = Proxy(*free_ports(1))
    opened.start(engine.ready.ranks[0].endpoint)
    try:
        service.register(f"tcp://{opened.address}")
        until(lambda: shown(service)["Connected"], what="the link")
        time.sleep(0.3)
        engine.serve(40)
        until_caught_up(service, engine)
        until_state(service, "exact")
        yield opened
    finally:
        opened.close()


@pytest.fixture
def settled(service: Service, engine: Engine) -> Service:
    """A service that has all of an engine with a replay socket."""
    register(service, engine)
    engine.serve(60)
    until_heard(service, engine)
    until_state(service, "exact")
    return service


def start_until_exact(service: Service, engine: Engine) -> list[Told]:
    """Starts the service beside an engine that is silent; what it told from its start on."""
    silent_since, right = time.monotonic() - STALE_S, truth(engine)
    with asked(service) as asker:
        service.start()
        until_state(service, "exact")
        time.sleep(1.0)
    assert_never_exact_and_wrong(asker.told, right, silent_since)
    return asker.told


@pytest.mark.smoke
def test_what_was_missed_while_the_service_was_dead_is_never_exact_and_wrong(
    settled: Service, engine: Engine
) -> None:
    """The engine has removed and stored, and is silent from then on."""
    settled.kill()
    engine.serve(120)
    told = start_until_exact(settled, engine)
    assert told[-1].state == "exact"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.smoke
def test_an_engine_that_is_gone_is_unconfirmed_in_time_and_exact_once_it_is_back(
    settled: Service, engine: Engine, end: signal.Signals
) -> None:
    os.kill(engine._process.pid, end)
    assert_within_bound(settled, "unconfirmed", time.monotonic())
    # A question that it did not answer may have been the first to tell.
    reason = "link_down" if end is signal.SIGKILL else "link_silent"
    until(lambda: doubted(settled) == reason, what=reason, timeout_s=BOUND_S)
    if end is signal.SIGSTOP:
        os.kill(engine._process.pid, signal.SIGCONT)
    else:
        engine.restart()
        until(lambda: shown(settled)["Connected"], what="the link")
    engine.serve(20)  # what comes live is what a replay is compared with
    until_state(settled, "exact")
    right = truth(engine)
    assert {number: ask(settled, number)[0] for number in PROMPTS} == right
    links = 1 if end is signal.SIGSTOP else 2
    assert settled.metric("reprise_bridge_links_total") == links


def test_what_waits_on_a_link_that_is_held_up_is_never_exact_and_wrong_and_not_lost(
    service: Service, engine: Engine, proxy: Proxy
) -> None:
    with asked(service) as asker:
        proxy.freeze()
        engine.serve(30)
        silent_since, right = time.monotonic(), truth(engine)
        until(lambda: doubted(service) == "link_silent", what="a silent link")
        time.sleep(STALE_S)
        proxy.heal()
        until_state(service, "exact")
        time.sleep(1.0)
    assert_never_exact_and_wrong(asker.told, right, silent_since)
    assert asker.told[-1].matched == right[asker.told[-1].prompt]
    assert service.metric("reprise_bridge_links_total") == 1
    assert service.metric("reprise_bridge_lost_batches_total") == 0


def test_at_quiet_healthy_times_answers_are_exact(settled: Service, engine: Engine) -> None:
    with asked(settled) as asker:
        for _ in range(8):
            engine.serve(5)
            time.sleep(1.0)
    states = Counter(one.state for one in asker.told)
    assert states["exact"] >= 0.999 * states.total(), states


def test_a_service_that_was_paused_says_so_until_it_has_asked(
    settled: Service, engine: Engine
) -> None:
    assert settled.process is not None
    pid = settled.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        engine.serve(120)
        silent_since, right = time.monotonic(), truth(engine)
        time.sleep(BOUND_S)
        with asked(settled) as asker:
            time.sleep(0.2)
            os.kill(pid, signal.SIGCONT)
            until_state(settled, "exact")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert_never_exact_and_wrong(asker.told, right, silent_since)


# The distributed form


def settle(deployment: Deployment, load: Load) -> None:
    """Also shows that they stay exact while all is well."""
    deployment.start(load)

    def is_exact() -> bool:
        return states_of(deployment, load) == {"exact"}

    deployment.until(is_exact, what="exact answers while something comes live")
    query = query_for(load.prompt(0))
    states = Counter[str]()
    while states.total() < 500:
        states.update(replica.state(query) for replica in deployment.replicas)
        time.sleep(0.005)
    assert states["exact"] >= 0.99 * states.total(), states
    load.stop()
    deployment.until(is_exact, what="exact answers")


def assert_all_within_bound(deployment: Deployment, load: Load, since: float) -> None:
    deployment.until(lambda: "exact" not in states_of(deployment, load), what="doubt")
    took = time.monotonic() - since
    assert took < BOUND_S, f"{states_of(deployment, load)} only after {took:.1f} s"


@pytest.mark.timeout(180)
def test_without_its_bridges_no_answer_is_exact_and_with_them_all_are(
    deployment: Deployment, load: Load
) -> None:
    settle(deployment, load)
    for bridge in deployment.bridges:
        bridge.kill()
    assert_all_within_bound(deployment, load, time.monotonic())

    def reasons() -> set[tuple[str, str]]:
        services = deployment.replicas[0].get("/services")["services"]
        return {(one["State"], one["Reason"]) for one in services}

    # Each partition has heartbeats of its own, so the publishers follow one after the other.
    deployment.until(lambda: reasons() == {("unconfirmed", "no_heartbeat")}, what="the reason")
    for bridge in deployment.bridges:
        bridge.start()
    deployment.until(lambda: states_of(deployment, load) == {"exact"}, what="exact answers")
    for bridge in deployment.bridges:
        bridge.pause()
    assert_all_within_bound(deployment, load, time.monotonic())
    for bridge in deployment.bridges:
        bridge.resume()
    deployment.until(lambda: states_of(deployment, load) == {"exact"}, what="exact answers")
    assert answers_are_right(deployment, load)


@pytest.mark.timeout(180)
def test_without_the_registry_no_answer_is_exact(deployment: Deployment, load: Load) -> None:
    settle(deployment, load)
    asyncio.run(delete_topic(deployment.kafka, deployment.kafka.topics.registry.name))
    assert_all_within_bound(deployment, load, time.monotonic())
    time.sleep(BOUND_S)
    assert "exact" not in states_of(deployment, load)


async def delete_topic(kafka: KafkaSettings, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.servers)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()
