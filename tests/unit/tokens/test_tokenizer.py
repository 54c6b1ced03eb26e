"""Who makes the tokens, and what becomes of it where an engine makes others."""

import asyncio
import itertools
import json
import threading
from array import array
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="the extra `text` is not installed")

from schemas.clock import Clock
from schemas.conditions import Conditions, Part
from schemas.errors import RepriseError
from schemas.media import MediaItem
from tests.model_directories import byte_level, write_model
from tokens import tokenizer as module
from tokens.engine_tokenizer import RENDER
from tokens.interface import Engine, EngineAnswer, Tokens, TokenSource
from tokens.local_model import ODD_SHAPES_MAX, Form, LocalModel, Standing
from tokens.model_tokenizer import ModelTokenizer
from tokens.prompt import (
    ChatPrompt,
    NoTokens,
    NoTokensError,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Truncation,
    read_chat,
    read_completion,
)
from tokens.proofs import may_tell_other_dates, shape_of
from tokens.tokenizer import Tokenizer

HI = ChatPrompt("m", [{"role": "user", "content": "the quick brown fox"}])
TEXT = TextPrompt("m", "the quick brown fox")
ODD = ChatPrompt("m", [{"role": "user", "content": "the <|odd fox"}])
ENGINE = Engine("http://engine", "vLLM")


class ManualClock:
    """Time stands still but for `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self) -> Clock:
        return Clock(
            lambda: self.now, lambda: self.now, lambda: int(self.now * 1e9), _no_sleep, lambda: 0.0
        )


def _no_sleep(seconds: float) -> None:
    raise AssertionError("nothing here sleeps on a thread")


class FakeEngines:
    """Makes tokens as the model does, or what it is told."""

    def __init__(self, path: Path, *engines: Engine) -> None:
        self.engines = list(engines)
        self.knows_all = True
        self.asked: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], EngineAnswer] = self._right
        self.others: dict[str, Callable[[dict[str, Any]], EngineAnswer]] = {}
        self.rendered: list[dict[str, Any]] = []
        self.rendering: Callable[[dict[str, Any]], EngineAnswer] = no_rendering
        ticks = itertools.count()
        self._tokenizer = ModelTokenizer.read(path, lambda: float(next(ticks)))

    def of_model(self, model: str, tenant_id: str) -> Sequence[Engine]:
        return self.engines if model == "m" and tenant_id in ("", "default") else ()

    def are_all(self, model: str, tenant_id: str) -> bool:
        return self.knows_all

    async def post(
        self, base_url: str, path: str, body: bytes, *, wait_s: float, bytes_max: int
    ) -> EngineAnswer:
        asked = json.loads(body)
        if path == RENDER:
            self.rendered.append(asked)
            await asyncio.sleep(0)
            return self.rendering(asked)
        assert path == "/tokenize"
        self.asked.append(asked)
        await asyncio.sleep(0)
        return self.others.get(base_url, self.answer)(asked)

    def _right(self, asked: dict[str, Any]) -> EngineAnswer:
        prompt: ChatPrompt | TextPrompt
        if "messages" in asked:
            prompt = ChatPrompt("m", asked["messages"])
        else:
            prompt = TextPrompt("m", asked["prompt"], asked["add_special_tokens"])
        text = self._tokenizer.text_of(prompt, "vLLM", 1e6)
        content, _ = self._tokenizer.tokens_of(text, prompt)
        return tokens_answer(list(array("I", content)))


def tokens_answer(tokens: list[int]) -> EngineAnswer:
    return EngineAnswer(200, json.dumps({"tokens": tokens, "count": len(tokens)}).encode())


def no_rendering(asked: dict[str, Any]) -> EngineAnswer:
    """Of vLLM without `--enable-scale-out`."""
    return EngineAnswer(403, b'{"error": {"message": "Scale-out endpoints are disabled."}}')


def rendering(**changes: Any) -> Callable[[dict[str, Any]], EngineAnswer]:
    """Of vLLM 0.33: what `GenerateRequest` of its released code has of a chat with an image."""
    features = {
        "mm_hashes": {"image": ["a3f1"]},
        "mm_placeholders": {"image": [{"offset": 1, "length": 2}]},
        "kwargs_data": None,
        "mm_metadata": None,
        **changes,
    }
    document = {
        "request_id": "chatcmpl-1",
        "token_ids": [5, 6, 6, 7],
        "features": features,
        "sampling_params": {"max_tokens": 16},
        "model": "m",
        "stream": False,
    }
    return lambda asked: EngineAnswer(200, json.dumps(document).encode())


def wrong(asked: dict[str, Any]) -> EngineAnswer:
    return tokens_answer([7, 7, 7])


def silent(asked: dict[str, Any]) -> EngineAnswer:
    raise RepriseError("it does not answer")


class World:
    """A tokenizer with one model, its engines and what is known of it."""

    def __init__(self, path: Path, *engines: Engine, models: bool = True) -> None:
        self.time = ManualClock()
        self.conditions = Conditions(lambda: self.time.now)
        self.engines = FakeEngines(path, *engines)
        paths = {"m": path} if models else {}
        self.tokenizer = Tokenizer(paths, self.engines, self.time.clock(), self.conditions)
        self.tokenizer.read()

    def run(self, *calls: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Each after the other, and the comparisons that it began."""

        async def all_calls() -> list[Any]:
            found = []
            for call in calls:
                found.append(await call())
                await asyncio.gather(*self.tokenizer._comparing)
            return found

        try:
            return asyncio.run(all_calls())
        finally:
            self.tokenizer.end()

    def tokens(self, prompt: Prompt) -> Callable[[], Awaitable[Any]]:
        return lambda: self.tokenizer.tokens(prompt)

    @property
    def condition(self) -> str:
        found = [one for one in self.conditions.all() if one.part is Part.TOKENS]
        return f"{found[0].reason}: {found[0].message}" if found else ""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def whole(text: str) -> bytes:
    return array("I", byte_level().encode(text, add_special_tokens=False).ids).tobytes()


