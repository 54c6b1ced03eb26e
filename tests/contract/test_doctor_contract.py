"""What `GET /doctor` finds of mistakes that are made with real engines, in both forms."""

import json
import time
from collections.abc import Iterator

import pytest
import zmq

from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import BlockRemoved, BlockStored
from tests.contract.deployments import Tenant
from tests.contract.test_service_contract import chain
from tests.engine_http import EngineServer, engine_server

BLOCK = range(16)


def test_an_instance_that_works_is_healthy(tenant: Tenant, publisher: Publisher) -> None:
    tenant.connect(publisher, replay_endpoint=publisher.replay_endpoint)
    publisher.publish([BlockStored(block_hashes=[1], token_ids=list(BLOCK), block_size=16)])
    tenant.await_longest(BLOCK, 16)
    tenant.until(lambda: not tenant.findings(), "no findings")
    (instance,) = tenant.examined()
    assert (instance["verdict"], instance["indexed_blocks"]) == ("healthy", 1)
    assert [rank["received"] for rank in instance["ranks"]] == [0]


def test_a_wrong_block_size_is_found_and_ends_when_it_is_mended(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher, replay_endpoint=publisher.replay_endpoint)
    publisher.publish([BlockStored(block_hashes=[1], token_ids=list(range(32)), block_size=32)])
    found = tenant.await_finding("block_size")
    assert (found["expected"], found["got"]) == ("16", "32")
    assert '"block_size": 32' in found["remedy"]
    assert tenant.unregister()[0] == 200
    tenant.connect(publisher, replay_endpoint=publisher.replay_endpoint, block_size=32)
    tenant.await_longest(range(32), 32, block_size=32)
    tenant.until(lambda: not tenant.findings(), "no findings")


@pytest.fixture
def engine() -> Iterator[EngineServer]:
    with engine_server() as server:
        yield server


CACHE = {"block_size": "16", "num_gpu_blocks": "100"}


def serves(
    engine: EngineServer,
    *ranks: Publisher,
    caching: str = "True",
    model: str = "m",
    awake: int = 1,
) -> None:
    """The HTTP server is of an engine with these settings, and these ranks."""
    engine.starts(time.time(), *ranks)
    settings = CACHE | {"enable_prefix_caching": caching}
    labels = ",".join(f'{name}="{value}"' for name, value in settings.items())
    metrics = (
        engine.replies["/metrics"][1]
        + f"vllm:cache_config_info{{{labels}}} 1.0\n".encode()
        + f'vllm:engine_sleep_state{{sleep_state="awake"}} {awake}.0\n'.encode()
    )
    names = "name%5B%5D=vllm:cache_config_info&name%5B%5D=vllm:engine_sleep_state"
    engine.replies |= {
        "/metrics": (200, metrics),
        f"/metrics?{names}": (200, metrics),
        "/version": (200, b'{"version":"0.33.0"}'),
        "/v1/models": (200, json.dumps({"data": [{"id": model}]}).encode()),
    }


@pytest.mark.both_forms
def test_what_an_engine_says_of_itself_is_shown(
    tenant: Tenant, publisher: Publisher, engine: EngineServer
) -> None:
    serves(engine, publisher)
    tenant.connect(publisher, http_endpoint=engine.url)

    def said() -> object:
        ((instance,), ranks) = (tenant.examined(), tenant.examined()[0]["ranks"])
        assert instance["capacity_blocks"] in (0, 100)
        return ranks[0]["engine"]

    tenant.until(said, "what the engine says")
    shown = said()
    assert isinstance(shown, dict)
    assert (shown["version"], shown["models"], shown["blocks"]) == ("0.33.0", ["m"], 100)
    assert (shown["publishes"], shown["caches"], shown["is_asleep"]) == (True, True, False)
    tenant.until(lambda: not tenant.findings(), "no findings")


def test_what_an_engine_has_switched_off_is_found(
    tenant: Tenant, publisher: Publisher, engine: EngineServer
) -> None:
    """Prefix caching, and then events, and then itself; each ends when it is mended."""
    serves(engine, publisher, caching="False")
    tenant.connect(publisher, http_endpoint=engine.url)
    tenant.await_finding("prefix_caching_off")
    serves(engine)
    assert tenant.await_finding("events_off")["got"] == "none"
    assert set(tenant.findings()) == {"a"}
    serves(engine, publisher, awake=0)
    tenant.await_finding("asleep")
    assert [one["code"] for one in tenant.findings()["a"]] == ["asleep"]
    serves(engine, publisher)
    tenant.until(lambda: not tenant.findings(), "no findings")


