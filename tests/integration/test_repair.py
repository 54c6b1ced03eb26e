"""The embedded service repairs what it missed, from the replay sockets of engines as processes.

Afterwards its answers are the engine's own truth, exact, and its digests those of a fresh fold.
"""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from bridge.publisher.replay_client import END_SEQUENCE
from devtools.broker import free_ports
from lab.engines.cache import CacheSizes
from lab.engines.engine import EngineOptions, EngineReady, EngineState
from lab.engines.process import EngineProcess, stop_engines
from lab.engines.publisher import PublisherOptions
from lab.traffic.http_json import JsonConnection
from schemas.limits import MESSAGE_BYTES_MAX
from tests.integration.test_kill import contexts_of, fresh_contexts
from tests.processes import Service, until
from tests.proxy import Proxy

PROMPTS = 200
SIZES = CacheSizes(block_size=16, gpu_blocks=120, cpu_blocks=200)
WIRES = ["0.23.0", "0.25.0", "0.33.0"]
"""Arrays, maps, and maps with the topic in replays; SGLang's two forms of replay are the same."""


class Engine:
    """One engine process, and what it knows of itself."""

    def __init__(self, seed: int, wire: str) -> None:
        self._random = random.Random(seed)
        self._wire = wire
        self.ready: EngineReady
        self._start(PublisherOptions(wire=wire))

    def _start(self, publisher: PublisherOptions) -> None:
        options = EngineOptions(instance_id="a", model="m", sizes=SIZES, publisher=publisher)
        self._process = EngineProcess(options)
        self.ready = self._process.await_ready()
        self._api = JsonConnection(f"http://127.0.0.1:{self.ready.http_port}", 20.0)

    def restart(self) -> None:
        """Another process at the same addresses, which knows nothing."""
        (rank,) = self.ready.ranks
        self.close()
        self._start(
            PublisherOptions(
                endpoint=rank.endpoint, replay_endpoint=rank.replay_endpoint, wire=self._wire
            )
        )

    def post(self, path: str, body: object) -> Any:
        return msgspec.json.decode(self._api.request("POST", path, body).body)

    @staticmethod
    def prompt(number: int) -> list[int]:
        return [number % 20] * 32 + [number] * (16 * (number % 7) + 1)

    def serve(self, requests: int) -> None:
        """Stores and, as the cache is small, removes."""
        for _ in range(requests):
            tokens = self.prompt(self._random.randrange(PROMPTS))
            self.post("/generate", {"token_ids": tokens})

    def publish(self) -> None:
        """Serves until there is one more batch: a prompt that is cached gives none."""
        before = self.published()
        for _ in range(10 * PROMPTS):
            self.serve(1)
            if self.published() > before:
                return
        raise AssertionError(f"Expected a batch after {before}, got none")

    def published(self) -> int:
        answer = self._api.request("GET", "/ready").body
        return msgspec.json.decode(answer, type=EngineState).batches[0]

    def close(self) -> None:
        self._api.close()
        stop_engines([self._process])


@pytest.fixture
def wire() -> str:
    return WIRES[-1]


@pytest.fixture
def engine(seed: int, wire: str) -> Iterator[Engine]:
    opened = Engine(seed, wire)
    yield opened
    opened.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
        yield running


def register(service: Service, engine: Engine, *, endpoint: str = "") -> None:
    (rank,) = engine.ready.ranks
    service.register(endpoint or rank.endpoint, replay_endpoint=rank.replay_endpoint)


def shown(service: Service) -> dict[str, Any]:
    (found,) = service.get("/services")[1]["services"]
    return dict(found)


def until_caught_up(service: Service, engine: Engine, *, incarnation: int = 1) -> None:
    def holds() -> bool:
        one = shown(service)
        return (one["Incarnation"], one["Sequence"]) == (incarnation, engine.published() - 1)

    try:
        until(holds, what="all batches are folded")
    except AssertionError as error:
        raise AssertionError(f"{error}: {shown(service)}\n{service.log()}") from error


def until_heard(service: Service, engine: Engine) -> None:
    """Until it has all, of which something came live: a replay alone may be another engine's."""
    until_caught_up(service, engine)
    engine.publish()
    until_caught_up(service, engine)


