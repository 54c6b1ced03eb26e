"""Engines that may be asked for tokens: the registered ones that have an HTTP server."""

import asyncio
import json

import pytest
from msgspec.structs import replace

from reprise.registered_engines import LOOK_S, RegisteredEngines
from schemas.clock import REAL_CLOCK, Clock
from schemas.engine_facts import EngineFacts
from schemas.errors import RepriseError
from schemas.positions import Confirmation, PublisherState
from schemas.registration import ATOM, MOONCAKE, NO_EVENTS, SGLANG, VLLM, PublisherKind
from tests.engine_http import engine_server
from tests.fakes import FakeTable, registration
from tokens.interface import Engine


class Stopped:
    """A clock that stands."""

    now = 50.0

    def clock(self) -> Clock:
        return REAL_CLOCK._replace(monotonic=lambda: self.now)


def test_engines_are_found_by_tenant_and_model_and_by_their_adapters(table: FakeTable) -> None:
    time = Stopped()
    engines = RegisteredEngines(table, time.clock())
    assert engines.of_model("m", "") == ()
    url = "http://10.0.0.7:8000"
    for one in (
        registration("a", http_endpoint=url),
        registration("a", dp_rank=1, http_endpoint=url),
        registration("b", lora_name="ad", http_endpoint="http://10.0.0.8:8000"),
        replace(registration("c"), url="worker-3"),
        replace(registration("f", model_name="o", http_endpoint=url), url="http://10.0.0.6:9000"),
        replace(registration("e", model_name="p"), url="http://10.0.0.6:9000/"),
        registration("d", tenant_id="t", http_endpoint="http://10.0.0.9:8000"),
    ):
        table.add(one)
    assert engines.of_model("m", "") == ()  # nobody has looked again
    time.now += LOOK_S
    first, second = Engine(url, "vLLM"), Engine("http://10.0.0.8:8000", "vLLM")
    first, second = first._replace(renders=False), second._replace(renders=False)
    assert engines.of_model("m", "") == engines.of_model("m", "default") == [first, second]
    assert engines.of_model("ad", "") == [second]
    assert engines.of_model("m", "t") == [Engine("http://10.0.0.9:8000", "vLLM", renders=False)]
    assert engines.of_model("n", "") == ()
    rank = registration("a", dp_rank=1, http_endpoint=url).publisher
    table.states[rank] = PublisherState(incarnation=3, sequence=0)
    time.now += LOOK_S
    lives = [one.life for one in engines.of_model("m", "")]
    assert lives == [first.life + 3, second.life], "a rank's process is another"
    assert engines.of_model("o", "") == [first], "the HTTP server of the engine itself"
    assert engines.of_model("p", "") == [Engine("http://10.0.0.6:9000", "vLLM", renders=False)]


@pytest.mark.parametrize(
    ("kind", "facts", "renders"),
    [
        (VLLM, EngineFacts(version="0.33.0"), True),
        (VLLM, EngineFacts(version="0.18.0rc1"), True),
        (VLLM, EngineFacts(version="0.17.1"), False),
        (VLLM, EngineFacts(version="dev"), False),
        (VLLM, EngineFacts(), False),
        (VLLM, None, False),
        (SGLANG, EngineFacts(reads_media=False), True),
        (SGLANG, EngineFacts(), True),
        (SGLANG, EngineFacts(reads_media=True), False),
        (SGLANG, None, False),
        (ATOM, None, True),
    ],
)
def test_an_engine_says_whether_it_tokenizes_chats_as_it_renders_them(
    table: FakeTable, kind: PublisherKind, facts: EngineFacts | None, renders: bool
) -> None:
    """vLLM's `--default-chat-template-kwargs` are not in its `/tokenize` before 0.18."""
    one = replace(registration("a", http_endpoint="http://10.0.0.7:8000"), kind=kind)
    table.add(one)
    said = Confirmation("bridge", facts=facts)
    table.states[one.publisher] = PublisherState(incarnation=1, sequence=0, confirmation=said)
    [engine] = RegisteredEngines(table, Stopped().clock()).of_model("m", "")
    assert engine.renders is renders


@pytest.mark.parametrize(
    ("kind", "facts", "completes"),
    [
        (VLLM, None, True),
        (SGLANG, EngineFacts(completes_as_told=True), True),
        (SGLANG, EngineFacts(completes_as_told=False), False),
        (SGLANG, EngineFacts(), False),
        (SGLANG, None, False),
    ],
)
def test_an_sglang_with_a_template_for_completions_is_known(
    table: FakeTable, kind: PublisherKind, facts: EngineFacts | None, completes: bool
) -> None:
    one = replace(registration("a", http_endpoint="http://10.0.0.7:8000"), kind=kind)
    table.add(one)
    said = Confirmation("bridge", facts=facts)
    table.states[one.publisher] = PublisherState(incarnation=1, sequence=0, confirmation=said)
    [engine] = RegisteredEngines(table, Stopped().clock()).of_model("m", "")
    assert engine.completes is completes


def test_an_engine_that_cannot_be_asked_is_known_to_be_there(table: FakeTable) -> None:
    engines = RegisteredEngines(table, Stopped().clock())
    url = "http://10.0.0.7:8000"
    for one in (
        registration("a", model_name="all", http_endpoint=url),
        registration("a", model_name="all", dp_rank=1),
        replace(registration("p", model_name="all"), kind=MOONCAKE),
        registration("c", model_name="some", http_endpoint=url),
        registration("b", model_name="some"),
    ):
        table.add(one)
    silent = replace(registration("n", model_name="all"), kind=NO_EVENTS, endpoint="")
    table.registrations[silent.publisher] = silent
    assert engines.are_all("all", ""), "another rank of an engine, a pool, one without events"
    assert not engines.are_all("some", "")
    assert engines.are_all("unknown", "")


def test_an_engine_is_asked_with_a_body_and_its_answer_is_bounded(table: FakeTable) -> None:
    engines = RegisteredEngines(table, REAL_CLOCK)

    async def asked(bytes_max: int) -> tuple[int, bytes]:
        return await engines.post(
            server.url, "/tokenize", b'{"a": 1}', wait_s=5.0, bytes_max=bytes_max
        )

    with engine_server() as server:
        server.replies["/tokenize"] = (200, b'{"tokens": [1]}')
        assert asyncio.run(asked(4096)) == (200, b'{"tokens": [1]}')
        assert [json.loads(one) for one in server.posted] == [{"a": 1}]
        with pytest.raises(RepriseError, match="more than 50 bytes"):
            asyncio.run(asked(50))