@pytest.mark.parametrize("in_order", [False, True])
def test_what_slept_before_a_restart_and_has_not_stepped_since_is_known_behind_it(
    tenant: Tenant, publisher: Publisher, engine: EngineServer, in_order: bool
) -> None:
    serves(engine, publisher)
    tenant.connect(publisher, http_endpoint=engine.url)
    publisher.publish([chain(1, list(range(64)))])
    tenant.await_longest(list(range(64)), 64)
    awake = dict(engine.replies)
    asleep = {
        path: (status, body.replace(b'"awake"} 1.0', b'"awake"} 0.0'))
        for path, (status, body) in awake.items()
    }

    def reason() -> str:
        (service,) = tenant.services()
        return str(service["Reason"])

    engine.replies |= asleep
    tenant.until(lambda: reason() == "asleep", "an engine that sleeps")
    engine.replies |= awake
    tenant.deployment.restart(in_order=in_order)
    tenant.until(lambda: tenant.deployment.followed(tenant.tenant_id), "a link")
    tenant.until(lambda: reason() == "asleep", "what was known before")
    publisher.publish([chain(5, list(range(64, 128)))])
    tenant.until(lambda: reason() != "asleep", "an engine that has stepped")


def test_another_model_name_is_found(
    tenant: Tenant, publisher: Publisher, engine: EngineServer
) -> None:
    serves(engine, publisher, model="llama")
    tenant.connect(publisher, http_endpoint=engine.url)
    found = tenant.await_finding("model_name")
    assert (found["expected"], found["got"]) == ("m", "llama")


def test_ranks_that_are_not_registered_are_found(
    tenant: Tenant, publisher: Publisher, engine: EngineServer
) -> None:
    other = Publisher(PublisherOptions(), dp_rank=1)
    serves(engine, publisher, other)
    replay = {"http_endpoint": engine.url, "replay_endpoint": publisher.replay_endpoint}
    tenant.connect(publisher, **replay)
    publisher.publish([BlockStored(block_hashes=[1], token_ids=list(BLOCK), block_size=16)])

    def standing() -> tuple[str, str]:
        (service,) = (one for one in tenant.services() if one["DPRank"] == 0)
        return service["State"], service["Reason"]

    tenant.until(lambda: standing() == ("unconfirmed", "rank_missing"), "that a rank is missing")
    found = tenant.await_finding("ranks")
    assert (found["expected"], found["got"]) == ("0, 1", "0")
    assert [one["code"] for one in tenant.findings()["a"]] == ["ranks"]
    tenant.connect(other, http_endpoint=engine.url)
    tenant.until(lambda: not tenant.findings(), "no findings")
    tenant.until(lambda: standing() == ("exact", ""), "that none is")
    other.close()


def test_an_engine_that_never_removes_is_found(
    tenant: Tenant, publisher: Publisher, engine: EngineServer
) -> None:
    serves(engine, publisher)
    tenant.connect(publisher, http_endpoint=engine.url)
    hashes = list(range(1, 161))
    tokens = list(range(16 * len(hashes)))
    publisher.publish([BlockStored(block_hashes=hashes, token_ids=tokens, block_size=16)])
    found = tenant.await_finding("never_removes")
    assert (found["expected"], found["got"]) == ("at most 100", "160")
    publisher.publish([BlockRemoved(block_hashes=hashes[50:])])
    tenant.until(lambda: not tenant.findings(), "no findings")