def wrong_answers(service: Service, engine: Engine) -> list[object]:
    """What is not the engine's truth; an answer that is not `exact` is wrong whatever it says."""
    wrong: list[object] = []
    for number in range(PROMPTS):
        tokens = engine.prompt(number)
        truth = engine.post("/truth", {"token_ids": tokens})["ranks"]["0"]
        body = {"model": "m", "block_size": 16, "token_ids": tokens}
        status, answer, headers = service.exchange("/query", body)
        assert status == 200
        one = answer["default"]["a"]
        told = (one["longest_matched"], one["GPU"], one["CPU"], headers["reprise-state"])
        if told != (truth["any"], truth["GPU"], truth["CPU"], "exact"):
            wrong.append((number, told, truth))
    return wrong


def assert_exact(service: Service, engine: Engine) -> None:
    # The engine numbers a batch a moment after it has served the request, so the last one may
    # still be on its way.
    until(lambda: not wrong_answers(service, engine), what="the answers are the engine's truth")
    assert contexts_of(service) == fresh_contexts(service.data)
    assert service.metric("reprise_internal_errors_total") == 0.0


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.smoke
def test_what_was_sent_while_the_service_was_killed_is_replayed(
    service: Service, engine: Engine
) -> None:
    register(service, engine)
    engine.serve(100)
    until_heard(service, engine)
    service.kill()
    engine.serve(150)
    service.start()
    until_caught_up(service, engine)
    assert_exact(service, engine)
    assert service.metric("reprise_bridge_gaps_total") == 0.0
    assert service.metric("reprise_bridge_replayed_batches_total") > 0.0


def test_a_kill_between_any_two_batches_loses_none(
    service: Service, engine: Engine, seed: int
) -> None:
    moments = random.Random(seed)
    register(service, engine)
    for _ in range(4):
        engine.serve(moments.randrange(1, 60))
        service.kill()
        engine.serve(moments.randrange(60))
        service.start()
    until_heard(service, engine)
    assert_exact(service, engine)


def test_what_was_sent_before_the_registration_is_replayed(
    service: Service, engine: Engine
) -> None:
    engine.serve(100)
    register(service, engine)
    until_heard(service, engine)
    assert_exact(service, engine)


def test_batches_that_were_dropped_on_the_way_are_replayed(
    service: Service, engine: Engine
) -> None:
    register(service, engine)
    engine.serve(50)
    until_heard(service, engine)
    for _ in range(3):
        engine.post("/lose", {"batches": 20})
        engine.serve(40)
        until_caught_up(service, engine)
    assert_exact(service, engine)
    assert service.metric("reprise_bridge_gaps_total") == 0.0


@pytest.fixture
def proxy(engine: Engine) -> Iterator[Proxy]:
    """Before the engine's live socket."""
    opened = Proxy(*free_ports(1))
    opened.start(engine.ready.ranks[0].endpoint)
    yield opened
    opened.close()


@pytest.mark.smoke
def test_what_was_sent_while_the_link_was_cut_is_replayed_though_nothing_follows(
    service: Service, engine: Engine, proxy: Proxy
) -> None:
    register(service, engine, endpoint=f"tcp://{proxy.address}")
    until(lambda: shown(service)["Connected"], what="the link")
    engine.serve(50)
    until_heard(service, engine)
    proxy.cut()
    until(lambda: not shown(service)["Connected"], what="the end of the link")
    engine.serve(50)
    proxy.heal()
    until_caught_up(service, engine)
    assert_exact(service, engine)
    assert service.metric("reprise_bridge_gaps_total") == 0.0


def test_an_engine_that_was_restarted_while_the_service_was_killed_is_known_for_another(
    service: Service, engine: Engine
) -> None:
    register(service, engine)
    engine.serve(100)
    until_caught_up(service, engine)
    service.kill()
    engine.restart()
    engine.serve(150)  # more than before: its numbers alone would not show it
    service.start()
    until_caught_up(service, engine, incarnation=2)
    engine.publish()
    until_caught_up(service, engine, incarnation=2)
    assert_exact(service, engine)


def test_a_gap_that_no_replay_fills_is_told_and_does_not_look_like_another_engine(
    service: Service, engine: Engine
) -> None:
    (rank,) = engine.ready.ranks
    service.register(rank.endpoint)
    until(lambda: shown(service)["Connected"], what="the link")
    time.sleep(0.2)  # the subscription follows the link; nothing tells when it is there
    engine.serve(20)
    until_caught_up(service, engine)
    engine.post("/lose", {"batches": 1})
    engine.serve(20)
    until_caught_up(service, engine)
    service.restart()
    assert shown(service)["DegradedSince"] is not None
    assert shown(service)["Incarnation"] == 1


