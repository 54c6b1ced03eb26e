"""Prompts of each path: which tokens are routed by, how many are booked, and what is reported."""

import asyncio
from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from gateway import prompts
from gateway.fleet import EngineKey, EngineTarget, ServedModel
from gateway.prompts import Prompts, PromptTokens
from gateway.requests import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, ClientRequest
from schemas.events import extra_key
from schemas.media import MediaItem
from tests.fakes import registration
from tests.gateway import Deed, World
from tests.unit.gateway.test_exchange import run
from tokens.interface import Tokens, TokenSource
from tokens.prompt import ChatPrompt, Prompt, TextPrompt

USER = {"role": "user", "content": "Hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


class FakeTokenizer:
    """Each character of a text is a token, each message of a chat a hundred."""

    def __init__(self, *media: MediaItem) -> None:
        self.media = media
        self.prompts: list[Prompt] = []
        self.compared: list[int] = []

    async def tokens(self, prompt: Prompt, tenant_id: str = "") -> Tokens:
        self.prompts.append(prompt)
        count = len(prompt.text) if isinstance(prompt, TextPrompt) else 100
        content = array("I", [7] * count).tobytes()
        return Tokens(content, TokenSource.LOCAL, media=self.media)

    def counted(self, prompt: Prompt, tokens: Tokens, prompt_tokens: int) -> None:
        self.compared.append(prompt_tokens)


def tokens_of(
    path: str,
    fields: dict[str, Any],
    targets: Mapping[EngineKey, EngineTarget] = MappingProxyType({}),
) -> tuple[PromptTokens, FakeTokenizer]:
    tokenizer = FakeTokenizer()
    request = ClientRequest(path, b"", [], b"x" * 4000, fields=fields)
    model = ServedModel("default", "m", "", 16, "", targets)
    return asyncio.run(Prompts(tokenizer).of(request, model)), tokenizer


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [USER]}),
        (RESPONSES, {"input": "Hi"}),
        (RESPONSES, {"input": [USER]}),
        (EMBEDDINGS, {"messages": [USER]}),
        (EMBEDDINGS, {"input": [USER]}),
    ],
)
def test_chats_of_every_path_are_known(path: str, fields: dict[str, Any]) -> None:
    found, tokenizer = tokens_of(path, fields)
    assert (found.missing, found.size, found.is_partial) == ("", 100, False)
    [prompt] = tokenizer.prompts
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.model, prompt.messages) == ("m", [USER])


@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
def test_of_several_prompts_the_longest_is_routed_by_and_all_are_booked(path: str) -> None:
    field = "prompt" if path == COMPLETIONS else "input"
    found, tokenizer = tokens_of(path, {field: ["a" * 40, "b" * 80, "c" * 4]})
    assert tokenizer.prompts == [TextPrompt("m", "b" * 80)]
    assert (len(found.content) // 4, found.size) == (80, 80 + 10 + 1)
    assert found.is_partial
    assert found.prompt is None, "no count of all is that of one"

    found, tokenizer = tokens_of(path, {field: [[1], [2, 3, 4], [5, 6]]})
    assert not tokenizer.prompts
    assert (list(array("I", found.content)), found.size) == ([2, 3, 4], 6)
    assert found.is_partial


def test_media_are_known_in_part() -> None:
    found, _ = tokens_of(CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]})
    assert (found.missing, found.is_partial) == ("", True)


def test_chat_with_an_image_goes_to_the_engine_that_holds_it() -> None:
    media = MediaItem("a3f1", 20, 30)

    async def scenario(found: World) -> None:
        urls = {name: (await found.add(name)).url for name in "abc"}
        found.table.registrations.clear()
        for name, url in urls.items():
            engine = registration(name, block_size=16, http_endpoint=url)
            publisher = found.table.add(engine)
            keys = [extra_key([[f"{name}3f1", 20 - start]]) for start in (16, 32, 48)]
            found.table.store(
                publisher,
                [7] * 96,
                hashes=range(6),
                block_size=16,
                extra_keys=(b"", *keys, b"", b""),
            )
        for turn in range(1, 4):
            asked = {"model": "m", "messages": [{"role": "user", "content": [IMAGE]}]}
            got = await found.client.post(asked, CHAT)
            assert (got.status, got.header("reprise-by-load")) == (200, None)
            assert found.seen() == {"a": turn, "b": 0, "c": 0}
        last = _last_of(found)
        held = {one.instance_id: one.cached for one in last.decision.candidates}
        assert held == {"a": 96, "b": 16, "c": 16}
        assert last.outcomes[-1].cached_tokens is not None, "no more was found than was known"

    run(scenario, tokenizer=FakeTokenizer(media))


def _last_of(found: World) -> Any:
    return found.router.live.recent(1, lambda tenant: True)[0]


@pytest.mark.parametrize(
    ("path", "fields", "missing"),
    [
        (RESPONSES, {"input": "x", "previous_response_id": "resp_1"}, "unsupported"),
        (RESPONSES, {"input": 7}, "invalid_prompt"),
        (EMBEDDINGS, {}, "invalid_prompt"),
        ("/v1/messages", {"messages": [USER]}, "unsupported"),
    ],
)
def test_what_is_not_known_says_why(path: str, fields: dict[str, Any], missing: str) -> None:
    found, tokenizer = tokens_of(path, fields)
    assert (found.content, found.size, found.missing) == (b"", 1000, missing)
    assert not tokenizer.prompts