def test_a_clock_that_is_far_off_is_found(
    tenant: Tenant, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant.connect(publisher)
    ours = time.time
    with monkeypatch.context() as patched:
        patched.setattr("lab.engines.publisher.time.time", lambda: ours() - 3600.0)
        publisher.publish([BlockStored(block_hashes=[1], token_ids=list(BLOCK), block_size=16)])
    found = tenant.await_finding("clock")
    assert found["got"] == "-3,600 s"


def test_what_nobody_has_is_said_and_found(tenant: Tenant, publisher: Publisher) -> None:
    """A wrong model name, block size and salt of whoever asks; each ends when it is registered."""
    tenant.connect(publisher, replay_endpoint=publisher.replay_endpoint, additionalsalt="pepper")
    ask = {"model": "m", "block_size": 16, "token_ids": [1] * 16, "tenant_id": tenant.tenant_id}
    cases: list[tuple[dict[str, object], str, str, str]] = [
        ({"model": "M"}, "model=M; known=m", "asked_model", "m"),
        ({"block_size": 128}, "block_size=128; known=16", "asked_block_size", "16"),
        ({}, "additional_salt=; known=pepper", "asked_salt", "pepper"),
    ]

    def said(changes: dict[str, object]) -> str | None:
        status, answer, headers = tenant.api.exchange("/query", ask | changes)
        assert (status, answer) == (200, {})
        return headers.get("reprise-unknown")

    tenant.until(lambda: "known=m" in (said({"model": "M"}) or ""), "the registration")
    for changes, header, code, known in cases:
        assert said(changes) == header
        assert tenant.await_finding(code, "")["expected"] == known
    tenant.await_longest([1] * 16, 0, cache_salt="pepper")  # the workers have it a moment later


PROMPT = list(range(1000, 1160))


def serve(
    tenant: Tenant, times: int, *, cached: int, counted: int = len(PROMPT), shared: int = 144
) -> None:
    """Requests as a router makes them, of prompts that differ behind so many tokens."""
    tenant.await_candidate()
    for number in range(times):
        tokens = [*PROMPT[:shared], *[number + 1] * (len(PROMPT) - shared)]
        fields = {"model": "m", "block_size": 16, "token_ids": tokens}
        status, routed = tenant.api.post("/route", fields | {"tenant_id": tenant.tenant_id})
        assert status == 200, routed
        report = {
            "decision_id": routed["decision_id"],
            "event": "completed",
            "cached_tokens": cached,
            "prompt_tokens": counted,
        }
        assert tenant.api.post("/feedback", report)[0] == 202


def conditions(tenant: Tenant) -> list[str]:
    found = tenant.api.get("/health")[1]["conditions"]
    return [one["message"] for one in found if one["part"] == "outcomes"]


@pytest.mark.both_forms
def test_tokens_that_differ_from_the_first_block_on_are_found(
    tenant: Tenant, publisher: Publisher
) -> None:
    """A silent zero: the engine caches, and what is asked about has other tokens."""
    tenant.connect(publisher, replay_endpoint=publisher.replay_endpoint)
    others = [token + 1 for token in PROMPT[:144]]
    publisher.publish([BlockStored(block_hashes=[*range(9)], token_ids=others, block_size=16)])
    tenant.await_longest(others, 144)
    serve(tenant, 20, cached=144, counted=167, shared=0)
    found = tenant.await_finding("matches_nothing")
    assert "chat template" in found["cause"]
    tenant.until(lambda: any(tenant.tenant_id in one for one in conditions(tenant)), "condition")


def test_an_engine_that_finds_nothing_of_what_it_holds_is_found(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher, replay_endpoint=publisher.replay_endpoint)
    stored = BlockStored(block_hashes=[*range(9)], token_ids=PROMPT[:144], block_size=16)
    publisher.publish([stored])
    tenant.await_longest(PROMPT, 144)
    serve(tenant, 20, cached=0)
    found = tenant.await_finding("matches_more")
    assert "prefix caching is switched off" in found["cause"]


def test_an_engine_that_binds_nothing_is_found(tenant: Tenant) -> None:
    """It connects, as vLLM does to an address that is neither a wildcard nor ipc."""
    context = zmq.Context()
    engine = context.socket(zmq.PUB)
    address = "tcp://127.0.0.1:9"
    engine.connect(address)
    body = {"endpoint": address, "type": "vLLM", "modelname": "m", "instance_id": "a"}
    more = {"block_size": 16, "dp_rank": 0, "tenant_id": tenant.tenant_id}
    assert tenant.api.post("/register", body | more)[0] == 200
    found = tenant.await_finding("unreached")
    assert found["expected"] == address
    assert "binds only wildcard" in found["cause"]
    context.destroy(linger=0)
