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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import zmq
from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from devtools.broker import free_ports
from lab.engines.wire import BlockRemoved, BlockStored, EventEncoder
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
    return ask_for(service, Engine.prompt(prompt))


def ask_for(service: Service, tokens: Sequence[int]) -> tuple[int, str]:
    """The longest match of the engine, and the state of the answer."""
    body = {"model": "m", "block_size": 16, "token_ids": list(tokens)}
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


@pytest.fixture(params=[True, False], ids=["replay", "no replay"])
def replays(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def proxy(service: Service, engine: Engine, replays: bool) -> Iterator[Proxy]:
    """The service follows the engine through it, and is exact."""
    opened = Proxy(*free_ports(1))
    opened.start(engine.ready.ranks[0].endpoint)
    try:
        if replays:
            register(service, engine, endpoint=f"tcp://{opened.address}")
        else:
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


def register_without_replay(service: Service, engine: Engine) -> None:
    (rank,) = engine.ready.ranks
    service.register(rank.endpoint)
    until(lambda: shown(service)["Connected"], what="the link")
    time.sleep(0.3)  # the subscription follows the link


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


def test_without_a_replay_socket_nothing_is_exact_after_a_restart(
    service: Service, engine: Engine
) -> None:
    register_without_replay(service, engine)
    engine.serve(30)
    until_caught_up(service, engine)
    until_state(service, "exact")
    service.kill()
    engine.serve(30)
    service.start()
    until(lambda: shown(service)["Connected"], what="the link")
    with asked(service) as asker:
        time.sleep(BOUND_S + 1)
    assert Counter(one.state for one in asker.told).keys() == {"unconfirmed"}
    assert doubted(service) == "no_replay"


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


def test_an_engine_that_came_exactly_as_far_while_the_service_was_dead_is_told_apart(
    settled: Service, engine: Engine
) -> None:
    goal = engine.published()
    settled.kill()
    engine.restart()
    while engine.published() < goal:
        engine.serve(1)
    silent_since, right = time.monotonic() - STALE_S, truth(engine)
    with asked(settled) as asker:
        settled.start()
        until_caught_up(settled, engine, incarnation=2)
        until(lambda: doubted(settled) == "replay_unmatched", what="nothing has come live yet")
    assert_never_exact_and_wrong(asker.told, right, silent_since)
    engine.publish()
    until_state(settled, "exact")
    assert shown(settled)["Incarnation"] == 2


def test_what_was_lost_with_a_link_is_never_exact_and_wrong(
    service: Service, engine: Engine, proxy: Proxy, replays: bool
) -> None:
    with asked(service) as asker:
        proxy.cut()
        engine.serve(30)
        silent_since, right = time.monotonic(), truth(engine)
        proxy.heal()
        until(lambda: shown(service)["Connected"], what="the link", timeout_s=20)
        time.sleep(BOUND_S)
    assert_never_exact_and_wrong(asker.told, right, silent_since)
    assert asker.told[-1].state == ("exact" if replays else "unconfirmed")


STORED = BlockStored(block_hashes=[1], token_ids=list(range(16)), block_size=16, medium="GPU")
REMOVED = BlockRemoved(block_hashes=[1], medium="GPU")


@pytest.mark.parametrize(
    ("number", "between", "then"),
    [
        (bytes(7), 0, "exact"),
        ((2**64 - 1).to_bytes(8, "big"), 0, "degraded"),  # a batch, and lost
        (bytes(8), -1, "exact"),
        (bytes(8), 1, "exact"),
    ],
)
def test_a_batch_without_a_place_in_the_stream_is_never_exact_and_wrong(
    service: Service, number: bytes, between: int, then: str
) -> None:
    encode = EventEncoder().encode
    stored = encode([STORED], timestamp_s=1.0, dp_rank=0)
    removed = encode([REMOVED], timestamp_s=2.0, dp_rank=0)

    def told() -> tuple[int, str]:
        return ask_for(service, range(16))

    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.bind("tcp://127.0.0.1:0")
        service.register(publisher.get_string(zmq.LAST_ENDPOINT))
        assert publisher.poll(10_000)
        until(lambda: shown(service)["Connected"], what="the link")
        time.sleep(0.5)
        publisher.send_multipart([b"", bytes(8), stored])
        until(lambda: told() == (16, "exact"), what="what was stored")
        frames = [b"", number, *[b""] * max(0, between), removed]
        publisher.send_multipart(frames if between >= 0 else frames[1:])
        since = time.monotonic()
        until(lambda: told()[1] == "unconfirmed", what="a doubt")
        assert time.monotonic() - since < BOUND_S
        assert doubted(service) == "unreadable"
        publisher.send_multipart([b"", (1).to_bytes(8, "big"), removed])
        until(lambda: told() == (0, then), what="the batch that follows on the last one")


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
    deployment.start(load)

    def is_exact() -> bool:
        return states_of(deployment, load) == {"exact"}

    deployment.until(is_exact, what="exact answers while something comes live")
    load.stop()
    deployment.until(is_exact, what="exact answers")


def assert_all_within_bound(deployment: Deployment, load: Load, since: float) -> None:
    deployment.until(lambda: "exact" not in states_of(deployment, load), what="doubt")
    took = time.monotonic() - since
    assert took < BOUND_S, f"{states_of(deployment, load)} only after {took:.1f} s"


@pytest.mark.timeout(180)
def test_at_healthy_times_the_answers_of_replicas_are_exact(
    deployment: Deployment, load: Load
) -> None:
    deployment.start(load)
    deployment.until(lambda: states_of(deployment, load) == {"exact"}, what="exact answers")
    query = query_for(load.prompt(0))
    states = Counter[str]()
    while states.total() < 2000:
        states.update(replica.state(query) for replica in deployment.replicas)
        time.sleep(0.005)
    load.stop()
    assert states["exact"] >= 0.999 * states.total(), states


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