def _last(found: World) -> Any:
    [recent] = found.router.live.recent(1, lambda tenant: True)
    return recent


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_came_of_a_response_is_reported(is_stream: bool) -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        asked = {"model": "m", "input": "Hi", "stream": is_stream}
        got = await found.client.post(asked, RESPONSES)
        assert (got.status, got.is_whole, got.header("reprise-by-load")) == (200, True, None)
        outcomes = _last(found).outcomes
        assert [one.event.value for one in outcomes] == ["first_token"] * is_stream + ["completed"]
        last = outcomes[-1]
        assert (last.prompt_tokens, last.cached_tokens, last.output_tokens) == (100, 64, 7)
        assert (last.ttft_s is not None) == is_stream

    run(scenario, tokenizer=FakeTokenizer())


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": ["a", "b"]}),
        (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}),
    ],
)
def test_what_more_was_found_than_is_known_is_not_reported(
    path: str, fields: dict[str, Any]
) -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        got = await found.client.post({"model": "m", **fields}, path)
        assert (got.status, got.header("reprise-by-load")) == (200, None)
        [last] = _last(found).outcomes
        assert (last.prompt_tokens, last.cached_tokens) == (100, None)

    run(scenario, tokenizer=FakeTokenizer())


def test_responses_of_sglang_are_not_known() -> None:
    target = EngineTarget(("a", 0), "http://a", "combined", False, "SGLang")
    found, _ = tokens_of(RESPONSES, {"input": "x"}, targets={target.key: target})
    assert found.missing == "unsupported"
    for path, fields in (
        (CHAT, {"messages": [USER]}),
        (EMBEDDINGS, {"input": "x", "cache_salt": ""}),
    ):
        found, _ = tokens_of(path, fields, targets={target.key: target})
        assert not found.missing


@pytest.mark.parametrize("fields", [{"cache_salt": "blue"}, {"messages": [USER]}], ids=str)
def test_what_sglang_passes_over_of_embeddings_is_not_looked_for(fields: dict[str, Any]) -> None:
    target = EngineTarget(("a", 0), "http://a", "combined", False, "SGLang")
    found, _ = tokens_of(EMBEDDINGS, {"input": "x", **fields}, targets={target.key: target})
    assert found.missing == "unsupported"


@pytest.mark.parametrize("is_stream", [False, True])
def test_response_that_goes_on_goes_to_the_engine_that_keeps_the_last_one(is_stream: bool) -> None:
    async def scenario(found: World) -> None:
        for name in "abcd":
            await found.add(name)
        asked: dict[str, Any] = {"model": "m", "input": "Hi", "stream": is_stream}
        await found.client.post(asked, RESPONSES)
        [first] = [name for name, count in found.seen().items() if count]
        for turn in range(1, 6):
            previous = {"previous_response_id": f"resp_{first}_{turn}"}
            got = await found.client.post(asked | previous, RESPONSES)
            assert got.status == 200
            assert found.seen() == {"a": 0, "b": 0, "c": 0, "d": 0} | {first: turn + 1}
        # Nobody knows of the id, as where the engine is gone: any of them is asked.
        unknown = {"previous_response_id": "resp_x_1"}
        assert (await found.client.post(asked | unknown, RESPONSES)).status == 200
        await found.engines[first].kill()
        previous = {"previous_response_id": f"resp_{first}_2"}
        assert (await found.client.post(asked | previous, RESPONSES)).status == 200

    run(scenario)


def test_stream_of_a_response_that_breaks_off_says_so_by_name() -> None:
    async def scenario(found: World) -> None:
        engine = await found.add("a")
        engine.deeds.append(Deed.HALF_STREAM)
        got = await found.client.post({"model": "m", "input": "x", "stream": True}, RESPONSES)
        *_, name, data, empty, rest = got.body.split(b"\n")
        assert (name, empty, rest) == (b"event: error", b"", b"")
        assert b'"type":"error"' in data
        assert b'"code":"broken_off"' in data
        assert not got.is_whole

    run(scenario)


def test_request_waits_no_longer_for_tokens_than_they_are_worth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompts, "GATEWAY_TOKENS_S", 0.05)

    class BusyTokenizer(FakeTokenizer):
        async def tokens(self, prompt: Prompt, tenant_id: str = "") -> Tokens:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

    request = ClientRequest(CHAT, b"", [], b"x" * 4000, fields={"messages": [{"role": "user"}]})
    model = ServedModel("default", "m", "", 16, "", {})

    async def scenario() -> PromptTokens:
        async with asyncio.timeout(5.0):
            return await Prompts(BusyTokenizer()).of(request, model)

    found = asyncio.run(scenario())
    assert (found.missing, found.size) == ("busy", 1000)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ["ab"], "cache_salt": ["blue"]},
        {"prompt": ["ab", "cd"], "lora_path": ["sql", None]},
        {"prompt": "ab", "extra_key": "tenant"},
    ],
    ids=["salts", "adapters", "key"],
)
def test_a_prompt_with_keys_that_cannot_be_asked_for_is_routed_by_load(
    fields: dict[str, object],
) -> None:
    """As SGLang's requests have them."""
    model = ServedModel("default", "m", "", 16, "", {})
    asked = ClientRequest(COMPLETIONS, b"", [], b"x" * 400, fields=fields)
    found = asyncio.run(Prompts(FakeTokenizer()).of(asked, model))
    assert found == PromptTokens(b"", 100, "unsupported")
