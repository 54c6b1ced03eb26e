"""The embedded service repairs what it missed, from the replay sockets of engines as processes.

Afterwards its answers are the engine's own truth, exact, and its digests those of a fresh fold.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from devtools.broker import free_ports
from lab.engines.cache import CacheSizes
from lab.engines.engine import EngineOptions, EngineReady, EngineState
from lab.engines.process import EngineProcess, stop_engines
from lab.engines.publisher import PublisherOptions
from lab.traffic.http_json import JsonConnection
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


def until_caught_up(service: Service, engine: Engine) -> None:
    def holds() -> bool:
        one = shown(service)
        return (one["Incarnation"], one["Sequence"]) == (1, engine.published() - 1)

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
