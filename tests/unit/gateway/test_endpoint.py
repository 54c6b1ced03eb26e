"""Paths, keys, bodies and errors of the gateway's address."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bridge.sockets.allowed_engines import ALLOWED
from gateway.catalog import CATALOG_SILENT_ROUNDS
from gateway.held import HeldBytes
from gateway.paths import PassedPaths
from gateway.settings import Affinity, GatewaySettings
from query_api.access.guard import Guard
from query_api.access.key_editing import add_key
from query_api.access.key_ring import KeyRing
from query_api.access.keys import Key, digest_of, make_secret, spell
from query_api.access.rights import Access, Right
from query_api.grpc.grpc_settings import ListenAddress
from schemas.errors import ConfigurationError
from schemas.limits import BODY_BYTES_MAX
from schemas.registration import NO_EVENTS, Registration
from schemas.routing_records import LoadSample, LoadSource, Target
from tests.gateway import Deed, World, until
from tests.unit.gateway.test_exchange import PROMPT, STREAM, run

MODELS = "/v1/models"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[1]", "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"model": 7}', "invalid_model"),
        (b'{"model": "' + b"x" * 5000 + b'"}', "invalid_model"),
    ],
)
def test_body_that_no_engine_takes_is_refused_here(body: bytes, code: str) -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        got = await found.client.post(body)
        assert (got.status, got.document["error"]["code"]) == (400, code)
        assert got.document["error"]["type"] == "invalid_request_error"
        assert not engine.seen

    run(scenario)


def test_half_a_surrogate_pair_is_for_the_engine_to_judge() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        body = b'{"model":"m","messages":[{"role":"user","content":"\\ud83d"}],"user":"u"}'
        assert (await found.client.post(body)).status == 200
        assert engine.seen[0].body == body

    run(scenario)


def test_body_above_the_bound_is_refused_without_an_engine() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        got = await found.client.post(b'{"model":"m","x":"' + b"x" * BODY_BYTES_MAX + b'"}')
        assert (got.status, got.document["error"]["code"]) == (413, "body_too_large")
        assert not engine.seen

    run(scenario)


def test_body_with_media_is_passed_on_unread() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        body = b'{"model":"m","stream":true,"user":"u","x":"' + b"x" * 6_000_000 + b'"}'
        got = await found.client.post(body)
        assert got.status == 200
        assert got.header("reprise-by-load") is not None
        assert engine.seen[0].body.endswith(body[1:])

    run(scenario)


def test_other_paths_go_to_an_engine_of_the_model() -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        engine = await found.add("b", model="n")
        for path in ("/v1/embeddings", "/v1/responses", "/rerank", "/tokenize"):
            got = await found.client.post(PROMPT | {"model": "n"}, path)
            assert (got.status, got.document["engine"]) == (200, "b")
        assert [seen.path for seen in engine.seen][-1] == "/tokenize"

    run(scenario)


@pytest.mark.parametrize(
    "path",
    [
        "/shutdown",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/v1/chat/completions/",
        "/v1/chat/completions/../../../shutdown",
        "/v1/chat/completions%2f..%2f..%2f..%2fshutdown",
        "//shutdown",
    ],
)
def test_path_that_is_not_of_inference_stays_here(path: str) -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        got = await found.client.post(PROMPT, path)
        assert (got.status, got.document["error"]["code"]) == (404, "path_not_passed_on")
        assert not engine.seen

    run(scenario)


def test_path_that_the_settings_add_is_passed_on() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        assert (await found.client.post(PROMPT, "/v1/images/generations")).status == 200
        assert [seen.path for seen in engine.seen] == ["/v1/images/generations"]
        assert (await found.client.post(PROMPT, "/shutdown")).status == 404

    run(
        scenario,
        settings=GatewaySettings(listen=ListenAddress(), paths=("/v1/images/generations",)),
    )


@pytest.mark.parametrize("path", ["shutdown", "/a/../b", "/a?b", "/%61", "/", "/x" * 200, "/a b"])
def test_path_of_the_settings_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"gateway\.paths"):
        PassedPaths([path])


def test_more_paths_than_settings_may_add_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"at most 64 paths"):
        PassedPaths([f"/{number}" for number in range(65)])


def _said(found: World, *, waiting: int, age_s: float = 0.0) -> LoadSample:
    target = Target("default", "a", 0)
    at = found.router.now() - age_s
    return LoadSample(target, at, LoadSource.SCRAPED, running=1, waiting=waiting)


@pytest.mark.parametrize(
    ("waiting", "age_s", "headers", "status"),
    [
        (0, 0.0, {}, 200),
        (0, 0.0, {"x-llm-d-slo-ttft-ms": "60000"}, 429),
        (1, 0.0, {}, 429),
        (0, 10.0, {}, 429),
    ],
)
def test_nothing_is_refused_for_a_guess_where_the_engine_says_that_it_is_idle(
    waiting: int, age_s: float, headers: dict[str, str], status: int
) -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        engine.deeds.append(Deed.HANG)
        long = b'{"model":"m","x":"' + b"x" * 20_000_000 + b'"}'
        first = asyncio.create_task(found.client.post(long))
        await until(lambda: len(engine.seen) == 1)
        found.router.observe([_said(found, waiting=waiting, age_s=age_s)])
        got = await found.client.post(PROMPT, headers=headers)
        assert got.status == status
        first.cancel()

    run(scenario)


def test_no_prompt_is_booked_for_more_than_its_engine_takes() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        engine.models = [{"id": "m", "max_model_len": 1000}]
        await found.gateway.catalog.ask()
        found.gateway.fleet.forget()
        for body in (
            b'{"model":"m","x":"' + b"x" * 5_000_000 + b'"}',
            {"model": "m", "prompt": list(range(3000))},
        ):
            engine.answers_with = lambda seen: b"{}"
            await found.client.post(body, "/v1/completions")
            [last] = found.router.live.recent(1, lambda tenant: True)
            assert last.decision.prompt_tokens == 1000

    run(scenario)


def test_only_model_need_not_be_named() -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        assert (await found.client.post({"input": "x", "user": "u"})).status == 200
        await found.add("b", model="n")
        assert (await found.client.post({"input": "x"})).status == 404

    run(scenario)


def test_models_are_listed_in_their_engines_words() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        await found.add("b", model="n")
        engine.models = [
            {"id": "m", "object": "model", "max_model_len": 4096},
            {"id": "m-lora", "object": "model", "parent": "m"},
            {"id": "alias", "object": "model", "parent": None},
        ]
        await found.gateway.catalog.ask()
        found.gateway.fleet.forget()
        listed = (await found.client.get(MODELS)).document["data"]
        assert {one["id"] for one in listed} == {"m", "m-lora", "alias", "n"}
        one = await found.client.get(f"{MODELS}/m")
        assert one.document["max_model_len"] == 4096
        assert (await found.client.get(f"{MODELS}/other")).status == 404
        for name in ("m-lora", "alias"):
            got = await found.client.post(PROMPT | {"model": name})
            assert (got.status, got.document["engine"]) == (200, "a")
        [recent] = found.router.live.recent(1, lambda tenant: True)
        assert recent.decision.scope.model_name == "m"

    run(scenario)


def test_adapter_is_asked_for_in_the_index_by_its_name() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        engine.models = [{"id": "m-lora", "parent": "m"}]
        await found.gateway.catalog.ask()
        found.gateway.fleet.forget()
        await found.client.post({"model": "m-lora", "prompt": [1] * 32}, "/v1/completions")
        [recent] = found.router.live.recent(1, lambda tenant: True)
        assert recent.decision.scope.lora_name == "m-lora"

    run(scenario)


def test_gateway_is_ready_while_an_engine_answers() -> None:
    async def scenario(found: World) -> None:
        engines = [await found.add("a"), await found.add("b")]
        ask, get = found.gateway.catalog.ask, found.client.get
        await engines[0].kill()
        for _ in range(CATALOG_SILENT_ROUNDS):
            await ask()
        assert (await get("/ready")).status == 200, "one of two"
        await engines[1].kill()
        await ask()
        assert (await get("/ready")).status == 200, "a busy engine may miss a round"
        for _ in range(CATALOG_SILENT_ROUNDS - 1):
            await ask()
        got = await get("/ready")
        assert (got.status, got.document) == (503, {"status": "no engine answers"})
        assert (await get("/health")).status == 200, "the gateway itself lives"
        await engines[1].start()
        await ask()
        assert (await get("/ready")).status == 200

    run(scenario)


def test_probes_say_whether_there_is_an_engine() -> None:
    async def scenario(found: World) -> None:
        assert (await found.client.get("/health")).status == 503
        await found.add("a")
        assert (await found.client.get("/ready")).status == 200
        assert (await found.client.get("/metrics")).status == 404

    run(scenario)


def test_foreign_page_cannot_send_requests() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        got = await found.client.post(PROMPT, headers={"origin": "https://evil.example"})
        assert (got.status, got.document["error"]["code"]) == (403, "cross_site")
        assert not engine.seen

    run(scenario)


def test_session_stays_with_its_engine() -> None:
    async def scenario(found: World) -> None:
        for name in "abcd":
            await found.add(name)
        asked = {"model": "m", "messages": []}
        names = set()
        for _ in range(6):
            got = await found.client.post(asked, headers={"X-Session-ID": "s-1"})
            names.add(got.document["engine"])
        assert len(names) == 1

    run(scenario)


@pytest.mark.parametrize(
    "headers",
    [{"x-session-id": "s"}, {"x-dynamo-session-id": "s"}, {"cookie": "a=b; sid=s; c=d"}],
)
def test_hard_session_leaves_an_engine_that_fails(headers: dict[str, str]) -> None:
    async def scenario(found: World) -> None:
        for name in "abc":
            await found.add(name)
        asked = {"model": "m", "messages": []}
        first = (await found.client.post(asked, headers=headers)).document["engine"]
        await found.engines[first].kill()
        names = [
            (await found.client.post(asked, headers=headers)).document["engine"] for _ in range(5)
        ]
        assert first not in names
        assert len(set(names)) == 1, "it is bound to the next one"

    run(scenario, settings=GatewaySettings(affinity=Affinity.HARD, session_cookie="sid"))


def test_hard_session_stays_though_another_engine_has_less_to_do() -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        first = (await found.client.post(PROMPT)).document["engine"]
        await found.add("b")
        found.engines[first].deeds.extend([Deed.HANG] * 8)
        waiting = [asyncio.create_task(found.client.post(PROMPT)) for _ in range(8)]
        await until(lambda: len(found.engines[first].seen) == 9)
        assert not found.engines["b"].seen
        await found.engines[first].kill()
        await asyncio.gather(*waiting)

    run(scenario, settings=GatewaySettings(affinity=Affinity.HARD))


def test_index_that_is_ill_costs_no_request() -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        found.table.ready = False
        asked: dict[str, Any] = {"model": "m", "prompt": [1] * 64}
        got = await found.client.post(asked, "/v1/completions")
        assert (got.status, got.header("reprise-state")) == (200, "stale")
        assert got.header("reprise-by-load") == "stale"

    run(scenario)


def test_error_in_the_router_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(found: World) -> None:
        for name in "ab":
            await found.add(name)
        monkeypatch.setattr(found.router, "route", _fail)
        got = [await found.client.post(PROMPT) for _ in range(4)]
        assert [one.status for one in got] == [200] * 4
        assert got[0].header("reprise-by-load") == "internal_error"
        assert got[0].header("reprise-decision") is None
        assert found.seen() == {"a": 2, "b": 2}
        assert found.gateway.placer.faults == 4

    run(scenario)


def _fail(*_: object) -> None:
    raise RuntimeError("a fault of ours")


def test_objective_that_no_engine_meets_is_refused_with_a_time() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        asked = {"model": "m", "prompt": [1] * 5000}
        headers = {"x-llm-d-slo-ttft-ms": "0.001"}
        got = await found.client.post(asked, "/v1/completions", headers=headers)
        assert (got.status, got.document["error"]["code"]) == (429, "slo_unreachable")
        assert int(got.header("retry-after") or 0) >= 1
        assert not engine.seen

    run(scenario)


def test_priority_is_the_engines_and_decides_who_is_refused_first() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        target = Target("default", "a", 0)
        sample = LoadSample(target, found.router.now(), LoadSource.POSTED, kv_usage=0.8)
        found.router.observe([sample])
        got = await found.client.post(PROMPT | {"priority": 5})
        assert (got.status, got.document["error"]["code"]) == (429, "overloaded")
        assert not engine.seen
        assert (await found.client.post(PROMPT | {"priority": -5})).status == 200
        assert engine.seen[0].document["priority"] == -5

    run(scenario)


def test_head_above_the_bound_is_refused() -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        got = await found.client.send(b"POST /v1/x HTTP/1.1\r\nx: " + b"a" * 100_000 + b"\r\n\r\n")
        assert got.status == 431

    run(scenario)


def test_nothing_of_a_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    secret = "s3cr3t-words"

    async def scenario(found: World) -> None:
        await found.add("a")
        caplog.set_level("DEBUG", logger="gateway")
        for body in (PROMPT, STREAM, b'{"model":"m","' + secret.encode()):
            document = body if isinstance(body, bytes) else body | {"prompt": secret}
            await found.client.post(document, headers={"x-secret": secret})
        found.engines["a"].deeds.append(Deed.HALF_STREAM)
        await found.client.post(STREAM | {"x": secret})

    run(scenario)
    assert secret not in caplog.text


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
def test_tenant_of_a_key_has_its_own_engines(tmp_path: Path, name: str) -> None:
    path = tmp_path / "keys.toml"
    access = Access("k-1", frozenset({Right.ROUTE}), frozenset({"blue"}))
    secret = make_secret()
    add_key(path, Key(digest=digest_of(secret), access=access))
    text = spell("k-1", secret)
    guard = Guard(KeyRing(path))

    async def scenario(found: World) -> None:
        await found.add("a")
        engine = await found.add("b", model="of-blue")
        await found.table.register(
            Registration(
                endpoint="",
                kind=NO_EVENTS,
                model_name="of-blue",
                instance_id="blue",
                block_size=16,
                tenant_id="blue",
                http_endpoint=engine.url,
            )
        )
        found.gateway.fleet.forget()
        headers = {name: text if name == "x-api-key" else f"Bearer {text}"}
        got = await found.client.post(PROMPT | {"model": "of-blue"}, headers=headers)
        assert got.status == 200
        assert name not in engine.seen[0].headers
        assert (await found.client.post(PROMPT, headers=headers)).status == 404
        listed = (await found.client.get(MODELS, headers)).document["data"]
        assert [one["id"] for one in listed] == ["of-blue"]
        refused = await found.client.post(PROMPT)
        assert (refused.status, refused.document["error"]["code"]) == (401, "no_key")
        other = headers | {"x-reprise-tenant": "default"}
        assert (await found.client.post(PROMPT, headers=other)).status == 403

    run(scenario, guard=guard)


def test_requests_that_have_no_room_are_told_to_come_back() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        found.gateway.held = HeldBytes(bytes_max=200)
        found.gateway.endpoint._parts = found.gateway.endpoint._parts._replace(
            held=found.gateway.held
        )
        got = await found.client.post(PROMPT | {"x": "y" * 300})
        assert (got.status, got.document["error"]["code"]) == (503, "no_room")
        assert got.header("retry-after") == "1"
        assert not engine.seen
        assert (await found.client.post(PROMPT)).status == 200

    run(scenario)


def test_name_of_an_engine_is_judged_by_the_address_that_it_stands_for() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        await found.table.register(
            Registration(
                endpoint="",
                kind=NO_EVENTS,
                model_name="n",
                instance_id="b",
                block_size=16,
                http_endpoint=engine.url.replace("127.0.0.1", "localhost"),
            )
        )
        found.gateway.fleet.forget()
        assert (await found.client.post(PROMPT | {"model": "n"})).status == 200
        ALLOWED.allow(["10.0.0.0/8"])
        try:
            found.gateway.fleet.forget()
            await found.reconnect()
            got = await found.client.post(PROMPT | {"model": "n"})
            assert got.status == 502
            assert (await found.client.post(PROMPT)).status == 404, "it may not be asked at all"
        finally:
            ALLOWED.allow([])

    run(scenario)
