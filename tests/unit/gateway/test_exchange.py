"""One request: engines are tried until one answers, and its answer is passed on."""

import asyncio
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from bridge.engine_http.keys import ENGINE_KEYS, EngineKey, EngineKeys
from gateway import fleet
from gateway.bounds import GATEWAY_BROKEN_MAX
from gateway.catalog import CATALOG_PAUSE_S, CATALOG_SILENT_ROUNDS
from gateway.connections import EngineConnection
from gateway.prompts import PromptTokens
from gateway.upstream import GATEWAY_BODY_AT_ONCE_BYTES_MAX
from routing.fold.failures import FAILING_RUN
from schemas.conditions import Conditions, Part
from tests.gateway import (
    BROKEN_DEEDS,
    CHAT,
    EVENTS,
    Deed,
    ScriptedEngine,
    Seen,
    World,
    until,
    world,
)
from tokens.interface import Tokens, TokenSource

PROMPT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "user": "u-1"}
LARGE = b'{"x":"%s"}' % (b"x" * GATEWAY_BODY_AT_ONCE_BYTES_MAX)
STREAM = PROMPT | {"stream": True}


def run(scenario: object, **options: object) -> None:
    """Runs a scenario in a world of its own."""

    async def main() -> None:
        async with world(**options) as found:  # type: ignore[arg-type]
            await scenario(found)  # type: ignore[operator]
            await found.until_quiet()

    asyncio.run(main())


def test_body_and_answer_are_passed_on_byte_for_byte() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        body = b'{ "model":"m",\n "messages" : [],"x":1.0e2 , "user":"u" }'
        engine.answers_with = lambda seen: b'{"odd" :  1e0}\n'
        got = await found.client.post(body, headers={"x-own": "1", "authorization": "Bearer e"})
        [seen] = engine.seen
        assert (seen.path, seen.body) == (CHAT, body)
        assert (seen.headers["x-own"], seen.headers["authorization"]) == ("1", "Bearer e")
        assert seen.headers["host"] == engine.url.removeprefix("http://")
        assert (got.status, got.body) == (200, b'{"odd" :  1e0}\n')
        assert got.header("x-engine") == "yes"
        assert got.is_whole

    run(scenario)


@pytest.mark.parametrize("body", [b"", b"{}", LARGE], ids=["none", "small", "large"])
@pytest.mark.parametrize("value", [b"caf\xe9", b"caf\xc3\xa9", b"\xff\x80"])
def test_bytes_of_a_header_are_passed_on_as_they_came(value: bytes, body: bytes) -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        engine.answers_with = lambda seen: b"{}"
        head = b"POST /rerank HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\nx-own: %s\r\n\r\n"
        got = await found.client.send(head % (len(body), value) + body)
        assert got.status == 200
        [seen] = engine.seen
        assert seen.headers["x-own"].encode("latin-1") == value
        assert seen.body == body

    run(scenario)


def test_parameters_of_the_address_are_passed_on() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        await found.client.post(PROMPT, f"{CHAT}?a=%20b&c")
        assert engine.seen[0].path == f"{CHAT}?a=%20b&c"

    run(scenario)


def test_stream_is_passed_on_without_what_was_not_asked_for() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        got = await found.client.post(STREAM)
        assert engine.seen[0].document["stream_options"] == {"include_usage": True}
        assert engine.seen[0].document | STREAM == engine.seen[0].document
        assert len(got.events) == EVENTS + 1
        assert got.events[-1] == "[DONE]"
        assert b"usage" not in got.body
        assert got.is_whole

    run(scenario)


def test_stream_has_usage_where_its_client_asked_for_it() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        asked = STREAM | {"stream_options": {"include_usage": True}}
        got = await found.client.post(asked)
        assert engine.seen[0].document == asked
        assert len(got.events) == EVENTS + 2
        assert b'"usage"' in got.body

    run(scenario)