RENDERED = "<|im_start|>user\nthe quick brown fox<|im_end|>\n<|im_start|>assistant\n"


def test_the_models_own_files_make_the_tokens(path: Path) -> None:
    world = World(path)
    (chat, again, text) = world.run(world.tokens(HI), world.tokens(HI), world.tokens(TEXT))
    assert (chat.content, chat.source) == (whole(RENDERED), TokenSource.LOCAL)
    assert (again.reused, chat.length) == (chat.length, len(whole(RENDERED)) // 4)
    assert text.content == whole("the quick brown fox")
    assert world.tokenizer.made == {"local": 3}
    assert world.tokenizer.tokens_made["local"] == 2 * chat.length + text.length


def test_token_ids_are_given(path: Path) -> None:
    world = World(path)
    prompt = TokenPrompt("other", array("I", [1, 2, 3]).tobytes(), Truncation(2, True))
    (found,) = world.run(world.tokens(prompt))
    assert (found.content, found.source) == (array("I", [2, 3]).tobytes(), TokenSource.GIVEN)


def test_an_engine_is_asked_where_no_files_are_named(path: Path) -> None:
    world = World(path, ENGINE, models=False)
    chat = HI._replace(
        tools=[{"function": {"name": "f"}}],
        documents=[{"text": "d"}],
        template_kwargs={"x": 1},
        messages=[{"role": "user", "content": "a", "reasoning_content": "why"}],
    )
    _, text = world.run(world.tokens(chat), world.tokens(TEXT))
    assert (text.content, text.source) == (whole(TEXT.text), TokenSource.ENGINE)
    assert world.engines.asked[0] == {
        "model": "m",
        "messages": [{"role": "user", "content": "a", "reasoning": "why"}],
        "add_generation_prompt": True,
        "continue_final_message": False,
        "add_special_tokens": False,
        "tools": [{"function": {"name": "f"}}],
        "chat_template_kwargs": {"x": 1, "documents": [{"text": "d"}]},
    }
    assert not world.tokenizer.compared


@pytest.mark.parametrize("prompt", [HI, TEXT], ids=["chat", "completion"])
def test_a_difference_is_a_condition_and_the_engine_is_asked_from_then_on(
    path: Path, prompt: ChatPrompt | TextPrompt
) -> None:
    world = World(path, ENGINE)
    world.engines.answer = wrong
    first, second = world.run(world.tokens(prompt), world.tokens(prompt))
    assert first.source is TokenSource.LOCAL
    assert (second.source, second.content) == (
        TokenSource.ENGINE,
        array("I", [7, 7, 7]).tobytes(),
    )
    assert world.tokenizer.compared == {"different": 1}
    form = Form.CHAT if prompt is HI else Form.COMPLETION
    assert world.tokenizer.models["m"].standings == {
        one: Standing.DIFFERENT if one is form else Standing.UNPROVEN for one in Form
    }
    assert world.condition.startswith(f"differs: tokens of the model m ({form}) are not those")
    assert f"{first.length} here, 3 there, from token 0 on" in world.condition
    assert "quick" not in world.condition


def test_one_odd_request_turns_off_no_others(path: Path) -> None:
    world = World(path, ENGINE)
    world.engines.answer = lambda asked: (
        wrong(asked) if "odd" in str(asked) else world.engines._right(asked)
    )
    *_, plain, odd, asked, again = world.run(
        *[world.tokens(HI)] * 2, *[world.tokens(ODD)] * 2, world.tokens(HI)
    )
    assert (plain.source, plain.is_proven) == (TokenSource.LOCAL, True)
    assert (odd.source, odd.is_proven) == (TokenSource.LOCAL, False)
    assert (asked.source, asked.length) == (TokenSource.ENGINE, 3)
    assert (again.source, again.is_proven) == (TokenSource.LOCAL, True)
    assert world.condition.endswith(
        "the engines are asked for tokens instead of prompts like that one"
    )


def test_a_shape_that_was_proven_and_differs_turns_off_all(path: Path) -> None:
    world = World(path, ENGINE)
    _, proven = world.run(*[world.tokens(ODD)] * 2)
    assert proven.is_proven
    world.tokenizer.counted(ODD, proven, proven.length + 1)
    assert world.tokenizer.models["m"].standings[Form.CHAT] is Standing.DIFFERENT


def test_many_odd_shapes_turn_off_all(path: Path) -> None:
    world = World(path, ENGINE)
    [made] = world.run(world.tokens(HI))
    model = world.tokenizer.models["m"]
    for number in range(ODD_SHAPES_MAX + 1):
        assert model.standings[Form.CHAT] is Standing.EQUAL
        odd = read_chat({"model": "m"} | _turns("u", **{f"name{number}": "y"}))
        world.tokenizer.counted(odd, made, made.length + 1)
    assert model.standings[Form.CHAT] is Standing.DIFFERENT


def test_other_forms_are_still_made_here(path: Path) -> None:
    world = World(path, ENGINE)
    world.engines.answer = lambda asked: (
        wrong(asked) if "messages" in asked else world.engines._right(asked)
    )
    _, chat, text = world.run(world.tokens(HI), world.tokens(HI), world.tokens(TEXT))
    assert (chat.source, text.source) == (TokenSource.ENGINE, TokenSource.LOCAL)


def test_where_tokens_differ_and_nobody_can_be_asked_there_are_none(path: Path) -> None:
    world = World(path)
    (first,) = world.run(world.tokens(HI))
    world.tokenizer.counted(HI, first, first.length)
    assert not world.condition
    world.tokenizer.counted(HI, first, first.length + 1)
    assert "not those that an engine computes" in world.condition
    with pytest.raises(NoTokensError) as refused:
        world.run(world.tokens(HI))
    assert refused.value.reason is NoTokens.DIFFERS
    assert world.tokenizer.missing == {"differs": 1}


def test_the_first_requests_are_compared_and_then_one_in_many(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPARED_FIRST", 2)
    monkeypatch.setattr(module, "COMPARED_EVERY", 4)
    world = World(path, ENGINE)
    world.run(*[world.tokens(HI)] * 9)
    assert world.tokenizer.compared == {"equal": 4}  # the first, second, fourth and eighth
    assert world.tokenizer.models["m"].standings[Form.CHAT] is Standing.EQUAL


def test_comparisons_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPARING_MAX", 1)
    world = World(path, ENGINE)

    async def three() -> None:
        for _ in range(3):
            await world.tokenizer.tokens(HI)

    world.run(three)
    assert world.tokenizer.compared == {"equal": 1, "left_out": 2}


def test_a_day_that_ends_meanwhile_is_no_difference(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = itertools.chain(["Monday"] * 3, itertools.repeat("Tuesday"))
    monkeypatch.setattr("tokens.template._strftime_now", lambda form: next(days))
    dated = write_model(path.parent / "dated", template="{{ strftime_now('%A') }} {{ messages }}")
    world = World(dated, ENGINE)
    world.run(world.tokens(HI))  # here on Monday, after two probes of the files; there on Tuesday
    assert world.tokenizer.compared == {"equal": 1}


def test_an_engine_that_is_silent_proves_nothing(path: Path) -> None:
    world = World(path, ENGINE)
    world.engines.answer = silent
    world.run(world.tokens(HI))
    assert world.tokenizer.compared == {"silent": 1}
    assert world.tokenizer.models["m"].standings[Form.CHAT] is Standing.UNPROVEN


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (EngineAnswer(200, b"garbage"), NoTokens.ENGINE_SILENT),
        (EngineAnswer(200, b'{"tokens": ["a"]}'), NoTokens.ENGINE_SILENT),
        (EngineAnswer(200, b'{"tokens": [-1]}'), NoTokens.ENGINE_SILENT),
        (EngineAnswer(200, b'{"count": 3}'), NoTokens.ENGINE_SILENT),
        (EngineAnswer(200, b"[" * 100_000), NoTokens.ENGINE_SILENT),
        (EngineAnswer(500, b""), NoTokens.ENGINE_SILENT),
        (EngineAnswer(302, b""), NoTokens.ENGINE_SILENT),
        (EngineAnswer(400, b'{"error": "SECRET"}'), NoTokens.ENGINE_REFUSES),
        (EngineAnswer(404, b""), NoTokens.ENGINE_REFUSES),
    ],
)
def test_what_an_engine_answers_is_not_believed(
    path: Path, answer: EngineAnswer, reason: NoTokens
) -> None:
    world = World(path, ENGINE, models=False)
    world.engines.answer = lambda asked: answer
    with pytest.raises(NoTokensError) as refused:
        world.run(world.tokens(TEXT))
    assert refused.value.reason is reason
    assert "SECRET" not in str(refused.value)


def test_an_engine_that_did_not_answer_is_left_alone_for_a_while(path: Path) -> None:
    world = World(path, ENGINE, models=False)
    world.engines.answer = silent

    async def refused() -> NoTokens:
        with pytest.raises(NoTokensError) as error:
            await world.tokenizer.tokens(TEXT)
        return error.value.reason

    async def later() -> None:
        world.time.now += module.PAUSE_S

    reasons = world.run(refused, refused, later, refused)
    assert reasons.count(NoTokens.ENGINE_SILENT) == 3
    assert len(world.engines.asked) == 2


@pytest.mark.parametrize(
    ("answer", "unanswered"), [(silent, 5), (lambda asked: EngineAnswer(400, b"{}"), 0)]
)
def test_prompts_that_got_no_tokens_in_time_are_told(
    path: Path, answer: Callable[[dict[str, Any]], EngineAnswer], unanswered: int
) -> None:
    world = World(path, ENGINE, models=False)
    world.engines.answer = answer

    async def refused() -> None:
        with pytest.raises(NoTokensError):
            await world.tokenizer.tokens(TEXT)

    world.run(*[refused] * 5)
    told = world.tokenizer.questions.unanswered(world.time.now)
    assert sum(one.unanswered for one in told) == unanswered


@pytest.mark.parametrize(
    ("kind", "prompt", "reason"),
    [
        ("SGLang", HI._replace(documents=[{"text": "d"}]), NoTokens.ENGINE_REFUSES),
        ("", HI, NoTokens.NO_TOKENIZER),
        ("", TEXT._replace(model="other"), NoTokens.NO_TOKENIZER),
    ],
)
def test_who_has_no_way_to_tokens_is_told_why(
    path: Path, kind: str, prompt: ChatPrompt, reason: NoTokens
) -> None:
    engines = [Engine("http://engine", kind)] if kind else []
    world = World(path, *engines, models=False)
    with pytest.raises(NoTokensError) as refused:
        world.run(world.tokens(prompt))
    assert refused.value.reason is reason


def test_files_that_cannot_be_read_are_a_condition_and_the_engine_is_asked(path: Path) -> None:
    (path / "tokenizer.json").write_text("{}")
    good = write_model(path.parent / "good")
    world = World(good, ENGINE)
    world.tokenizer.models["m"] = LocalModel("m", path)
    world.tokenizer.read()
    (found,) = world.run(world.tokens(TEXT))
    assert found.source is TokenSource.ENGINE
    assert world.condition.startswith("unreadable: tokens of the model m: expected a tokenizer")


def test_a_missing_extra_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ImportError

    world = World(path)
    monkeypatch.setattr(ModelTokenizer, "read", missing)
    world.tokenizer.models["m"] = LocalModel("m", path)
    world.tokenizer.read()
    with pytest.raises(NoTokensError, match=r"\.venv/bin/pip install -e '\.\[text\]'") as refused:
        world.run(world.tokens(TEXT))
    assert refused.value.reason is NoTokens.NO_LIBRARY
    assert world.condition.startswith("no_library: ")


def test_what_only_an_engine_can_do_goes_to_one(path: Path) -> None:
    world = World(path, ENGINE)
    (found,) = world.run(world.tokens(HI._replace(chat_template="x")))
    assert found.source is TokenSource.ENGINE
    assert world.engines.asked[0]["chat_template"] == "x"


def test_a_template_that_is_slow_leaves_the_loop(path: Path) -> None:
    """On the loop it has a little time, and then a thread makes it again, each time."""
    threads: list[threading.Thread] = []
    slow = write_model(
        path.parent / "slow", template="{% for i in range(3000) %}{% endfor %}{{ messages }}"
    )
    world = World(slow)
    real = ModelTokenizer.text_of

    def noted(self: ModelTokenizer, *args: Any) -> str:
        threads.append(threading.current_thread())
        return real(self, *args)

    ticks = itertools.count()
    world.tokenizer._clock = world.time.clock()._replace(monotonic=lambda: next(ticks) * 0.01)
    world.tokenizer.read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelTokenizer, "text_of", noted)
        world.run(world.tokens(HI), world.tokens(HI))
    on_loop = [one for one in threads if one is threading.main_thread()]
    assert len(on_loop) == 1
    assert len(threads) - len(on_loop) >= 2


