"""Engines whose answers leave out what they found in their caches."""

import json
import logging
from collections.abc import Callable

import pytest

from gateway import cache_reports
from gateway.cache_reports import CACHE_UNSAID_MIN, CacheReports
from gateway.feature import _document
from gateway.fleet import EngineTarget
from gateway.requests import COMPLETIONS
from gateway.settings import GatewaySettings
from query_api.grpc.grpc_settings import ListenAddress
from tests.gateway import Seen, World
from tests.unit.gateway.test_exchange import run

PROMPT = {"model": "m", "prompt": list(range(64))}
VLLM = EngineTarget(("a", 0), "http://a:1", "combined", False, "vLLM")


def saying(cached: int | None) -> Callable[[Seen], bytes]:
    details = None if cached is None else {"cached_tokens": cached}
    usage = {"prompt_tokens": 64, "completion_tokens": 1, "prompt_tokens_details": details}
    return lambda seen: json.dumps({"usage": usage}).encode()


@pytest.mark.parametrize(("cached", "lacks"), [(None, True), (48, False)])
def test_engine_that_does_not_say_what_it_found_lacks_a_flag(
    cached: int | None, lacks: bool
) -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        engine.answers_with = saying(cached)
        reports = found.gateway.placer.cache_reports
        for _ in range(CACHE_UNSAID_MIN):  # nothing was promised of the first one
            await found.client.post(PROMPT, COMPLETIONS)
            assert reports.unsaid() == {}
        await found.client.post(PROMPT, COMPLETIONS)
        assert reports.unsaid() == ({engine.url: CACHE_UNSAID_MIN} if lacks else {})
        engine.answers_with = saying(0)
        await found.client.post(PROMPT, COMPLETIONS)
        assert reports.unsaid() == {}

    run(scenario)


def test_several_prompts_and_other_paths_prove_nothing() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        engine.answers_with = saying(None)
        for _ in range(CACHE_UNSAID_MIN + 2):
            several = PROMPT | {"prompt": [PROMPT["prompt"], [1, 2]]}
            await found.client.post(several, COMPLETIONS)
            embedded = {"model": "m", "input": PROMPT["prompt"]}
            await found.client.post(embedded, "/v1/embeddings")
        assert found.gateway.placer.cache_reports.unsaid() == {}

    run(scenario)


def test_the_view_of_the_gateway_names_the_flag() -> None:
    async def scenario(found: World) -> None:
        reports = found.gateway.placer.cache_reports
        for _ in range(CACHE_UNSAID_MIN):
            reports.note(VLLM, 64, None)
        [engine] = _document(found.gateway).engines
        assert engine.lacks.endswith("start it with --enable-prompt-tokens-details")

    run(scenario, settings=GatewaySettings(listen=ListenAddress(), engines=(VLLM.base_url,)))


def test_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    reports = CacheReports()
    with caplog.at_level(logging.WARNING):
        for _ in range(3 * CACHE_UNSAID_MIN):
            reports.note(VLLM, 16, None)
            reports.note(VLLM, 0, None)  # it found nothing, as was expected
    assert len(caplog.records) == 1
    assert reports.unsaid() == {VLLM.base_url: 3 * CACHE_UNSAID_MIN}
    assert "--enable-prompt-tokens-details" in caplog.text


def test_engines_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_reports, "CACHE_REPORTS_MAX", 2)
    reports = CacheReports()
    for number in range(3):
        for _ in range(CACHE_UNSAID_MIN):
            reports.note(VLLM._replace(base_url=f"http://{number}:1"), 16, None)
    assert set(reports.unsaid()) == {"http://1:1", "http://2:1"}
