"""Which engines there are for a model."""

import asyncio

import pytest

from gateway.fleet import Fleet
from gateway.names import EngineNames
from schemas.clock import REAL_CLOCK
from schemas.registration import NO_EVENTS, SGLANG, VLLM, PublisherKind, Registration
from tests.fakes import FakeTable

ENGINE = Registration(
    endpoint="",
    kind=NO_EVENTS,
    model_name="m",
    instance_id="a",
    block_size=16,
    http_endpoint="http://127.0.0.1:8000",
)


def test_engines_are_known_as_soon_as_a_service_that_was_started_has_read_its_log() -> None:
    table = FakeTable()
    table.ready = False
    fleet = Fleet(table, EngineNames(), clock=REAL_CLOCK._replace(monotonic=lambda: 100.0))
    assert fleet.model("default", "m") is None
    asyncio.run(table.register(ENGINE))
    table.ready = True
    assert fleet.model("default", "m") is not None, "however short ago it looked"


def engine(name: str, kind: PublisherKind) -> Registration:
    """At an address of its own."""
    port = {"s": 30000, "v": 8000}[name]
    return Registration(
        endpoint=f"tcp://127.0.0.1:{port + 1}",
        kind=kind,
        model_name="m:7b",
        instance_id=name,
        block_size=16,
        http_endpoint=f"http://127.0.0.1:{port}",
    )


@pytest.mark.parametrize(
    ("name", "lora_path", "due"),
    [
        ("m:7b", "", ("", "sv")),
        ("m:7b", "sql", ("sql", "s")),
        ("m:7b:sql", "", ("sql", "s")),
        ("m:7b:sql", "other", ("sql", "s")),
        ("m:sql", "", None),
        ("sql", "", ("sql", "v")),
        ("sql:m:7b", "", None),
    ],
)
def test_an_adapter_is_named_as_sglang_has_it(
    name: str, lora_path: str, due: tuple[str, str] | None
) -> None:
    """Behind a colon, or apart; vLLM passes that over."""
    table, names = FakeTable(), EngineNames()
    for one in (engine("s", SGLANG), engine("v", VLLM)):
        table.add(one)
    names.note("http://127.0.0.1:8000", b'{"data": [{"id": "sql", "parent": "m:7b"}]}')
    found = Fleet(table, names).model("default", name, lora_path)
    if found is None:
        assert due is None
        return
    assert due is not None
    assert (found.name, found.lora_name) == ("m:7b", due[0])
    assert "".join(sorted(instance_id for instance_id, _ in found.targets)) == due[1]


def test_sglang_computes_with_the_model_itself_what_names_an_adapter_alone() -> None:
    table, names = FakeTable(), EngineNames()
    table.add(engine("s", SGLANG))
    names.note("http://127.0.0.1:30000", b'{"data": [{"id": "sql", "parent": "m:7b"}]}')
    found = Fleet(table, names).model("default", "sql")
    assert found is not None
    assert (found.name, found.lora_name) == ("m:7b", "")
