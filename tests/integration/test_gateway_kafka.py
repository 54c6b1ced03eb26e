"""The gateway in replicas: each sees what the other has sent, and outlives it."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokers.broker_settings import KafkaSettings
from lab.engines.openai import prompt_tokens
from tests.contract.test_gateway_contract import EngineProcess, engines, turn
from tests.gateway import Client
from tests.processes import Api, until
from tests.roles import Role

pytestmark = pytest.mark.timeout(300)


class Gateways:
    """A bridge, a worker, and two replicas that are gateways to the same engines."""

    def __init__(self, directory: Path, kafka: KafkaSettings, found: list[EngineProcess]) -> None:
        named = [part for one in found for part in ("--engine", one.url)]
        # What decides is the cache, and not how fast a busy machine has let each engine be.
        named += ("--set", "routing.policy=longest-prefix")
        self.engines = found
        self.replicas = [
            Role("serve", directory / f"serve-{number}", kafka, "--gateway", "0", *named)
            for number in (1, 2)
        ]
        self.others = [Role(role, directory / role, kafka) for role in ("bridge", "streams")]
        for role in (*self.others, *self.replicas):
            role.start()

    def client(self, number: int) -> Client:
        output = self.replicas[number].output()
        return Client(int(re.findall(r"gateway listens on http://127.0.0.1:(\d+)", output)[-1]))

    def api(self, number: int) -> Api:
        api = Api()
        api.base_url = self.replicas[number].base_url
        return api

    def until_enrolled(self, number: int) -> None:
        def states() -> set[str]:
            return {one["state"] for one in self.api(number).get("/gateway")[1]["engines"]}

        until(lambda: states() == {"followed"}, what="engines that are followed", timeout_s=60)
        until(lambda: self.post(number, turn("x"))[0] == 200, what="an answer", timeout_s=60)

    def post(self, number: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        got = asyncio.run(self.client(number).post(body))
        return got.status, got.document

    def close(self) -> None:
        for role in (*self.replicas, *self.others):
            role.kill()


@pytest.fixture
def gateways(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[Gateways]:
    with engines(2, "--events") as found:
        running = Gateways(tmp_path, kafka_settings, found)
        try:
            yield running
        finally:
            running.close()


def test_turn_finds_its_cache_through_the_other_replica(gateways: Gateways) -> None:
    for number in (0, 1):
        gateways.until_enrolled(number)
    status, first = gateways.post(0, turn("alpha"))
    assert status == 200
    tokens = list(prompt_tokens(turn("alpha")))
    url = next(one.url for one in gateways.engines if one.name == first["engine"])

    def held() -> bool:
        api = gateways.api(1)
        return api.is_ready() and api.longest(tokens, url.removeprefix("http://")) > 0

    until(held, what="events at the other replica", timeout_s=60)
    gateways.replicas[0].kill()
    for words in (("alpha", "one"), ("alpha", "one", "two")):
        status, got = gateways.post(1, turn(*words))
        assert (status, got["engine"]) == (200, first["engine"])
        assert got["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    gateways.replicas[0].start()
    gateways.until_enrolled(0)
    status, got = gateways.post(0, turn("alpha", "three"))
    assert (status, got["engine"]) == (200, first["engine"])
