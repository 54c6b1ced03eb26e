"""Settings, tokens, tables and counts, each alone."""

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from fake_services import FakeEngine, FakeReprise, tokens_of
from litellm.proxy.types_utils.utils import get_instance_fn
from reprise_client import client, tokens
from reprise_client.client import Client, Http, Pause, Report, Unanswered
from reprise_client.local_tokens import LocalTokenizer
from reprise_client.tokens import Tokenizer, question
from reprise_litellm import RepriseCallback, Settings, attempts
from reprise_litellm.attempts import Attempt, Attempts
from reprise_litellm.settings import engine_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_proxy_finds_the_callback_by_its_name() -> None:
    found = get_instance_fn("reprise_litellm.callback", "/nowhere/config.yaml")
    assert isinstance(found, RepriseCallback)


def test_settings_are_read_from_the_environment() -> None:
    assert Settings.of_environment({}) == Settings()
    given = {
        "REPRISE_URL": "http://reprise:1",
        "REPRISE_API_KEY": "rk_1",
        "REPRISE_TIMEOUT_MS": "50",
        "REPRISE_TOKENIZE_TIMEOUT_MS": "1000",
        "REPRISE_ON_REFUSAL": "refuse",
        "REPRISE_TOKENIZER": "/models/m",
    }
    expected = Settings("http://reprise:1", "rk_1", 0.05, 1.0, True, "/models/m")
    assert Settings.of_environment(given) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("REPRISE_URL", "reprise:13333"),
        ("REPRISE_TIMEOUT_MS", "0"),
        ("REPRISE_TIMEOUT_MS", "nan"),
        ("REPRISE_TIMEOUT_MS", "soon"),
        ("REPRISE_TOKENIZE_TIMEOUT_MS", "60001"),
        ("REPRISE_ON_REFUSAL", "maybe"),
    ],
)
def test_a_setting_that_is_wrong_is_named(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected .* got '{text}'"):
        Settings.of_environment({name: text})


def test_an_engine_is_what_the_deployment_says() -> None:
    params = {"model": "hosted_vllm/a/b", "api_base": "http://e:1/v1/", "api_key": None}
    engine = engine_of(
        {"litellm_params": params, "model_info": {"id": "x", "reprise": {"instance_id": "n"}}}
    )
    assert engine is not None
    assert (engine.url, engine.served_model, engine.api_key) == ("http://e:1", "a/b", "")
    assert engine.scope == ("a/b", 16, "default", "")


@pytest.mark.parametrize(
    "info",
    [
        None,
        {},
        {"id": "x"},
        {"id": "x", "reprise": "n"},
        {"reprise": {"instance_id": "n"}},
        {"id": "x", "reprise": {"instance_id": "n", "block_size": "16"}},
    ],
)
def test_a_deployment_that_says_it_wrong_is_none(info: Any) -> None:
    deployment = {"litellm_params": {"model": "m", "api_base": "http://e"}, "model_info": info}
    assert engine_of(deployment) is None


CHAT = [{"role": "user", "content": "hi"}]


def test_a_question_is_what_the_engine_would_template() -> None:
    assert question("m", {"messages": CHAT, "temperature": 0}) == {"model": "m", "messages": CHAT}
    calls = [*CHAT, {"role": "assistant", "content": None, "tool_calls": []}]
    assert question("m", {"messages": calls}) == {"model": "m", "messages": calls}
    text = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert question("m", {"messages": text}) == {"model": "m", "messages": text}
    assert question("m", {"prompt": "hi", "messages": CHAT}) == {"model": "m", "prompt": "hi"}
    for prompt in ([1, 2], [[1, 2]]):
        found = question("m", {"prompt": prompt})
        assert found is not None
        assert list(found) == [1, 2]


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"messages": []},
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"prompt": ["a", "b"]},
        {"prompt": [[1], [2]]},
        {"prompt": [1, -1]},
        {"prompt": [1, 2**32]},
        {"prompt": [True]},
        {"prompt": None},
    ],
)
def test_what_tokens_do_not_say_is_not_asked(request_: dict[str, Any]) -> None:
    assert question("m", request_) is None


def test_the_cache_of_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine("e")
    size = len(tokens_of({"prompt": "0"}))
    monkeypatch.setattr(tokens, "CACHED_PROMPTS_MAX", 3)
    monkeypatch.setattr(tokens, "CACHED_TOKENS_MAX", 2 * size)

    async def story() -> list[bool]:
        tokenizer = Tokenizer(Http(), 5.0)
        found = []
        for prompt in ("0", "1", "0", "2", "1", "2"):
            got, source = await tokenizer.tokens([(engine.url, "")], {"prompt": prompt})
            assert list(got) == tokens_of({"prompt": prompt})
            found.append(source == "cached")
        await tokenizer.tokens([(engine.url, "")], {"prompt": "x" * 3 * size})
        assert (await tokenizer.tokens([(engine.url, "")], {"prompt": "2"}))[1] == "cached"
        return found

    try:
        # "2" takes the place of "1", which was used before "0".
        assert asyncio.run(story()) == [False, False, True, False, False, True]
    finally:
        engine.close()


