"""What the packages under `integrations/` have in common, their client, against a real service.

It needs none of the libraries that they plug into, so it is loaded by its path.
"""

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lab.engines.cache import CacheSizes
from lab.engines.engine import Engine, EngineOptions, GenerateRequest
from lab.traffic.index_client import IndexClient
from tests.processes import START_S, Service, until

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "integrations" / "reprise-client" / "reprise_client" / "client.py"
PROMPT = list(range(64))
QUESTION: dict[str, Any] = {"model": "demo", "block_size": 16, "token_ids": PROMPT}


@pytest.fixture
def module() -> Iterator[ModuleType]:
    name = "client_of_plug_ins"
    spec = importlib.util.spec_from_file_location(name, CLIENT)
    assert spec is not None
    assert spec.loader is not None
    loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(loaded)
        yield loaded
    finally:
        del sys.modules[name]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
        yield running


@pytest.fixture
def engines(service: Service) -> Iterator[dict[str, Engine]]:
    """Two of them, registered, and heard of."""
    sizes = CacheSizes(block_size=16, gpu_blocks=100)
    with ExitStack() as stack:
        opened = {}
        for name in ("a", "b"):
            opened[name] = Engine(EngineOptions(instance_id=name, sizes=sizes))
            stack.callback(opened[name].close)
        index = IndexClient(service.base_url)
        stack.callback(index.close)
        index.register([engine.ready for engine in opened.values()])

        def reached() -> bool:
            candidates: list[dict[str, Any]] = service.exchange("/route", asked)[1]["candidates"]
            return [one["eligible"] for one in candidates] == [True, True]

        asked = {**QUESTION, "reserve": False, "explain": True}
        until(reached, what="both engines are linked")
        yield opened


def test_the_client_asks_and_tells_a_real_service(
    module: ModuleType, service: Service, engines: Mapping[str, Engine]
) -> None:
    report = module.Report(logging.getLogger(__name__))
    client = module.Client(service.base_url, report, timeout_s=START_S)

    def cached(name: str) -> int:
        body = service.exchange("/query", QUESTION)[1]
        found: int = body["default"][name]["longest_matched"]
        return found

    async def serve() -> tuple[Any, Any]:
        """The prompt, twice; what it says of the other answers is asserted here."""
        first = await client.route(QUESTION)
        generated = engines[first.instance_id].generate(GenerateRequest(token_ids=PROMPT))
        for event in ("first_token", "completed"):
            told = {"decision_id": first.decision_id, "event": event, "ttft_ms": 80.0}
            client.tell({**told, "cached_tokens": generated.cached_tokens})
        await asyncio.to_thread(
            until, lambda: cached(first.instance_id) == 64, what="what it holds is known"
        )
        second = await client.route(QUESTION)

        once = {**QUESTION, "request_id": "r-1"}
        assert await client.route(once) == await client.route(once)

        unheld = {**QUESTION, "token_ids": PROMPT[::-1]}
        refusal = await client.route({**unheld, "slo": {"ttft_ms": 0.001}})
        assert isinstance(refusal, module.Refusal)
        assert refusal.reason == "slo_unreachable"
        assert refusal.retry_after_s >= 1

        for question, reason in (
            ({**QUESTION, "model": "another"}, "no_candidate"),
            ({**QUESTION, "block_size": -1}, "rejected"),
        ):
            with pytest.raises(module.Unanswered) as raised:
                await client.route(question)
            assert raised.value.reason == reason
        await client._http.close()  # as the loop ends here, not with the process
        return first, second

    first, second = asyncio.run(serve())
    assert second.instance_id == first.instance_id, "whoever holds the prompt"
    client.close(START_S)
    assert report.counts == {"outcomes_sent": 2}

    def row() -> dict[str, Any]:
        rows = service.get("/promises?by=model")[1]["rows"]
        return next((one for one in rows if one["name"] == "demo"), {})

    # What was decided last may be written, and so folded, some moments after it was answered.
    def is_folded() -> bool:
        found = row()
        return bool(found.get("decisions", 0) >= 4 and found.get("reported", 0) >= 1)

    until(is_folded, what=f"all decisions are folded: {row()}")
    found = row()
    assert (found["decisions"], found["refused"], found["reported"]) == (4, 1, 1), "repeated once"
    assert found["ttft"]["actual_ms"] == 80.0