def test_a_short_chat_waits_for_no_long_one_whose_template_is_slow(path: Path) -> None:
    threads: dict[int, threading.Thread] = {}
    slow = write_model(
        path.parent / "slow", template="{% for one in messages %}{% endfor %}{{ messages }}"
    )
    world = World(slow)
    real = ModelTokenizer.text_of

    def noted(self: ModelTokenizer, prompt: Any, *args: Any) -> str:
        threads[len(prompt.messages)] = threading.current_thread()
        return real(self, prompt, *args)

    ticks = itertools.count()
    world.tokenizer._clock = world.time.clock()._replace(monotonic=lambda: next(ticks) * 0.01)
    world.tokenizer.read()
    long = HI._replace(messages=list(HI.messages) * 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelTokenizer, "text_of", noted)
        world.run(world.tokens(long), world.tokens(HI))
    assert threads[len(long.messages)] is not threading.main_thread()
    assert threads[len(HI.messages)] is threading.main_thread()


def test_a_template_that_never_ends_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokens.template.RENDERING_STEPS_MAX", 20_000)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    world = World(write_model(path.parent / "endless", template=endless))
    with pytest.raises(NoTokensError, match="does not end in time") as refused:
        world.run(world.tokens(HI))
    assert refused.value.reason is NoTokens.TEMPLATE