def test_an_engine_that_does_not_tokenise_is_left_out_for_a_while() -> None:
    engines = [FakeEngine("good"), FakeEngine("bad")]
    engines[1].tokenize_reply = (500, b"")

    async def story() -> int:
        tokenizer = Tokenizer(Http(), 5.0)
        failed = 0
        for number in range(30):
            try:
                pairs = [(one.url, "") for one in engines]
                await tokenizer.tokens(pairs, {"prompt": str(number)})
            except Unanswered:
                failed += 1
        return failed

    try:
        assert 1 <= asyncio.run(story()) < 5
    finally:
        for engine in engines:
            engine.close()


TEMPLATE = (
    "{{ bos_token }}{% for one in messages %}<{{ one.role }}>{{ one.content }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<go>{% endif %}"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The directory of a model whose tokenizer has a token for each byte."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["hello there"], trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def ids(model: Path, text: str) -> list[int]:
    found = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    return list(found.encode(text, add_special_tokens=False).ids)


def test_tokens_are_made_by_the_models_own_tokenizer(model: Path) -> None:
    local = LocalTokenizer(str(model))
    assert list(local.tokens({"model": "m", "prompt": "hi"})) == ids(model, "<s>hi")
    chat = {"model": "m", "messages": CHAT}
    assert list(local.tokens(chat)) == ids(model, "<s><user>hi<go>")
    parts = [{"role": "user", "content": [{"type": "text", "text": one} for one in "ab"]}]
    found = local.tokens({"messages": parts, "add_generation_prompt": False, "tools": [{"é": 1}]})
    assert list(found) == ids(model, '<s><user>a\nb[{"é": 1}]')
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert list(LocalTokenizer(str(model)).tokens(chat)) == ids(model, "hi")


def test_no_engine_is_asked_by_who_waits_where_there_is_a_tokenizer(model: Path) -> None:
    engine = FakeEngine("busy")
    engine.tokenize_reply = (503, b"")

    async def story() -> list[str]:
        tokenizer = Tokenizer(Http(), 5.0)
        engines = [(engine.url, "")]
        prompts = [{"prompt": str(number)} for number in (*range(30), 0)]
        return [(await tokenizer.tokens(engines, one, str(model)))[1] for one in prompts]

    try:
        assert asyncio.run(story()) == ["local"] * 30 + ["cached"]
    finally:
        engine.close()


def test_a_long_prompt_holds_up_no_other_request(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are made in a thread; those of a short one would wait longer for theirs."""
    monkeypatch.setattr("reprise_client.tokens.INLINE_CHARACTERS_MAX", 8)
    made: list[bool] = []
    itself = LocalTokenizer.tokens

    def tokens(local: LocalTokenizer, asked: dict[str, Any]) -> Any:
        made.append(threading.current_thread() is threading.main_thread())
        return itself(local, asked)

    monkeypatch.setattr(LocalTokenizer, "tokens", tokens)

    async def story() -> None:
        tokenizer = Tokenizer(Http(), 5.0)
        for asked in ({"prompt": "8 of them"}, {"prompt": "hi"}, {"messages": CHAT}):
            assert (await tokenizer.tokens([], asked, str(model)))[1] == "local"

    asyncio.run(story())
    assert made == [False, True, True]


def test_a_tokenizer_that_is_not_the_engines_is_found_out(model: Path) -> None:
    engine = FakeEngine("other")
    report = Report(logging.getLogger("reprise_test"))

    async def story() -> str:
        tokenizer = Tokenizer(Http(), 5.0, report)
        engines = [(engine.url, "")]
        assert (await tokenizer.tokens(engines, {"prompt": "0"}, str(model)))[1] == "local"
        await asyncio.to_thread(engine.wait, lambda: report.counts.get("tokenizer_differs"))
        return (await tokenizer.tokens(engines, {"prompt": "1"}, str(model)))[1]

    async def noted() -> str:
        told = asyncio.create_task(story())
        while not told.done():  # the engine's condition is told by its requests alone
            with engine.changed:
                engine.changed.notify_all()
            await asyncio.sleep(0.01)
        return await told

    try:
        assert asyncio.run(noted()) == "asked"
    finally:
        engine.close()


@pytest.mark.parametrize("content", [None, "{", '{"version": "1.0"}'])
def test_without_one_that_can_be_read_the_engine_is_asked(
    tmp_path: Path, content: str | None
) -> None:
    engine = FakeEngine("e")
    report = Report(logging.getLogger("reprise_test"))
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)

    async def story() -> list[str]:
        tokenizer = Tokenizer(Http(), 5.0, report)
        found = [
            await tokenizer.tokens([(engine.url, "")], {"prompt": one}, str(tmp_path))
            for one in "abc"
        ]
        with pytest.raises(Unanswered, match="no_engine"):
            await tokenizer.tokens([], {"prompt": "d"}, str(tmp_path))
        return [source for _, source in found]

    try:
        assert asyncio.run(story()) == ["asked"] * 3
        assert report.counts == {"tokenizer_unreadable": 1}
    finally:
        engine.close()


def test_failures_are_logged_once_a_minute_and_none_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    report = Report(logging.getLogger("reprise_test"), clock)
    with caplog.at_level("INFO", "reprise_test"):
        report.fail("a")
        for _ in range(3):
            report.fail("b")
        report.count("c")
        clock.now += 59.9
        report.fail("b")
        assert len(caplog.records) == 1
        clock.now += 0.2
        report.fail("a")
    assert [one.getMessage().rsplit(": ")[-1] for one in caplog.records] == ["a 1", "a 1, b 4"]
    assert report.counts == {"a": 2, "b": 4, "c": 1}


def asked(pause: Pause, *, works: bool) -> None:
    began = pause.begin()
    (pause.worked if works else pause.failed)(began)


def test_a_pause_begins_where_many_of_the_last_questions_fail_in_whatever_order() -> None:
    for every in (1, 2, 4):
        pause = Pause(Clock())
        for number in range(1, 5 * every):
            asked(pause, works=number % every > 0)
            assert not pause.active
        asked(pause, works=False)
        assert pause.active
    pause = Pause(Clock())
    for number in range(1, 100):
        asked(pause, works=number % 5 > 0)
    assert not pause.active, "one of five is borne"


def test_a_pause_ends_by_a_trial_that_works_or_is_longer_next_time() -> None:
    clock = Clock()
    pause = Pause(clock)
    late = pause.begin()
    for _ in range(5):
        asked(pause, works=False)
    lengths = []
    for _ in range(7):
        since = clock.now
        while pause.active:
            clock.now += 0.5
        lengths.append(clock.now - since)
        began = pause.begin()
        assert pause.active, "the others wait for the trial"
        pause.failed(late)
        pause.worked(late)
        pause.failed(began)
    assert lengths == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    clock.now += 30.0
    asked(pause, works=True)
    asked(pause, works=False)
    assert not pause.active


def test_outcomes_that_nobody_takes_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "OUTCOMES_MAX", 3)
    report = Report(logging.getLogger("reprise_test"))
    to = Client("http://127.0.0.1:1", report)
    for number in range(5):
        to.tell({"decision_id": str(number), "event": "completed"})
    assert report.counts == {"outcomes_dropped": 2}


def test_what_waits_is_sent_at_the_end_in_posts_of_bounded_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "OUTCOMES_PER_POST_MAX", 2)
    reprise = FakeReprise()
    report = Report(logging.getLogger("reprise_test"))

    async def story() -> None:
        to = Client(reprise.url, report, timeout_s=5.0)
        for number in range(5):
            to.tell({"decision_id": str(number), "event": "completed"})
        await to.route({"candidates": [{"instance_id": "a"}]})
        await asyncio.to_thread(to.close, 20.0)

    try:
        asyncio.run(story())
        posts = reprise.bodies("/feedback")
        assert [[one["decision_id"] for one in post] for post in posts] == [
            ["0", "1"],
            ["2", "3"],
            ["4"],
        ]
        assert report.counts == {"outcomes_sent": 5}
    finally:
        reprise.close()


def test_outcomes_that_cannot_be_sent_are_counted() -> None:
    report = Report(logging.getLogger("reprise_test"))

    async def story() -> None:
        to = Client("http://127.0.0.1:1", report, timeout_s=20.0)
        to.tell({"decision_id": "1", "event": "completed"})
        with pytest.raises(Unanswered, match="unreachable"):
            await to.route({})
        await asyncio.to_thread(to.close, 20.0)

    asyncio.run(story())
    assert report.counts == {"outcomes_lost": 1}


def test_attempts_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DECIDED_MAX", "CALLS_MAX", "FAILED_TRACES_MAX"):
        monkeypatch.setattr(attempts, name, 2)
    known = Attempts()
    for number in range(3):
        known.decided(f"t{number}", "d", Attempt(str(number), "e", 0))
    assert known.sent("t0", "d", "c0") is None
    assert known.sent("t1", "other", "c1") is None
    for number in (1, 2):
        found = known.sent(f"t{number}", "d", f"c{number}")
        assert found is not None
        assert found.decision_id == str(number)
    assert known.ended("c1", failed=True) is not None
    assert known.ended("c1", failed=False) is None
    assert known.failed_deployments("t1") == {"d"}
    known.decided("t1", "d", Attempt("9", "e", 0))
    known.sent("t1", "d", "c9")
    known.ended("c9", failed=False)
    assert known.failed_deployments("t1") == frozenset()
