"""Settings, prompts, tables and counts, each alone."""

import asyncio
import logging
from typing import Any

import pytest
from fake_services import FakeReprise
from litellm.proxy.types_utils.utils import get_instance_fn
from reprise_client import client
from reprise_client.client import Client, Pause, Report, Unanswered
from reprise_client.prompt import prompt_of
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
        "REPRISE_ON_REFUSAL": "refuse",
    }
    expected = Settings("http://reprise:1", "rk_1", 0.05, True)
    assert Settings.of_environment(given) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("REPRISE_URL", "reprise:13333"),
        ("REPRISE_TIMEOUT_MS", "0"),
        ("REPRISE_TIMEOUT_MS", "nan"),
        ("REPRISE_TIMEOUT_MS", "soon"),
        ("REPRISE_TIMEOUT_MS", "60001"),
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
    assert (engine.deployment_id, engine.instance_id) == ("x", "n")
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


def test_a_prompt_is_what_the_engine_would_template() -> None:
    assert prompt_of({"messages": CHAT, "temperature": 0}) == {"messages": CHAT}
    calls = [*CHAT, {"role": "assistant", "content": None, "tool_calls": []}]
    assert prompt_of({"messages": calls}) == {"messages": calls}
    text = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert prompt_of({"messages": text}) == {"messages": text}
    thinks = {"messages": CHAT, "reasoning_effort": "low"}
    assert prompt_of(thinks) == thinks
    for prompt in ("hi", ["hi"]):
        assert prompt_of({"prompt": prompt, "messages": CHAT}) == {"prompt": "hi"}
    for tokens in ([1, 2**32 - 1], [[1, 2**32 - 1]]):
        assert prompt_of({"prompt": tokens}) == {"token_ids": [1, 2**32 - 1]}


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
        {"prompt": []},
        {"prompt": None},
    ],
)
def test_what_tokens_do_not_say_is_not_asked(request_: dict[str, Any]) -> None:
    assert prompt_of(request_) is None


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