@pytest.mark.parametrize("engines", [(), (ENGINE,)])
@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (TEXT._replace(text="half a pair: \ud83d"), NoTokens.UNSUPPORTED),
        (HI._replace(messages=[{"role": "user", "content": "\ud83d"}]), NoTokens.UNSUPPORTED),
        (HI._replace(tools=[{"function": {"name": object()}}]), NoTokens.UNSUPPORTED),
        (HI._replace(tools=[{"x": "y" * (33 << 20)}]), NoTokens.TOO_LARGE),
    ],
)
def test_what_no_tokenizer_takes_is_refused(
    path: Path, prompt: ChatPrompt | TextPrompt, reason: NoTokens, engines: tuple[Engine, ...]
) -> None:
    for models in (True, False):
        if models or engines:
            world = World(path, *engines, models=models)
            with pytest.raises(NoTokensError) as refused:
                world.run(world.tokens(prompt))
            assert refused.value.reason is reason


def test_large_prompts_wait_for_a_thread_and_no_more_of_them_than_there_may_be(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROMPTS_WAITING_MAX", 2)
    world = World(path)
    large = [TextPrompt("m", f"{n} " * 5000) for n in range(4)]

    async def at_once() -> list[object]:
        return await asyncio.gather(
            *(world.tokenizer.tokens(one) for one in large), return_exceptions=True
        )

    (found,) = world.run(world.tokens(TEXT), at_once)[1:]
    refused = [one for one in found if isinstance(one, NoTokensError)]
    assert [one.reason for one in refused] == [NoTokens.BUSY] * 2
    assert world.tokenizer.missing == {"busy": 2}


def test_questions_to_engines_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_AT_ONCE_MAX", 2)
    world = World(path, ENGINE, models=False)

    async def at_once() -> list[object]:
        return await asyncio.gather(
            *(world.tokenizer.tokens(TEXT) for _ in range(4)), return_exceptions=True
        )

    (found,) = world.run(at_once)
    refused = [one.reason for one in found if isinstance(one, NoTokensError)]
    assert refused == [NoTokens.BUSY] * 2
    assert len(world.engines.asked) == 2


def test_each_engine_is_probed_once_it_is_there_and_again_later(path: Path) -> None:
    world = World(path, ENGINE)
    model = world.tokenizer.models["m"]

    async def probe() -> int:
        before = len(world.engines.asked)
        await world.tokenizer._probe(model, world.engines.engines[-1])
        return len(world.engines.asked) - before

    async def later() -> None:
        world.time.now += module.PROBED_AGAIN_S

    async def another() -> None:
        world.engines.engines.append(Engine("http://other", "vLLM"))

    counts = world.run(probe, probe, later, probe, another, probe)
    assert [one for one in counts if isinstance(one, int)] == [4, 0, 4, 4]
    assert world.tokenizer.compared == {"equal": 12}
    assert model.standings == dict.fromkeys(Form, Standing.EQUAL)


SGLANG_ENGINE = Engine("http://engine", "SGLang")


def test_of_sglang_that_takes_no_messages_the_tokenizer_alone_is_compared(path: Path) -> None:
    world = World(path, SGLANG_ENGINE)
    world.engines.answer = lambda asked: (
        EngineAnswer(422, b"") if "messages" in asked else world.engines._right(asked)
    )
    first, again = world.run(world.tokens(HI), world.tokens(HI))
    text = {"model": "m", "prompt": RENDERED, "add_special_tokens": False}
    assert text in world.engines.asked
    assert set(world.tokenizer.compared) == {"equal"}
    assert not first.is_proven
    assert not again.is_proven


def test_sglang_is_asked_as_a_chat_of_its_own(path: Path) -> None:
    asked_with = {
        "chat_template_kwargs": {"x": None},
        "reasoning_effort": "low",
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    prompt = read_chat({"model": "m", "messages": HI.messages, **asked_with})
    world = World(path, SGLANG_ENGINE)
    content = ModelTokenizer.read(path, lambda: 0.0)
    text = content.text_of(prompt, "SGLang", 1e6)
    tokens = array("I", content.tokens_of(text, prompt)[0]).tolist()
    world.engines.answer = lambda asked: tokens_answer(tokens)
    first, again = world.run(world.tokens(prompt), world.tokens(prompt))
    assert {"model": "m", "messages": HI.messages, **asked_with} in world.engines.asked
    assert not first.is_proven
    assert again.is_proven
    world = World(path, SGLANG_ENGINE)
    world.run(world.tokens(HI._replace(add_generation_prompt=False, effort=0)))
    (asked,) = world.engines.asked
    assert (asked["add_generation_prompt"], asked["add_special_tokens"]) == (False, False)
    assert asked["reasoning_effort"] == 0


def test_tokens_are_proven_once_each_engine_has_made_such_ones(path: Path) -> None:
    other = Engine("http://other", "vLLM")
    world = World(path, ENGINE)
    first, second, joined, again = world.run(
        world.tokens(HI),
        world.tokens(HI),
        lambda: _joined(world, other, HI),
        world.tokens(HI),
    )
    assert [one.is_proven for one in (first, second, joined, again)] == [False, True, False, True]
    world.engines.engines[0] = ENGINE._replace(life=1)
    restarted, again = world.run(world.tokens(HI), world.tokens(HI))
    assert (restarted.is_proven, again.is_proven) == (False, True), "it may have other flags"
    world.engines.knows_all = False
    (unknown,) = world.run(world.tokens(HI))
    assert not unknown.is_proven, "an engine without HTTP may make others"


async def _joined(world: World, engine: Engine, prompt: Prompt) -> Any:
    world.engines.engines.append(engine)
    return await world.tokenizer.tokens(prompt)


def test_tokens_that_no_engine_can_prove_stay_unproven(path: Path) -> None:
    (alone,) = World(path).run(World(path).tokens(HI))
    assert not alone.is_proven
    tools = [{"type": "function", "function": {"name": "f"}}]
    for unseen in (
        read_chat({"model": "m", "messages": HI.messages, "reasoning_effort": "low"}),
        HI._replace(tools=tools, tool_choice="none"),
        *(
            read_chat({"model": "m", "messages": HI.messages, name: given})
            for name, given in {"reasoning": {"effort": "low"}, "thinking": 1, "task": "t"}.items()
        ),
    ):
        for has_files in (True, False):
            world = World(path, ENGINE, models=has_files)
            found = world.run(*[world.tokens(unseen)] * 3)
            assert not any(one.is_proven for one in found), (unseen, has_files)


def _tools(**fields: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": {"type": "object"}} | fields
    return {"messages": HI.messages, "tools": [{"type": "function", "function": function}]}


@pytest.mark.parametrize("has_files", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        {"messages": HI.messages, "add_special_tokens": True},
        {"messages": HI.messages, "add_generation_prompt": False},
        {"messages": HI.messages, "truncate_prompt_tokens": 2, "truncation_side": "right"},
        _tools(description=None),
        {"prompt": "hi", "add_special_tokens": False},
        {"prompt": "hi", "truncate_prompt_tokens": 2, "truncation_side": "left"},
    ],
    ids=str,
)
def test_sglang_passes_over_what_its_tokenize_goes_by(
    path: Path, given: dict[str, Any], has_files: bool
) -> None:
    """So other requests prove nothing of such, nor do such."""
    read = read_chat if "messages" in given else read_completion
    plain = {name: one for name, one in given.items() if name in ("messages", "prompt")}
    for kind in ("SGLang", "vLLM"):
        world = World(path, ENGINE._replace(kind=kind), models=has_files)
        asked = [plain, plain, given, given, given, plain]
        found = world.run(*(world.tokens(read({"model": "m", **one})) for one in asked))
        assert (found[-2].is_proven, found[-1].is_proven) == (kind == "vLLM", True)


def test_a_text_is_not_proven_by_an_engine_with_a_template_for_completions(path: Path) -> None:
    text = read_completion({"model": "m", "prompt": "hi"})
    for has_files in (True, False):
        world = World(path, ENGINE._replace(completes=False), models=has_files)
        found = world.run(*(world.tokens(one) for one in (text, text, HI, HI)))
        assert [one.is_proven for one in (found[1], found[3])] == [False, True]


def _turns(*turns: str, **last: Any) -> dict[str, Any]:
    """Messages by the first letters of their roles."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool", "d": "developer"}
    messages: list[dict[str, Any]] = [{"role": roles[one], "content": "x"} for one in turns]
    messages[-1] |= last
    return {"messages": messages}


def _called(arguments: str, name: str = "f") -> dict[str, Any]:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    asked, answer, result = _turns(*"uat")["messages"]
    return {"messages": [asked, answer | {"tool_calls": [call]}, result]}


def test_where_one_engine_is_silent_another_one_is_asked(path: Path) -> None:
    other = Engine("http://other", "vLLM")
    world = World(path, ENGINE, other, models=False)
    world.engines.others[other.url] = silent
    found = world.run(*[world.tokens(TEXT)] * 4)
    assert len({one.content for one in found}) == 1
    assert world.tokenizer.missing == {}


@pytest.mark.parametrize("has_files", [True, False])
def test_engines_that_differ_from_each_other_prove_nothing(path: Path, has_files: bool) -> None:
    """Whichever is asked: each makes the tokens of its own flags."""
    other = Engine("http://other", "vLLM")
    world = World(path, ENGINE, other, models=has_files)
    world.engines.others[other.url] = wrong
    for _ in range(3):
        made = world.run(*[world.tokens(HI)] * 5)
        assert not any(one.is_proven for one in made)
        assert {one.length for one in made[1:]} >= {3}, "both are asked"
        world.time.now += 601.0
    del world.engines.others[other.url]
    world.engines.engines[1] = other._replace(life=1)
    *_, first, second = world.run(*[world.tokens(HI)] * 6)
    assert (first.is_proven, second.is_proven) == (True, True)


@pytest.mark.parametrize("has_files", [True, False])
def test_a_count_that_differs_ends_what_tokenize_has_proven(path: Path, has_files: bool) -> None:
    """Until the process is another: what the engine's own `/tokenize` makes is not what it runs."""
    world = World(path, ENGINE, models=has_files)
    _, proven = world.run(world.tokens(HI), world.tokens(HI))
    assert proven.is_proven
    world.tokenizer.counted(HI, proven, proven.length)
    [same] = world.run(world.tokens(HI))
    assert same.is_proven
    world.tokenizer.counted(HI, same, same.length + 1)
    assert not any(one.is_proven for one in world.run(*[world.tokens(HI)] * 3))
    world.engines.engines[0] = ENGINE._replace(life=1)
    *_, again = world.run(*[world.tokens(HI)] * 3)
    assert again.is_proven


def test_a_count_of_what_no_engine_can_be_asked_says_nothing_of_other_chats(path: Path) -> None:
    world = World(path, ENGINE)
    asked = read_chat({"model": "m", "messages": HI.messages, "reasoning": {"enabled": True}})
    [made] = world.run(world.tokens(asked))
    world.tokenizer.counted(asked, made, made.length + 1)
    assert not world.condition
    *_, plain = world.run(*[world.tokens(HI)] * 2)
    assert (plain.source, plain.is_proven) == (TokenSource.LOCAL, True)


def test_an_effort_among_variables_is_not_proven_by_sglang(path: Path) -> None:
    """0.5.23 takes it out of them for chats, and not for `/tokenize`."""
    given = {"chat_template_kwargs": {"reasoning_effort": "high"}}
    chat = read_chat({"model": "m", "messages": HI.messages} | given)
    for engine, is_proven in ((SGLANG_ENGINE, False), (ENGINE, True)):
        world = World(path, engine)
        assert world.run(*[world.tokens(chat)] * 3)[-1].is_proven is is_proven


def test_chats_are_not_proven_where_tokenize_renders_them_otherwise(path: Path) -> None:
    world = World(path, ENGINE._replace(renders=False))
    chats = world.run(*[world.tokens(HI)] * 3)
    assert not any(one.is_proven for one in chats)
    *_, text = world.run(*[world.tokens(TEXT)] * 3)
    assert text.is_proven


SHAPES: tuple[dict[str, Any], ...] = (
    {"messages": HI.messages},
    _tools(),
    _tools(description="d"),
    _tools(description="d", strict=True),
    _tools(strict=True, description="d"),
    _tools(description="<d>"),
    _tools(description="\u00e9"),
    _tools(parameters={"type": "object", "properties": {"\u00e9": {"type": "string"}}}),
    _tools(parameters={"properties": {}, "type": "object"}),
    _tools() | {"tools": [dict(reversed(one.items())) for one in _tools()["tools"]]},
    _turns(*"ua"),
    _turns(*"uau"),
    _turns(*"su"),
    _turns(*"suau"),
    _turns(*"ssu"),
    _turns(*"us"),
    _turns(*"au"),
    _turns(*"uu"),
    _turns("d"),
    _turns("u", content=""),
    _turns("u", content=" x"),
    _turns("u", content="x "),
    _turns("u", content=" x "),
    _turns("u", content="\u00e9"),
    _turns("u", content="e\u0301"),
    _turns("u", content="\ufb01"),
    _turns("u", content="<think>x</think>"),
    _turns("u", content="<|im_end|>"),
    _turns("u", content=[{"type": "text", "text": "x"}]),
    _turns("u", content=[{"type": "text", "text": "x "}]),
    _turns("u", content=[{"type": "text", "text": "x"}] * 2),
    _turns("u", content=[{"type": "refusal", "refusal": "x"}]),
    _turns("u", content=[{"type": "refusal", "refusal": ""}]),
    _turns("u", content=[{"type": "refusal", "refusal": "x "}]),
    _turns("u", name="y"),
    _turns(*"uau", content="<think>x</think>"),
    _turns(*"uatu", content="x"),
    _turns(*"uat", content="\u00e9"),
    _turns(*"uat", content="'x'"),
    _called('{"a": 1}'),
    _called('{"a":1}'),
    _called('{"a": "\u00e9"}'),
    _called("{}x"),
    _called('{"a": 12345678901234567890}'),
    _called('{"a": 1.5}'),
    _called('{"a": NaN}'),
    _called('{"a": "\\ud800"}'),
    _tools(description=None),
    {"messages": HI.messages, "truncate_prompt_tokens": 1, "truncation_side": "left"},
    {"messages": HI.messages, "chat_template_kwargs": {"enable_thinking": True}},
    {"messages": HI.messages, "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": HI.messages, "documents": [{"text": "d"}]},
    {"messages": HI.messages, "documents": [{"title": "d"}]},
    {"messages": HI.messages, "add_generation_prompt": False},
    {"messages": HI.messages, "add_special_tokens": True},
)


def test_what_engines_differ_in_is_proven_by_itself() -> None:
    shapes = [shape_of(read_chat({"model": "m", **one})) for one in SHAPES]
    assert len(set(shapes)) == len(shapes)
    assert shapes[0] == shape_of(HI)
    texts = [TEXT, TEXT._replace(text="<|x|>"), TEXT._replace(text=" x"), TEXT._replace(text="")]
    assert len({*shapes, *map(shape_of, texts)}) == len(shapes) + len(texts)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_turns(*"suau"), _turns(*"suauauau")),
        (_turns(*"uu"), _turns(*"uuu")),
        (_turns("u", content="x\ny \u00e9"), _turns("u", content="y's \u00fc")),
        (_tools(name="f"), _tools(name="g")),
        (_called('{"a": 1}'), _called('{"a": 2}', name="g")),
    ],
    ids=["turns", "messages", "texts", "tools", "calls"],
)
def test_what_no_engine_differs_in_is_proven_once(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    shapes = {shape_of(read_chat({"model": "m", **request})) for request in (one, other)}
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("now", "may_differ"), [(841.0, True), (959.0, True), (839.0, False), (961.0, False)]
)
def test_clocks_may_tell_other_dates_about_a_quarter_of_an_hour(
    now: float, *, may_differ: bool
) -> None:
    assert may_tell_other_dates(now) is may_differ


