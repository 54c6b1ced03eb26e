"""`as_of` and `/explain` of a prompt with an adapter, an image and a salt."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.wire import open_source
from logs.embedded import EmbeddedLog
from query_api.past_answers import PastAnswers
from reprise.application import create_app
from schemas.arrays import PythonArrayPacker
from schemas.events import BlockEvent, RemovedBlocks, StoredBlocks
from streams.history.past_fold import Past
from streams.history.past_tables import PastTables
from streams.history.store import HistoryStore
from streams.kernel import open_kernel
from tests.building import events_record, registered_record, registration
from tests.fakes import AsgiClient, FakeTable
from tests.unit.query_api.http.test_extra_keys import VERSIONS, asked, captured

CASE = "adapter, image A, salt"


@pytest.fixture(params=[VERSIONS[0], VERSIONS[-1]])
def one(request: pytest.FixtureRequest) -> dict[str, Any]:
    return captured(CASE, request.param)


@pytest.fixture
def client(
    tmp_path: Path, log: EmbeddedLog, table: FakeTable, one: dict[str, Any]
) -> Iterator[AsgiClient]:
    """The engine has stored the prompt in two batches, and then removed its last block."""
    source = open_source(registration("a"), PythonArrayPacker())
    frames = [bytes.fromhex(payload) for payload in one["payloads_hex"]]
    batches: list[list[BlockEvent]] = [
        list(source.decode([b"", number.to_bytes(8, "big"), payload]).events)
        for number, payload in enumerate(frames)
    ]
    stored = batches[-1][-1]
    assert isinstance(stored, StoredBlocks)
    removed = RemovedBlocks(sequence=2, hashes=stored.hashes[-8:])
    batches.append([removed])
    records = [events_record(at, at, events) for at, events in enumerate(batches)]
    log.append([registered_record(registration("a")), *records])
    history = HistoryStore(tmp_path / "history")
    past = Past(history, lambda: log, lambda: open_kernel(1337))
    tables = PastTables([past], lambda: open_kernel(1337))
    answers = PastAnswers(tables, positions_at=lambda seconds: ())
    yield AsgiClient(create_app(table, table, history=answers))
    history.close()


def held(client: AsgiClient, offset: int, body: dict[str, Any]) -> int:
    reply = client.post_json(f"/query?as_of=0:{offset}", body)
    assert reply.status == 200, reply.body
    found = json.loads(reply.body).get("default", {}).get("a", {"longest_matched": 0})
    return int(found["longest_matched"])


def test_the_past_is_asked_with_the_same_keys(client: AsgiClient, one: dict[str, Any]) -> None:
    by_media = asked(one, media=one["media"])
    by_rows = asked(one, extra_keys=one["extra_keys"])
    for body in (by_media, by_rows):
        assert [held(client, offset, body) for offset in range(4)] == [0, 8, 20, 16]
    plain = asked(one)
    assert [held(client, offset, plain) for offset in range(4)] == [0, 4, 4, 4]


def test_what_ended_the_prefix_is_found_in_the_form_of_the_engine(
    client: AsgiClient, one: dict[str, Any]
) -> None:
    body = asked(one, media=one["media"], instance_id="a")
    found = client.post_json("/explain?as_of=0:3", body).document()
    assert (found["longest_matched"], found["ended_by"]["block"]) == (16, 4)
    assert found["ended_by"]["reason"] == "removed"
    found = client.post_json("/explain?as_of=0:2", body).document()
    assert (found["longest_matched"], found["ended_by"]) == (20, None)
    url = "/explain?model=m&block_size=4&instance_id=a&token_ids=1,2,3,4&media=x"
    assert client.get(url).document()["reason"] == "unknown_field"