# Messages that are larger than what is received


class LargeEngine:
    """Sockets as vLLM has them, in this process, and batches of any size: batch N stores block N.

    Attributes:
        asked: the first sequences of the requests for a replay.
    """

    def __init__(self, queue: int = 1000) -> None:
        self.asked: list[int] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._live = self._context.socket(zmq.PUB)
        self._replay = self._context.socket(zmq.ROUTER)
        self._replay.sndhwm = queue
        self.endpoint, self.replay_endpoint = (
            f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
            for socket in (self._live, self._replay)
        )
        self._buffer: list[list[bytes]] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def publish(self, *events: list[object]) -> None:
        number = len(self._buffer)
        stored = ["BlockStored", [1000 + number], None, [number] * 16, 16, None]
        payload = msgspec.msgpack.encode([time.time(), events or [stored], 0])
        self._buffer.append([number.to_bytes(8, "big"), payload])
        self._live.send_multipart([b"", *self._buffer[-1]])

    def publish_too_large(self) -> None:
        self.publish(["BlockRemoved", [bytes(MESSAGE_BYTES_MAX)]])

    def clear(self) -> None:
        self.publish(["AllBlocksCleared"])

    @property
    def last(self) -> int:
        return len(self._buffer) - 1

    def _answer(self) -> None:
        while not self._stopping:
            if not self._replay.poll(20):
                continue
            client, _, start = self._replay.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for message in self._buffer[self.asked[-1] :]:
                self._replay.send_multipart([client, b"", b"", *message])
            self._replay.send_multipart([client, b"", b"", END_SEQUENCE, b""])

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._context.destroy(linger=0)


@pytest.fixture
def large() -> Iterator[LargeEngine]:
    opened = LargeEngine()
    yield opened
    opened.close()


def until_all_but_one(service: Service, engine: LargeEngine, missing: int) -> None:
    """All is there, but for what only that batch has; and it is known that it is missing."""
    until(lambda: shown(service)["Sequence"] == engine.last, what="all batches are folded")
    assert service.metric("reprise_bridge_lost_batches_total") == 1.0, service.log()
    dropped = {"reason": "message_too_large"}
    assert service.metric("reprise_bridge_dropped_total", **dropped) == 1.0
    for number in range(engine.last + 1):
        assert (service.longest([number] * 16) > 0) == (number != missing), number
    assert (shown(service)["State"], shown(service)["Reason"]) == ("degraded", "lost_batches")


def test_of_a_buffer_with_a_message_that_is_too_large_only_that_one_is_a_gap(
    service: Service, large: LargeEngine
) -> None:
    for number in range(200):
        large.publish_too_large() if number == 3 else large.publish()
    ours = {"replay_endpoint": large.replay_endpoint, "kv_offloading": "none"}
    service.register(large.endpoint, **ours)
    until_all_but_one(service, large, missing=3)
    until(lambda: large.asked[-1] == large.last, what="the last question")
    assert sum(start <= 3 for start in large.asked) == 2, "it is asked for no more"
    large.clear()
    large.publish()
    until(lambda: shown(service)["State"] == "exact", what="the answers are exact")
    assert service.metric("reprise_bridge_lost_batches_total") == 1.0


def test_of_live_messages_only_the_one_that_is_too_large_is_a_gap(
    service: Service, large: LargeEngine
) -> None:
    service.register(large.endpoint, replay_endpoint=large.replay_endpoint)
    until(lambda: shown(service)["Connected"], what="the link")
    for _ in range(3):
        large.publish()
    until(lambda: shown(service)["Sequence"] == 2, what="the first batches")
    large.publish_too_large()
    until(lambda: not shown(service)["Connected"], what="the end of the link")
    large.publish()
    large.publish()
    until_all_but_one(service, large, missing=3)
    large.publish()
    until_all_but_one(service, large, missing=3)


def test_a_long_replay_of_which_the_engines_socket_drops_much_ends_complete(
    service: Service,
) -> None:
    engine = LargeEngine(queue=60)
    try:
        for _ in range(600):
            engine.publish()
        service.register(engine.endpoint, replay_endpoint=engine.replay_endpoint)
        until(lambda: shown(service)["Sequence"] == engine.last, what="all batches are folded")
        assert service.metric("reprise_bridge_gaps_total") == 0.0
        assert [service.longest([number] * 16) for number in range(600)] == [16] * 600
    finally:
        engine.close()
