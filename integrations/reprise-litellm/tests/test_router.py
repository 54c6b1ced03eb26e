"""LiteLLM's released Router, asynchronous, over HTTP to engines; Reprise as its contract has it."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import litellm
import pytest
from fake_services import FakeEngine, FakeReprise
from litellm import Router
from reprise_litellm import RepriseCallback, Settings

MESSAGES: list[Any] = [{"role": "user", "content": "Who holds the longest prefix?"}]


class Routed:
    """A router with the callback.

    Attributes:
        ask: a completion, which returns the name of the engine that answered.
    """

    def __init__(self, reprise: FakeReprise, engines: list[FakeEngine]) -> None:
        self.reprise = reprise
        self.engines = engines
        self.callback = RepriseCallback(Settings(url=reprise.url, timeout_s=20.0))
        self.options: dict[str, Any] = {"num_retries": 0, "disable_cooldowns": True}
        self.params: list[dict[str, Any]] = [{} for _ in engines]
        self.info: list[dict[str, Any]] = [
            {"reprise": {"instance_id": one.name, "model": "llama", "block_size": 16}}
            for one in engines
        ]

    def uses(self, **settings: Any) -> None:
        self.callback = RepriseCallback(
            Settings(**{"url": self.reprise.url, "timeout_s": 20.0, **settings})
        )
        litellm.callbacks = [self.callback]

    def router(self) -> Router:
        litellm.callbacks = [self.callback]
        return Router(
            model_list=[
                {
                    "model_name": "m",
                    "litellm_params": {
                        "model": "hosted_vllm/meta/llama",
                        "api_base": f"{engine.url}/v1",
                        "api_key": f"key-of-{engine.name}",
                        **params,
                    },
                    "model_info": info,
                }
                for engine, params, info in zip(self.engines, self.params, self.info, strict=True)
            ],
            **self.options,
        )

    async def ask(self, router: Router | None = None, **fields: Any) -> str:
        given = {"model": "m", "messages": MESSAGES, **fields}
        answer = await (router or self.router()).acompletion(**given)
        name: str = answer.choices[0].message.content
        return name

    @property
    def counts(self) -> dict[str, int]:
        return self.callback.report.counts


@pytest.fixture
def routed(reprise: FakeReprise, engines: list[FakeEngine]) -> Iterator[Routed]:
    # LiteLLM keeps those it has seen in more lists, where one of a kind is enough for it.
    manager: Any = litellm.logging_callback_manager
    manager._reset_all_callbacks()
    yield Routed(reprise, engines)
    manager._reset_all_callbacks()


async def to_thread(act: Callable[..., Any], *args: Any) -> Any:
    """What blocks, beside the loop in which LiteLLM works."""
    return await asyncio.to_thread(act, *args)


def test_the_engine_that_reprise_names_answers(routed: Routed) -> None:
    async def story() -> None:
        router = routed.router()
        for name in ("engine-2", "engine-0", "engine-1", "engine-1"):
            routed.reprise.chosen = name
            assert await routed.ask(router) == name

    asyncio.run(story())
    assert routed.counts["routed"] == 4
    questions = routed.reprise.bodies("/route")
    assert len({str({**one, "request_id": ""}) for one in questions}) == 1
    asked = questions[0]
    assert asked["model"] == "llama"
    assert asked["block_size"] == 16
    assert asked["messages"] == MESSAGES
    assert {one["instance_id"] for one in asked["candidates"]} == {
        "engine-0",
        "engine-1",
        "engine-2",
    }
    assert len({one["request_id"] for one in questions}) == 4, "or the first answer comes again"


def test_what_changes_the_template_is_part_of_the_prompt(routed: Routed) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    body = {"chat_template_kwargs": {"enable_thinking": False}}
    asyncio.run(routed.ask(tools=tools, extra_body=body))
    [question] = routed.reprise.bodies("/route")
    said = {name: question.get(name) for name in ("messages", "tools", "chat_template_kwargs")}
    assert said == {"messages": MESSAGES, "tools": tools, **body}


def test_an_answer_is_told_with_what_was_cached(routed: Routed) -> None:
    async def story() -> Any:
        await routed.ask()
        return await to_thread(routed.reprise.outcome, "completed")

    outcome = asyncio.run(story())
    assert outcome.pop("at") > 1.6e9
    assert outcome == {
        "decision_id": "d1",
        "event": "completed",
        "instance_id": "engine-0",
        "dp_rank": 0,
        "prompt_tokens": 40,
        "output_tokens": 2,
        "cached_tokens": 32,
    }


def test_the_first_token_of_a_stream_is_told_before_its_end(routed: Routed) -> None:
    async def story() -> None:
        for engine in routed.engines:
            engine.opened.clear()
        stream = await routed.router().acompletion(model="m", messages=MESSAGES, stream=True)
        text = [(await anext(stream)).choices[0].delta.content]
        told = await to_thread(routed.reprise.outcome, "first_token")
        assert told["ttft_ms"] > 0
        assert told["decision_id"] == "d1"
        assert not routed.reprise.outcomes("completed")
        for engine in routed.engines:
            engine.opened.set()
        text += [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]
        assert "".join(filter(None, text)) == "ab"
        done = await to_thread(routed.reprise.outcome, "completed")
        assert done["cached_tokens"] == 32

    asyncio.run(story())
    assert len(routed.reprise.outcomes("first_token")) == 1
    assert not routed.reprise.outcomes("cancelled")


def test_a_stream_that_nobody_reads_any_more_is_cancelled(routed: Routed) -> None:
    async def story() -> None:
        for engine in routed.engines:
            engine.opened.clear()
        stream = await routed.router().acompletion(model="m", messages=MESSAGES, stream=True)
        await anext(stream)
        await stream.aclose()
        del stream
        gc.collect()
        told = await to_thread(routed.reprise.outcome, "cancelled")
        assert told["decision_id"] == "d1"

    asyncio.run(story())


def test_an_engine_that_fails_is_told_and_the_next_attempt_goes_elsewhere(routed: Routed) -> None:
    routed.options["num_retries"] = 2
    routed.reprise.chosen = "engine-1"
    routed.engines[1].failing = True

    async def story() -> str:
        name = await routed.ask()
        await to_thread(routed.reprise.outcome, "completed")
        return name

    assert asyncio.run(story()) != "engine-1"
    [failed] = routed.reprise.outcomes("failed")
    assert failed["decision_id"] == "d1"
    assert failed["instance_id"] == "engine-1"
    assert failed["error"].startswith("InternalServerError")
    second = routed.reprise.bodies("/route")[1]
    assert "engine-1" not in {one["instance_id"] for one in second["candidates"]}
    assert routed.reprise.outcome("completed")["decision_id"] == "d2"
    assert routed.engines[1].completions == 1


def test_a_service_that_is_too_busy_costs_few_requests_anything(routed: Routed) -> None:
    routed.reprise.hangs()
    routed.uses(timeout_s=0.05)

    async def story() -> None:
        router = routed.router()
        for number in range(60):
            await routed.ask(router, messages=[{"role": "user", "content": str(number)}])

    asyncio.run(story())
    counts = routed.counts
    assert counts["route_timeout"] + counts["route_paused"] == 60
    assert counts["route_timeout"] < 15, "five, and trials"


def test_a_prompt_without_tokens_goes_by_the_load_that_reprise_knows(routed: Routed) -> None:
    def answer(handler: Any, _question: Any) -> None:
        handler.reply(200, routed.reprise.decision("engine-1"), Reprise_Tokens="none; reason=media")

    routed.reprise.answer = answer
    assert asyncio.run(routed.ask()) == "engine-1"
    assert (routed.counts["routed"], routed.counts["route_by_load"]) == (1, 1)


@pytest.mark.parametrize("status", [400, 413, 429])
def test_what_an_engine_refuses_is_no_failure_of_it(routed: Routed, status: int) -> None:
    routed.reprise.chosen = "engine-1"
    routed.engines[1].refusal = status

    async def story() -> Any:
        with pytest.raises(Exception, match="refuses"):
            await routed.ask()
        return await to_thread(routed.reprise.outcome, "cancelled")

    assert asyncio.run(story())["decision_id"] == "d1"
    assert not routed.reprise.outcomes("failed")


def test_text_completions_are_routed(routed: Routed) -> None:
    routed.reprise.chosen = "engine-2"

    async def story() -> None:
        router = routed.router()
        for prompt in ("hello", ["hello"]):
            answer = await router.atext_completion(model="m", prompt=prompt)
            assert answer.choices[0].text == "engine-2"

    asyncio.run(story())
    asked = [one["prompt"] for one in routed.reprise.bodies("/route")]
    assert asked == ["hello", "hello"]


@pytest.mark.parametrize(("ranks", "header"), [(None, None), (1, None), (2, "1")])
def test_the_rank_goes_along_where_the_engine_has_several(
    routed: Routed, ranks: int | None, header: str | None
) -> None:
    for info in routed.info:
        info["reprise"] |= {} if ranks is None else {"dp_ranks": ranks}
    routed.reprise.chosen, routed.reprise.dp_rank = "engine-2", 1
    assert asyncio.run(routed.ask(extra_headers={"X-Other": "o"})) == "engine-2"
    [sent] = routed.engines[2].headers
    names = {name.lower(): value for name, value in sent.items()}
    assert (names.get("x-data-parallel-rank"), names["x-other"]) == (header, "o")


def test_a_cache_salt_is_passed_on(routed: Routed) -> None:
    asyncio.run(routed.ask(cache_salt="blue"))
    assert routed.reprise.bodies("/route")[0]["cache_salt"] == "blue"


def test_images_and_other_calls_go_where_they_go_without_reprise(routed: Routed) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}]
    asyncio.run(routed.ask(messages=messages))
    assert routed.reprise.bodies("/route") == []
    assert routed.counts == {"left_no_text": 1}


def test_deployments_without_an_instance_are_left_to_litellm(routed: Routed) -> None:
    routed.info = [{}, {"reprise": None}, {"reprise": {"instance_id": 7}}]
    asyncio.run(routed.ask())
    assert routed.reprise.bodies("/route") == []
    assert routed.counts == {}


def test_a_rate_limit_of_a_deployment_stays_litellms_affair(routed: Routed) -> None:
    routed.params[0] = {"rpm": 1}
    asyncio.run(routed.ask())
    assert routed.counts == {"left_limits": 1}


def test_a_choice_that_a_later_check_forbids_fails_no_request(routed: Routed) -> None:
    routed.params = [{"tags": [f"t{index}"]} for index in range(3)]
    routed.options["enable_tag_filtering"] = True
    routed.reprise.chosen = "engine-0"
    assert asyncio.run(routed.ask(metadata={"tags": ["t2"]})) == "engine-2"


def test_a_choice_that_is_too_small_for_the_prompt_fails_no_request(routed: Routed) -> None:
    for index, info in enumerate(routed.info):
        info["max_input_tokens"] = 1 if index == 0 else 4096
    routed.options["enable_pre_call_checks"] = True
    routed.reprise.chosen = "engine-0"
    assert asyncio.run(routed.ask()) in ("engine-1", "engine-2")


def test_the_metadata_of_a_user_stays_as_it_was(routed: Routed) -> None:
    metadata: dict[str, Any] = {"user": "u"}
    asyncio.run(routed.ask(metadata=metadata))
    assert "reprise" not in " ".join(key for key in metadata)


HOSTILE: dict[str, tuple[Callable[[FakeReprise], Any], str]] = {
    "garbage": (lambda one: one.replies(200, b"\xff\x00 not json"), "route_garbage"),
    "another document": (lambda one: one.replies(200, b'{"prefill": "a"}'), "route_garbage"),
    "a list": (lambda one: one.replies(200, b"[]"), "route_garbage"),
    "no decision": (
        lambda one: one.replies(200, b'{"prefill": {"instance_id": "engine-0"}}'),
        "route_garbage",
    ),
    "odd rank": (
        lambda one: one.replies(
            200, b'{"decision_id": "d", "prefill": {"instance_id": "engine-0", "dp_rank": "x"}}'
        ),
        "route_garbage",
    ),
    "deep": (lambda one: one.replies(200, b"[" * 100_000), "route_garbage"),
    "nothing": (lambda one: one.replies(200, b""), "route_garbage"),
    "compressed": (
        lambda one: one.replies(200, b"\x1f\x8b", Content_Encoding="gzip"),
        "route_garbage",
    ),
    "floods": (FakeReprise.floods, "route_garbage"),
    "500": (lambda one: one.replies(500, b"oops"), "route_status"),
    "307": (lambda one: one.replies(307, b"", Location="http://127.0.0.1:1/"), "route_status"),
    "404": (lambda one: one.replies(404, b"what"), "route_rejected"),
    "400": (lambda one: one.replies(400, b'{"reason": "invalid_type"}'), "route_rejected"),
    "503": (lambda one: one.replies(503, b'{"reason": "no_candidate"}'), "route_no_candidate"),
    "429": (lambda one: one.replies(429, b'{"reason": "x"}', Retry_After="7"), "refused"),
    "429 that is odd": (lambda one: one.replies(429, b"{}", Retry_After="-1e9"), "refused"),
    "429 with garbage": (lambda one: one.replies(429, b"\xff"), "route_garbage"),
    "another instance": (
        lambda one: one.replies(200, one.decision("somebody")),
        "unknown_instance",
    ),
    "hangs up": (FakeReprise.hangs_up, "route_unreachable"),
    "hangs": (FakeReprise.hangs, "route_timeout"),
    "trickles": (FakeReprise.trickles, "route_timeout"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_reprise_answers_the_user_is_served(routed: Routed, kind: str) -> None:
    act, counted = HOSTILE[kind]
    act(routed.reprise)
    if counted == "route_timeout":
        routed.uses(timeout_s=0.1)

    async def story() -> None:
        router = routed.router()
        assert (await routed.ask(router)).startswith("engine-")
        counts = {name: n for name, n in routed.counts.items() if not name.startswith("outcomes")}
        assert counts == {counted: 1}
        if counted != "route_timeout":
            routed.reprise.recovers()
            routed.reprise.chosen = "engine-2"
            assert await routed.ask(router) == "engine-2"

    asyncio.run(story())


def test_a_service_that_is_down_is_soon_not_asked_any_more(
    routed: Routed, caplog: pytest.LogCaptureFixture
) -> None:
    routed.reprise.close()

    async def story() -> None:
        router = routed.router()
        for _ in range(9):
            assert (await routed.ask(router)).startswith("engine-")

    with caplog.at_level("WARNING", "reprise_litellm"):
        asyncio.run(story())
    counts = routed.counts
    assert counts["route_unreachable"] >= 5
    assert counts["route_unreachable"] + counts.get("route_paused", 0) == 9
    assert len([one for one in caplog.records if one.name == "reprise_litellm"]) == 1


def test_what_was_booked_for_nobody_is_cancelled(routed: Routed) -> None:
    routed.uses(timeout_s=0.1)
    routed.reprise.hangs()

    async def story() -> Any:
        await routed.ask()
        return await to_thread(routed.reprise.outcome, "cancelled")

    [question] = [asyncio.run(story())["request_id"]]
    assert question == routed.reprise.bodies("/route")[0]["request_id"]


def test_a_refusal_is_passed_on_where_it_counts(routed: Routed) -> None:
    routed.uses(refuse=True)
    routed.reprise.replies(429, b'{"error": "no", "reason": "slo_unreachable"}', Retry_After="7")
    with pytest.raises(litellm.RateLimitError, match=r"slo_unreachable.*7 s") as caught:
        asyncio.run(routed.ask())
    assert caught.value.status_code == 429
    assert sum(engine.completions for engine in routed.engines) == 0


@pytest.mark.parametrize(
    "strategy", ["simple-shuffle", "least-busy", "latency-based-routing", "cost-based-routing"]
)
def test_every_strategy_of_litellm_chooses_from_what_is_left(routed: Routed, strategy: str) -> None:
    routed.options["routing_strategy"] = strategy
    routed.reprise.chosen = "engine-1"
    assert asyncio.run(routed.ask()) == "engine-1"


def test_many_at_once_each_get_their_own_decision(routed: Routed) -> None:
    async def story() -> None:
        router = routed.router()

        async def one(number: int) -> None:
            messages = [{"role": "user", "content": f"question {number}"}]
            await routed.ask(router, messages=messages)

        await asyncio.gather(*(one(number) for number in range(20)))
        done: Callable[[], Any] = lambda: len(routed.reprise.outcomes("completed")) == 20  # noqa: E731
        await to_thread(routed.reprise.wait, done)

    asyncio.run(story())
    ended = {one["decision_id"] for one in routed.reprise.outcomes("completed")}
    assert ended == {f"d{number}" for number in range(1, 21)}


def test_a_synchronous_call_is_litellms_own(routed: Routed) -> None:
    answer: Awaitable[Any] | Any = routed.router().completion(model="m", messages=MESSAGES)
    assert answer.choices[0].message.content.startswith("engine-")
    assert routed.reprise.bodies("/route") == []


@pytest.mark.parametrize(("cache_hit", "event"), [(True, "cancelled"), (None, "completed")])
def test_an_answer_of_litellms_own_cache_is_no_outcome(
    routed: Routed, cache_hit: bool | None, event: str
) -> None:
    """LiteLLM looks into its cache behind the hook, and tells of a hit as of any success. (Its
    cache needs more than is installed here.)
    """

    async def story() -> Any:
        deployments = [
            {
                "model_name": "m",
                "litellm_params": {"model": "hosted_vllm/meta/llama", "api_base": f"{one.url}/v1"},
                "model_info": {**info, "id": one.name},
            }
            for one, info in zip(routed.engines, routed.info, strict=True)
        ]
        request: dict[str, Any] = {"messages": MESSAGES, "litellm_trace_id": "t"}
        [left] = await routed.callback.async_filter_deployments("m", deployments, None, request)
        call = {"model_info": left["model_info"], "litellm_call_id": "c", "litellm_trace_id": "t"}
        await routed.callback.async_pre_call_deployment_hook(call, None)
        answer = litellm.ModelResponse(usage=litellm.Usage(prompt_tokens=40, completion_tokens=2))
        told = {"litellm_call_id": "c", "cache_hit": cache_hit}
        await routed.callback.async_log_success_event(told, answer, None, None)
        return await to_thread(routed.reprise.outcome, event)

    told = asyncio.run(story())
    assert ("prompt_tokens" in told) is (event == "completed")
