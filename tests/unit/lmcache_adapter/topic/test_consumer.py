"""What the reader of LMCache's topic makes of values, one after the other."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from brokers.client_types import Message
from lmcache_adapter.settings import Models, TopicSettings
from lmcache_adapter.topic.consumer import TopicService
from schemas.records import GapRecord
from tests.unit.lmcache_adapter.topic.test_batches import BATCH


class Value:
    """Of a message."""

    offset = 0

    def __init__(self, value: bytes | None) -> None:
        self.value = value


@pytest.fixture
def service(tmp_path: Path) -> TopicService:
    settings = TopicSettings(bootstrap="127.0.0.1:9", topic="events")
    return TopicService(settings, Models(), data=tmp_path, sink=cast(Any, None))


def take(service: TopicService, *values: bytes | None) -> None:
    for value in values:
        service.take_message("events", cast(Message, Value(value)))


def batch(seq: int, **fields: object) -> bytes:
    return json.dumps({"batches": [BATCH | {"seq": seq} | fields]}).encode()


def test_values_that_are_none_are_counted_and_the_rest_is_read(service: TopicService) -> None:
    """A batch that is none is missing: what its server holds is doubted."""
    bad = batch(2, tier="nowhere")
    take(service, batch(1), b"{", b"\xff" * 100, None, bad, batch(3))
    assert service.dropped == {"malformed": 2, "empty_value": 1, "malformed_batch": 1}
    assert service.faults == 0
    service.servers.begin()
    [told] = service.servers.tell(0.0)
    assert [record.last for record in told.records if isinstance(record, GapRecord)] != []


def test_an_unexpected_error_costs_one_value_and_is_counted(
    service: TopicService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(service.servers, "take", fail)
        take(service, batch(1))
    take(service, batch(1))
    assert (service.dropped, service.faults) == ({"unexpected_error": 1}, 1)
