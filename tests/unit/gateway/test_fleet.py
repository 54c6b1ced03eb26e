"""Which engines there are for a model."""

import asyncio

from gateway.fleet import Fleet
from gateway.names import EngineNames
from schemas.clock import REAL_CLOCK
from schemas.registration import NO_EVENTS, Registration
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