@pytest.mark.parametrize("body", [PROMPT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("deed", BROKEN_DEEDS)
def test_engine_that_fails_before_the_first_byte_costs_its_client_nothing(
    deed: Deed, body: dict[str, object]
) -> None:
    async def scenario(found: World) -> None:
        for name in ("a", "b"):
            (await found.add(name)).deeds.append(deed)
        # The third one works; it is found whichever two are tried first.
        await found.add("c")
        got = await found.client.post(body)
        assert (got.status, got.is_whole) == (200, True)
        assert sum(one.whole for one in found.engines.values()) == 1

    run(scenario, silence_s=0.2)


def test_engine_that_is_gone_is_left_for_another_one() -> None:
    async def scenario(found: World) -> None:
        for name in ("a", "b", "c", "d", "e"):
            await found.add(name)
        for name in ("a", "b", "c", "d"):
            await found.engines[name].kill()
        got = await found.client.post(PROMPT)
        assert (got.status, got.document["engine"]) == (200, "e")

    run(scenario)


def test_connection_that_was_closed_meanwhile_is_made_anew() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        await found.client.post(PROMPT)
        engine.deeds.append(Deed.CLOSE)  # the kept connection: the only engine is asked once more
        got = await found.client.post(PROMPT)
        assert got.status == 200
        assert found.gateway.endpoint.failures.total() == 0

    run(scenario)


def test_request_that_an_engine_had_for_a_while_is_not_sent_there_again() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        await found.client.post(PROMPT)
        engine.deeds.append(Deed.LATE_CLOSE)  # of the kept connection, as a crash over it
        got = await found.client.post(PROMPT)
        assert (got.status, len(engine.seen)) == (502, 2)
        assert found.gateway.endpoint.failures == {"broken": 1}

    run(scenario)


@pytest.mark.parametrize("deed", [Deed.ANSWER_AND_MORE, Deed.ANSWER_AND_MORE_LATER])
@pytest.mark.parametrize("pause_s", [0.0, 0.2])
def test_answer_that_no_request_asked_for_is_nobodys(deed: Deed, pause_s: float) -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        engine.deeds.append(deed)
        assert (await found.client.post(PROMPT)).body == b"{}"
        await asyncio.sleep(pause_s if deed is Deed.ANSWER_AND_MORE else 0.2)
        for user in ("u-2", "u-3"):
            got = await found.client.post(PROMPT | {"user": user})
            assert got.document["echo"] == user
        assert found.gateway.endpoint.failures.total() == 0

    run(scenario)


def test_answer_that_nobody_has_read_from_the_socket_is_nobodys() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            transport, connection = await loop.create_connection(
                lambda: EngineConnection(loop), sock=ours
            )
            assert connection.is_connected()
            theirs.send(b"HTTP/1.1 200 OK\r\n\r\n")
            assert not connection.is_connected()
            transport.abort()

    asyncio.run(scenario())


def test_connection_of_which_nothing_is_left_over_is_kept() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        for _ in range(3):
            assert (await found.client.post(PROMPT)).status == 200
            await asyncio.sleep(0.02)
        assert len({seen.port for seen in engine.seen}) == 1

    run(scenario)


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize(
    ("deed", "path", "is_whole"),
    [
        (Deed.CLOSED_STREAM, CHAT, False),
        (Deed.CLOSED_STREAM, "/v1/completions", False),
        (Deed.CLOSED_STREAM, "/v1/responses", False),
        (Deed.CLOSED_STREAM, "/v1/messages", True),
        (Deed.CLOSED_WHOLE, CHAT, True),
    ],
)
def test_stream_that_ends_with_its_connection_is_whole_where_it_says_so(
    deed: Deed, path: str, is_whole: bool, asks: bool
) -> None:
    async def scenario(found: World) -> None:
        (await found.add("a")).deeds.append(deed)
        body = STREAM | ({"stream_options": {"include_usage": True}} if asks else {})
        got = await found.client.post(body, path)
        assert (got.is_whole, b'"broken_off"' in got.body) == (is_whole, not is_whole)
        assert found.gateway.endpoint.failures["broken_off"] == (not is_whole)

    run(scenario)


def test_status_that_http_does_not_have_is_no_answer() -> None:
    async def scenario(found: World) -> None:
        (await found.add("a")).deeds.append(Deed.STATUS_600)
        got = await found.client.post(PROMPT)
        assert (got.status, got.document["error"]["code"]) == (502, "engines_failed")
        assert found.gateway.endpoint.faults == 0

    run(scenario)


def test_request_that_engines_fail_over_is_not_tried_on_all() -> None:
    async def scenario(found: World) -> None:
        for name in "abcdef":
            (await found.add(name)).deeds.append(Deed.CLOSE)
        got = await found.client.post(PROMPT)
        assert got.status == 502
        assert got.document["error"]["code"] == "engines_failed"
        assert "127.0.0.1" not in got.document["error"]["message"], "where engines are is ours"
        assert found.seen().total() == GATEWAY_BROKEN_MAX

    run(scenario)


def test_last_words_of_engines_that_refuse_are_passed_on() -> None:
    async def scenario(found: World) -> None:
        for name in ("a", "b"):
            (await found.add(name)).deeds.append(Deed.BUSY)
        got = await found.client.post(PROMPT)
        assert (got.status, got.document) == (429, {"error": {"message": "own words"}})
        assert found.seen() == {"a": 1, "b": 1}

    run(scenario)


def test_refusal_for_what_a_request_is_goes_to_its_client_at_once() -> None:
    async def scenario(found: World) -> None:
        for name in ("a", "b"):
            (await found.add(name)).deeds.append(Deed.BAD_REQUEST)
        got = await found.client.post(PROMPT)
        assert (got.status, got.document) == (400, {"error": {"message": "own words"}})
        assert found.seen().total() == 1
        assert not found.router.live.failing(found.router.now())

    run(scenario)


def test_stream_that_breaks_off_is_seen_to_be_no_whole_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(found: World) -> None:
        for name in ("a", "b"):
            (await found.add(name)).deeds.append(Deed.HALF_STREAM)
        got = await found.client.post(STREAM)
        assert (got.status, got.is_whole) == (200, False)
        assert len(got.events) == 2
        assert '"broken_off"' in got.events[-1]
        assert found.seen().total() == 1
        assert found.gateway.endpoint.failures == {"broken_off": 1}

    run(scenario)
    assert not [one for one in caplog.records if one.levelname == "ERROR"], "it is no fault here"


@pytest.mark.parametrize("deed", [Deed.EARLY_HINTS, Deed.SLOW_HEAD])
def test_odd_answers_that_are_whole_are_passed_on(deed: Deed) -> None:
    async def scenario(found: World) -> None:
        (await found.add("a")).deeds.append(deed)
        got = await found.client.post(PROMPT)
        assert (got.status, got.document["engine"]) == (200, "a")
        assert got.header("link") is None

    run(scenario)


@pytest.mark.parametrize("body", [PROMPT, STREAM], ids=["whole", "stream"])
def test_client_that_goes_ends_the_request_at_its_engine(body: dict[str, object]) -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        engine.deeds.append(Deed.HANG)
        await found.client.post(body, leaves_after_s=0.05)
        await found.until_quiet()
        await until(lambda: engine.gone == 1)
        assert found.gateway.endpoint.answered == {(CHAT, 499): 1}

    run(scenario)


@pytest.mark.parametrize(
    ("deed", "at", "event", "status"),
    [
        (Deed.DONE_WITHOUT_END, b"[DONE]\n\n", "completed", 200),
        (Deed.SLOW_STREAM, b"w1", "cancelled", 499),
    ],
)
def test_client_that_closes_at_the_last_event_has_all_of_it(
    deed: Deed, at: bytes, event: str, status: int
) -> None:
    async def scenario(found: World) -> None:
        (await found.add("a")).deeds.append(deed)
        await found.client.post(
            {"model": "m", "prompt": list(range(100)), "stream": True},
            "/v1/completions",
            leaves_at=at,
        )
        await found.until_quiet()
        [recent] = found.router.live.recent(1, lambda tenant: True)
        last = recent.outcomes[-1]
        cached = 64 if event == "completed" else None
        assert (last.event.value, last.cached_tokens) == (event, cached)
        assert found.gateway.endpoint.answered == {("/v1/completions", status): 1}

    run(scenario)


def test_part_of_an_answer_that_is_played_goes_on_at_once() -> None:
    async def scenario(found: World) -> None:
        (await found.add("a")).deeds.append(Deed.SOUND)
        async with asyncio.timeout(5.0):
            got = await found.client.post(PROMPT, "/v1/audio/speech", leaves_at=b"[1,")
        assert (got.status, got.body) == (200, b"[1,")

    run(scenario)


def test_part_of_json_is_kept_until_it_is_whole() -> None:
    async def scenario(found: World) -> None:
        (await found.add("a")).deeds.append(Deed.SLOW_JSON)
        await found.add("b")
        got = await found.client.post(PROMPT)
        while found.seen()["a"] == 0:  # it was b's turn
            got = await found.client.post(PROMPT | {"user": f"u-{found.seen()['b']}"})
        assert (got.status, got.document["engine"]) == (200, "b")

    run(scenario, silence_s=0.2)


def test_slow_client_holds_its_engine_back() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        size = 40_000_000
        engine.answers_with = lambda seen: b'"' + b"x" * size + b'"'
        reader, writer = await asyncio.open_connection("127.0.0.1", found.client._port)
        body = b'{"model":"m"}'
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.1)
        assert engine.whole == 0, "all of it would be in the memory of the gateway"
        total = 0
        while total < size:
            total += len(await reader.read(1 << 20))
        writer.close()

    run(scenario)


def test_no_engine_of_the_model_is_an_error_that_names_the_others() -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        got = await found.client.post(PROMPT | {"model": "other"})
        assert got.status == 404
        assert got.document["error"]["code"] == "model_not_found"
        assert " m," in got.document["error"]["message"]

    run(scenario)


def test_engines_that_fail_are_left_out_and_come_back() -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        await found.add("b")
        await found.engines["a"].kill()
        asked = {"model": "m", "messages": []}
        for _ in range(20):
            assert (await found.client.post(asked)).status == 200
        assert found.gateway.endpoint.failures["unreachable"] in range(3, 8)
        await found.engines["a"].start()
        async with asyncio.timeout(20):
            while not found.engines["a"].seen:
                assert (await found.client.post(asked)).status == 200
                await asyncio.sleep(0.05)

    run(scenario)


def test_engine_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.exchange.GATEWAY_FIRST_BYTE_S", 0.2)

    async def scenario(found: World) -> None:
        for name in "ab":
            await found.add(name)
        found.engines["a"].deeds.extend([Deed.DRIP] * 9)
        asked = {"model": "m", "messages": []}
        got = [await found.client.post(asked) for _ in range(6)]
        assert {one.document["engine"] for one in got} == {"b"}
        assert found.engines["a"].seen
        found.engines["b"].deeds.append(Deed.SLOW_STREAM)
        begun = await found.client.post(STREAM)
        assert begun.events[-1] == "[DONE]", "what has begun may take its time"

    run(scenario)


def test_what_waits_for_a_silent_engine_is_answered_by_another_one() -> None:
    async def scenario(found: World) -> None:
        for name in "ab":
            await found.add(name)
        found.gateway.catalog.wait_s = 0.05
        found.engines["a"].is_silent = True
        asked = {"model": "m", "messages": []}
        waiting = [asyncio.create_task(found.client.post(asked)) for _ in range(6)]
        await until(lambda: len(found.engines["b"].seen) + _at(found, "a") == 6)
        assert _at(found, "a") > 0
        for _ in range(CATALOG_SILENT_ROUNDS):
            await found.gateway.catalog.ask()
        got = await asyncio.gather(*waiting)
        assert {one.document["engine"] for one in got} == {"b"}
        assert found.gateway.fleet.given_up > 0

    run(scenario)


def _at(found: World, name: str) -> int:
    place = (found.engines[name].url, 0)
    return found.gateway.fleet.under_way.get(place, 0)


def test_rank_is_named_to_an_engine_that_has_several() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a", ranks=2)
        for number in range(8):
            await found.client.post(PROMPT | {"user": f"u-{number}"})
        ranks = {seen.headers["x-data-parallel-rank"] for seen in engine.seen}
        assert ranks <= {"0", "1"}
        other = await found.add("b", model="n")
        await found.client.post(PROMPT | {"model": "n"})
        assert "x-data-parallel-rank" not in other.seen[0].headers

    run(scenario)


def test_decision_is_named_and_what_came_of_it_is_known() -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        tokens = list(range(100))
        got = await found.client.post({"model": "m", "prompt": tokens}, "/v1/completions")
        name = got.header("reprise-decision")
        assert name is not None
        assert got.header("reprise-state") == "exact"
        assert got.header("reprise-by-load") is None
        [recent] = found.router.live.recent(1, lambda tenant: True)
        assert name.endswith(f"-{recent.decision.number}")
        assert recent.decision.prompt_tokens == 100
        [outcome] = recent.outcomes
        assert (outcome.event.value, outcome.cached_tokens) == ("completed", 64)

    run(scenario)


def test_decision_by_tokens_that_no_engine_has_shown_is_not_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Tokens(b"", TokenSource.LOCAL, is_proven=False)
    assert PromptTokens(b"", 0, made=made).is_unproven
    assert not PromptTokens(b"", 0, made=made._replace(is_proven=True)).is_unproven
    assert not PromptTokens(b"", 0).is_unproven
    monkeypatch.setattr(PromptTokens, "is_unproven", True)

    async def scenario(found: World) -> None:
        await found.add("a")
        got = await found.client.post({"model": "m", "prompt": [1] * 100}, "/v1/completions")
        assert got.header("reprise-state") == "unconfirmed"

    run(scenario)


@pytest.mark.parametrize("fields", [{"n": 4}, {"echo": True, "logprobs": 1}])
def test_what_an_answer_found_is_told_to_nobody_where_it_tests_no_cache(
    fields: dict[str, Any],
) -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        body = {"model": "m", "prompt": list(range(100)), **fields}
        await found.client.post(body, "/v1/completions")
        [recent] = found.router.live.recent(1, lambda tenant: True)
        [outcome] = recent.outcomes
        assert (outcome.event.value, outcome.cached_tokens) == ("completed", None)
        assert outcome.prompt_tokens is not None

    run(scenario)


def test_engine_gets_its_own_key_in_place_of_the_clients() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        other = await found.add("b", model="other")
        ENGINE_KEYS.use([EngineKey(engine.url.removeprefix("http://"), "own")])
        headers = {"authorization": "Bearer client"}
        for model in ("m", "other"):
            await found.client.post({"model": model, "messages": []}, headers=headers)
        await found.client.post({"model": "m", "messages": []})
        told = [one.headers["authorization"] for one in (*engine.seen, *other.seen)]
        assert told == ["Bearer own", "Bearer own", "Bearer client"]

    try:
        run(scenario)
    finally:
        ENGINE_KEYS.use(())


def serve(engine: ScriptedEngine, model: str) -> None:
    """Lets an engine serve that model alone, as vLLM."""

    def lacks(seen: Seen) -> object:
        name = seen.document["model"]
        missing = {"message": f"The model `{name}` does not exist.", "param": "model", "code": 404}
        return None if name == model else {"error": missing}

    engine.models = [{"id": model, "object": "model"}]
    engine.lacks = lacks


def engines_of_m(found: World) -> int:
    """How many a request for `m` may go to."""
    model = found.gateway.fleet.model("default", "m")
    return 0 if model is None else len(model.targets)


def test_engine_that_serves_another_model_since_is_left_for_one_that_serves_it() -> None:
    async def scenario(found: World) -> None:
        for name in ("a", "b"):
            serve(await found.add(name), "m")
        await found.gateway.catalog.ask()
        changed = found.engines["a"]
        serve(changed, "n")
        while not changed.seen:
            user = f"u-{len(found.engines['b'].seen)}"
            got = await found.client.post(PROMPT | {"user": user})
            assert (got.status, got.document["engine"]) == (200, "b")
        assert found.gateway.endpoint.failures == {"not_found": 1}
        assert not found.router.live.failing(found.router.now()), "it works"
        await until(lambda: engines_of_m(found) == 1, CATALOG_PAUSE_S - 1.0)  # no round is due
        serve(changed, "m")
        await found.gateway.catalog.ask()
        assert engines_of_m(found) == 2

    run(scenario)


def test_model_that_no_engine_has_is_refused_in_an_engines_words() -> None:
    async def scenario(found: World) -> None:
        for name in ("a", "b"):
            serve(await found.add(name), "n")
        await found.gateway.catalog.ask()
        got = await found.client.post(PROMPT)
        assert (got.status, got.document["error"]["param"]) == (404, "model")
        assert found.seen() == {"a": 1, "b": 1}
        await found.gateway.catalog.ask()
        assert engines_of_m(found) >= 1
        assert (await found.client.post(PROMPT)).status == 404

    run(scenario)


def test_response_that_the_gateway_does_not_know_is_sought_at_each_engine() -> None:
    def lacks(seen: Seen, name: str) -> object:
        previous = seen.document.get("previous_response_id", f"resp_{name}_")
        return None if previous.startswith(f"resp_{name}_") else {"error": "Response not found"}

    async def scenario(found: World) -> None:
        for name in "abcd":
            (await found.add(name)).lacks = partial(lacks, name=name)
        for name in "abcd":
            asked = {"model": "m", "input": "x", "previous_response_id": f"resp_{name}_1"}
            got = await found.client.post(asked, "/v1/responses")
            assert (got.status, got.document["engine"]) == (200, name)
        asked["previous_response_id"] = "resp_none_1"
        got = await found.client.post(asked, "/v1/responses")
        assert (got.status, got.document) == (404, {"error": "Response not found"})
        assert not found.router.live.failing(found.router.now())

    run(scenario)


@pytest.fixture
def engine_keys() -> Iterator[EngineKeys]:
    """Those of the process; none are left."""
    yield ENGINE_KEYS
    ENGINE_KEYS.use(())
    ENGINE_KEYS.keep(())
    ENGINE_KEYS.conditions = None


def test_engine_that_refuses_its_key_is_left_for_another_one(engine_keys: EngineKeys) -> None:
    conditions = engine_keys.conditions = Conditions(lambda: 0.0)

    async def scenario(found: World) -> None:
        for name in ("a", "b"):
            (await found.add(name)).key = "right"
        refusing = found.engines["a"]
        refusing.key = "another"
        engine_keys.use([EngineKey("127.0.0.1", "right")])
        for number in range(30):
            got = await found.client.post(PROMPT | {"user": f"u-{number}"})
            assert (got.status, got.document["engine"]) == (200, "b")
        [one] = conditions.all()
        assert (one.part, one.reason) == (Part.ENGINE_KEYS, "key_refused")
        assert refusing.url.removeprefix("http://") in one.message
        assert found.gateway.endpoint.failures["key_refused"] >= FAILING_RUN
        assert found.gateway.endpoint.failures["key_refused"] < 10, "it is left out"
        errors = {
            outcome.error
            for decision in found.router.live.recent(100, lambda tenant: True)
            for outcome in decision.outcomes
        }
        assert "it refuses its key of engines.keys: HTTP 401" in errors
        refusing.key = "right"
        await found.gateway.catalog.ask()
        assert not conditions.all()

    run(scenario)


def test_client_is_not_told_of_keys_that_are_not_its_own(engine_keys: EngineKeys) -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        engine.key = "right"
        engine_keys.use([EngineKey("127.0.0.1", "wrong")])
        got = await found.client.post(PROMPT)
        assert (got.status, got.document["error"]["code"]) == (502, "engines_failed")

    run(scenario)


def test_key_that_an_engine_refuses_of_its_client_is_the_clients_own() -> None:
    async def scenario(found: World) -> None:
        for name in ("a", "b"):
            (await found.add(name)).key = "right"
        got = await found.client.post(PROMPT, headers={"authorization": "Bearer wrong"})
        assert (got.status, got.document) == (401, {"error": "Unauthorized"})
        # The catalog, which has no key, may have asked, too.
        assert found.gateway.endpoint.tries == {1: 1}
        assert not found.gateway.endpoint.failures

    run(scenario)


def test_request_waits_while_a_service_that_was_started_reads_its_log() -> None:
    async def scenario(found: World) -> None:
        found.table.ready = False
        asked = asyncio.ensure_future(found.client.post(PROMPT))
        await asyncio.sleep(0.1)
        assert not asked.done()
        await found.add("a")
        assert (await asked).status == 200, "the engine is known, if not what it holds"
        assert (await found.client.post(PROMPT)).status == 200

    run(scenario)


def test_request_waits_no_longer_for_a_start_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "GATEWAY_START_S", 0.1)

    async def scenario(found: World) -> None:
        found.table.ready = False
        async with asyncio.timeout(3):
            answer = await found.client.post(PROMPT)
        assert (answer.status, answer.document["error"]["code"]) == (503, "no_engine")
        assert answer.header("retry-after") == "1"

    run(scenario)