def test_the_date_of_a_template_is_proven_until_it_may_change_in_some_zone(path: Path) -> None:
    dated = write_model(path.parent / "dated", template="{{ strftime_now('%A') }} {{ messages }}")
    world = World(dated, ENGINE)
    world.time.now = 900.0
    first, proven = world.run(world.tokens(HI), world.tokens(HI))
    assert (first.is_proven, proven.is_proven) == (False, True)
    world.time.now = 1799.0
    assert world.tokenizer._are_proven(module._Made(HI, shape_of(HI), b""), "")
    world.time.now = 1800.0
    shape = shape_of(HI)
    assert world.tokenizer._proofs.lacking("m", shape, [ENGINE]) == (True, [ENGINE])


def test_small_prompts_wait_for_no_large_one_and_large_ones_not_for_long(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE_WAIT_S", 0.05)
    monkeypatch.setattr(module, "LARGE_CHARACTERS", 20_000)
    world = World(path)
    begun, is_over = threading.Event(), threading.Event()
    tokens_of = ModelTokenizer.tokens_of

    def slow(self: ModelTokenizer, text: str, *args: Any) -> tuple[bytes, int]:
        if len(text) > 20_000:
            begun.set()
            is_over.wait(20)
        return tokens_of(self, text, *args)

    monkeypatch.setattr(ModelTokenizer, "tokens_of", slow)
    large, small = "quick brown fox " * 2_000, "quick brown fox " * 500

    async def scenario() -> None:
        gone = asyncio.create_task(world.tokenizer.tokens(TEXT._replace(text=large)))
        await asyncio.to_thread(begun.wait, 20)
        gone.cancel()
        found = await world.tokenizer.tokens(TEXT._replace(text=small))
        assert found.length > 0
        with pytest.raises(NoTokensError) as refused:
            await world.tokenizer.tokens(TEXT._replace(text=large))
        assert refused.value.reason is NoTokens.BUSY
        is_over.set()
        monkeypatch.setattr(module, "LARGE_WAIT_S", 60.0)
        await world.tokenizer.tokens(TEXT._replace(text=large))

    try:
        asyncio.run(scenario())
    finally:
        is_over.set()
        world.tokenizer.end()


def test_begin_probes_and_end_ends(path: Path) -> None:
    world = World(path, ENGINE)

    async def begun() -> None:
        probed = asyncio.Event()
        right = world.engines.answer

        def third(asked: dict[str, Any]) -> EngineAnswer:
            if len(world.engines.asked) == 3:
                probed.set()
            return right(asked)

        world.engines.answer = third
        world.tokenizer.begin()
        await probed.wait()
        world.tokenizer.end()

    asyncio.run(begun())
    assert not world.condition


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
PICTURE = ChatPrompt("m", [{"role": "user", "content": [IMAGE]}], has_media=True)


def test_an_engine_is_asked_about_media_though_files_are_named(path: Path) -> None:
    world = World(path, ENGINE)
    world.engines.answer = wrong
    (found,) = world.run(world.tokens(PICTURE))
    assert (found.content, found.source) == (array("I", [7, 7, 7]).tobytes(), TokenSource.ENGINE)
    assert world.engines.asked[0]["messages"] == PICTURE.messages
    assert not world.condition


@pytest.mark.parametrize("renders", [False, True])
def test_what_an_engine_makes_of_media_proves_nothing_of_others(path: Path, renders: bool) -> None:
    world = World(path, ENGINE)
    world.engines.answer = lambda asked: tokens_answer([5, 6, 7])
    if renders:
        world.engines.rendering = rendering()
    other = Engine("http://other", "vLLM")

    async def joined() -> Tokens:
        world.engines.engines.append(other)
        return await world.tokenizer.tokens(PICTURE)

    alone, beside = world.run(world.tokens(PICTURE), joined)
    assert alone.is_proven
    assert not beside.is_proven


@pytest.mark.parametrize("engines", [[], [Engine("http://engine", "SGLang")]])
def test_media_have_no_tokens_where_no_engine_can_be_asked(
    path: Path, engines: list[Engine]
) -> None:
    world = World(path, *engines)
    with pytest.raises(NoTokensError) as refused:
        world.run(world.tokens(PICTURE))
    assert refused.value.reason is NoTokens.MEDIA
    assert not world.engines.asked


def test_an_engine_says_what_it_calls_images_and_where_they_are(path: Path) -> None:
    world = World(path, ENGINE)
    world.engines.rendering = rendering()
    (found,) = world.run(world.tokens(PICTURE))
    assert (found.content, found.source) == (array("I", [5, 6, 6, 7]).tobytes(), TokenSource.ENGINE)
    assert found.media == [MediaItem("a3f1", 1, 2, "image")]
    [asked] = world.engines.rendered
    assert (asked["messages"], asked["mm_payload"]) == (PICTURE.messages, "none")
    assert not world.engines.asked
    world.engines.answer = wrong
    (found,) = world.run(world.tokens(PICTURE._replace(truncation=Truncation(2, is_left=True))))
    assert (found.length, found.media) == (2, ()), "places are those of the whole prompt"


TENSORS = {"image": ["QUJD"]}


@pytest.mark.parametrize(
    "answer",
    [
        no_rendering,
        rendering(kwargs_data=TENSORS),
        rendering(mm_hashes={"image": []}),
        rendering(mm_hashes={}, mm_placeholders={}),
        lambda asked: EngineAnswer(200, b'[[{"role": "user"}], [{"prompt_token_ids": [1]}]]'),
        lambda asked: EngineAnswer(404, b""),
        silent,
    ],
)
def test_an_engine_that_does_not_say_so_is_asked_for_tokens_alone(
    path: Path, answer: Callable[[dict[str, Any]], EngineAnswer]
) -> None:
    world = World(path, ENGINE)
    world.engines.rendering, world.engines.answer = answer, wrong

    async def later() -> None:
        world.time.now += module.RENDER_PAUSE_S
        world.engines.rendering = rendering()

    first, second, _, third = world.run(
        world.tokens(PICTURE), world.tokens(PICTURE), later, world.tokens(PICTURE)
    )
    assert [one.length for one in (first, second, third)] == [3, 3, 4]
    assert (len(world.engines.rendered), len(world.engines.asked)) == (2, 2)


def test_what_a_client_has_sent_wrong_ends_no_asking(path: Path) -> None:
    world = World(path, ENGINE)
    world.engines.answer = wrong
    world.engines.rendering = lambda asked: EngineAnswer(400, b"")
    world.run(world.tokens(PICTURE), world.tokens(PICTURE))
    assert (len(world.engines.rendered), len(world.engines.asked)) == (2, 2)


def test_an_engine_that_is_slow_with_media_is_asked_about_text(path: Path) -> None:
    world = World(path, ENGINE, models=False)
    right, world.engines.answer = world.engines.answer, silent

    async def media() -> NoTokens:
        with pytest.raises(NoTokensError) as refused:
            await world.tokenizer.tokens(PICTURE)
        return refused.value.reason

    async def later() -> NoTokens:
        world.engines.answer = right
        world.time.now += module.MEDIA_PAUSE_S - 1
        return await media()

    first, second, text = world.run(media, later, world.tokens(TEXT))
    assert (first, second) == (NoTokens.ENGINE_SILENT, NoTokens.ENGINE_SILENT)
    assert [("messages" in one) for one in world.engines.asked] == [True, False]
    assert text.content == whole(TEXT.text)


def test_chats_with_media_that_are_asked_about_at_once_are_bounded(path: Path) -> None:
    world = World(path, ENGINE)
    world.engines.answer = wrong

    async def many() -> list[Any]:
        asked = [world.tokenizer.tokens(PICTURE) for _ in range(module.MEDIA_AT_ONCE_MAX + 2)]
        return await asyncio.gather(*asked, return_exceptions=True)

    ((*found, one, other),) = world.run(many)
    assert all(not isinstance(each, BaseException) for each in found)
    assert one.reason is other.reason is NoTokens.BUSY
    (again,) = World(path, ENGINE).run(world.tokens(PICTURE))
    assert again.length


def test_a_difference_of_a_response_is_none_of_chats(path: Path) -> None:
    world = World(path, ENGINE)
    response = HI._replace(is_response=True)
    (found,) = world.run(world.tokens(response))
    world.tokenizer.counted(response, found, found.length + 1)
    standings = world.tokenizer.models["m"].standings
    assert standings[Form.RESPONSE] is Standing.DIFFERENT
    assert standings[Form.CHAT] is not Standing.DIFFERENT
    assert "(response)" in world.condition
