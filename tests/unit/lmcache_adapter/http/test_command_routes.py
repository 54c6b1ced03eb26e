"""Commands over HTTP through the whole app: LMCache's shapes, and what is told of failures."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_adapter.commands.book import CommandBook, CommandView
from lmcache_adapter.http import command_requests
from reprise.application import create_app
from schemas.command_records import (
    BlockPlace,
    ClosedRecord,
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandWorker,
    ResultRecord,
)
from schemas.errors import StorageError
from schemas.limits import COMMAND_TOKENS_MAX
from schemas.registration import LMCACHE, Registration
from tests.fakes import AsgiClient, FakeTable
from tests.spans import TRACEPARENT

CPU = "LocalCPUBackend"
AT = {"instance_id": "a", "location": CPU}
TOKENS = {"tokens": [1, 2, 3]}
BODIES: dict[str, dict[str, Any]] = {
    "/clear": AT,
    "/pin": AT | TOKENS,
    "/move": {"old_position": ["a", CPU], "new_position": ["b", CPU]} | TOKENS,
    "/compress": AT | TOKENS | {"method": "cachegen"},
    "/decompress": AT | TOKENS | {"method": "cachegen"},
    "/health": {"instance_id": "a"},
}


class FakeCommands:
    """Executes nothing: what workers make of the next command is said by the test.

    Attributes:
        outcomes: by worker; one that is missing does not answer.
    """

    def __init__(self) -> None:
        self.book = CommandBook()
        self.issued: list[CommandRecord] = []
        self.outcomes: dict[int, ResultRecord] = {}
        self.is_closing = True
        self.failure: Exception | None = None

    def answer(self, rank: int, outcome: CommandOutcome = CommandOutcome.OK, **fields: Any) -> None:
        self.outcomes[rank] = ResultRecord(
            command_id="x", worker_id=rank, outcome=outcome, at=2.0, **fields
        )

    async def issue(self, command: CommandRecord) -> None:
        if self.failure is not None:
            raise self.failure
        self.issued.append(command)
        self.book.take(command)
        for found in self.outcomes.values():
            name = command.command_id
            fields = {key: getattr(found, key) for key in found.__struct_fields__}
            self.book.take(ResultRecord(**(fields | {"command_id": name})))
        if self.is_closing:
            self.book.take(
                ClosedRecord(command_id=command.command_id, reason="nobody came", at=3.0)
            )

    async def ended(self, command_id: str) -> CommandView | None:
        return self.book.find(command_id)

    async def find(self, command_id: str) -> CommandView | None:
        return self.book.find(command_id)

    async def latest(
        self, limit: int, *, origin: str | None = None, since: float = 0.0
    ) -> list[CommandView]:
        return self.book.latest(limit, origin=origin, since=since)


def join(table: FakeTable, instance_id: str, rank: int = 0, peer: str = "10.0.0.1:8200") -> None:
    registration = Registration(
        endpoint=f"tcp://10.0.0.{rank}:9000",
        kind=LMCACHE,
        model_name="m",
        instance_id=instance_id,
        block_size=4,
        dp_rank=rank,
        peer_url=peer,
        registered_at=1_795_000_000.0,
    )
    table.registrations[registration.publisher] = registration


@pytest.fixture
def commands() -> FakeCommands:
    return FakeCommands()


@pytest.fixture
def client(table: FakeTable, commands: FakeCommands) -> AsgiClient:
    for rank in (1, 0):
        join(table, "a", rank, f"10.0.0.1:{8200 + rank}")
        join(table, "b", rank, f"10.0.0.2:{8200 + rank}")
    return AsgiClient(create_app(table, table, commands=commands))


@pytest.mark.parametrize("path", [path for path in BODIES if path != "/health"])
def test_a_command_that_all_have_executed_is_answered_as_lmcache_does(
    client: AsgiClient, commands: FakeCommands, path: str
) -> None:
    commands.answer(0, tokens=9)
    commands.answer(1, tokens=7)
    reply = client.post_json(path, BODIES[path])
    [command] = commands.issued
    assert reply.status == 200
    assert reply.document() == {"event_id": command.command_id, "num_tokens": 7}
    assert command.command_id.startswith(path[1:].capitalize())
    assert command.workers[0].worker_id == 0


def test_commands_are_what_their_bodies_say(client: AsgiClient, commands: FakeCommands) -> None:
    for path, body in BODIES.items():
        client.post_json(path, body)
    by_action = {one.action: one for one in commands.issued}
    assert set(by_action) == set(CommandAction)
    packed = b"\1\0\0\0\2\0\0\0\3\0\0\0"
    move = by_action[CommandAction.MOVE]
    assert (move.instance_id, move.location, move.target) == ("a", CPU, BlockPlace("b", CPU))
    assert move.workers == (CommandWorker(0, "10.0.0.2:8200"), CommandWorker(1, "10.0.0.2:8201"))
    assert not move.copy
    assert by_action[CommandAction.PIN].tokens == packed
    assert by_action[CommandAction.COMPRESS].method == "cachegen"
    assert by_action[CommandAction.CLEAR].workers == (CommandWorker(0), CommandWorker(1))


def test_tokens_may_be_missing_or_null_where_lmcache_takes_that(
    client: AsgiClient, commands: FakeCommands
) -> None:
    body = {name: value for name, value in BODIES["/move"].items() if name != "tokens"}
    client.post_json("/move", body | {"should_copy": True})
    client.post_json("/move", body | {"tokens": None, "should_copy": None})
    client.post_msgpack("/compress", AT | {"method": "cachegen", "tokens": None})
    assert [one.tokens for one in commands.issued] == [b"", None, None]
    assert [one.copy for one in commands.issued] == [True, False, False]


def test_health_is_answered_whoever_answers(client: AsgiClient, commands: FakeCommands) -> None:
    commands.answer(1, code=-1)
    reply = client.post_json("/health", BODIES["/health"])
    document = reply.document()
    assert reply.status == 200
    assert document["event_id"].startswith("health")
    assert document["error_codes"] == {"0": -1001, "1": -1}


@pytest.mark.parametrize(
    ("first", "second", "status", "reason"),
    [
        (CommandOutcome.OK, CommandOutcome.REFUSED, 409, "refused"),
        (CommandOutcome.UNSUPPORTED, CommandOutcome.UNSUPPORTED, 409, "unsupported"),
        (CommandOutcome.REFUSED, CommandOutcome.TIMEOUT, 504, "timeout"),
        (CommandOutcome.OK, None, 504, "timeout"),
        (None, None, 504, "timeout"),
    ],
)
def test_what_failed_is_told_by_worker_with_the_status_that_fits(
    client: AsgiClient,
    commands: FakeCommands,
    first: CommandOutcome | None,
    second: CommandOutcome | None,
    status: int,
    reason: str,
) -> None:
    for rank, outcome in enumerate((first, second)):
        if outcome is not None:
            commands.answer(rank, outcome, detail=f"because {rank}")
    reply = client.post_json("/clear", AT)
    document = reply.document()
    assert (reply.status, document["reason"]) == (status, reason)
    for rank, outcome in enumerate((first, second)):
        because = "nobody came" if outcome is None else f"because {rank}"
        assert (f"worker {rank}: " in document["error"]) == (outcome is not CommandOutcome.OK)
        assert (because in document["error"]) == (outcome is not CommandOutcome.OK)
    [command] = commands.issued
    assert reply.headers["location"] == f"/commands/{command.command_id}"


def test_one_that_has_not_ended_in_time_says_where_it_is(
    client: AsgiClient, commands: FakeCommands
) -> None:
    commands.is_closing = False
    reply = client.post_json("/clear", AT)
    assert (reply.status, reply.document()["reason"]) == (504, "pending")
    found = client.get(reply.headers["location"]).document()
    assert found["state"] == "pending"


def test_a_record_of_a_command_says_what_became_of_it(
    client: AsgiClient, commands: FakeCommands
) -> None:
    commands.answer(1, tokens=7, ms=1.5)
    reply = client.post_json("/commands", BODIES["/move"] | {"action": "move"})
    document = reply.document()
    assert (reply.status, document["state"]) == (202, "pending")
    path = f"/commands/{document['command_id']}"
    assert reply.headers["location"] == path
    found = client.get(path).document()
    assert found["workers"] == [
        {
            "worker_id": 0,
            "outcome": "none",
            "num_tokens": 0,
            "error_code": 0,
            "ms": 0.0,
            "detail": "",
        },
        {
            "worker_id": 1,
            "outcome": "ok",
            "num_tokens": 7,
            "error_code": 0,
            "ms": 1.5,
            "detail": "",
        },
    ]
    assert (found["state"], found["reason"], found["tokens"]) == ("partial", "nobody came", 3)
    assert found["target"] == ["b", CPU]
    finish = client.post_json("/check_finish", {"event_id": document["command_id"]})
    assert finish.document() == {"status": "partial"}


def test_only_the_named_workers_get_it(client: AsgiClient, commands: FakeCommands) -> None:
    body = {"action": "clear", "workers": [1]} | AT
    assert client.post_json("/commands", body).status == 202
    assert commands.issued[0].workers == (CommandWorker(1),)
    client.post_json("/clear", {"workers": [1]} | AT)
    assert len(commands.issued[1].workers) == 2, "LMCache's own route has no such field"


def test_an_unknown_command_is_not_found(client: AsgiClient) -> None:
    reply = client.get("/commands/" + "x" * 2000)
    assert (reply.status, reply.document()["reason"]) == (404, "not_found")
    event = {"event_id": "x" * 1000}
    assert client.post_json("/check_finish", event).status == 404


HOSTILE: list[tuple[str, object, int, str, str | None]] = [
    ("/clear", {"instance_id": "zz", "location": CPU}, 404, "not_found", "instance_id"),
    ("/clear", {"instance_id": "a"}, 400, "missing", "location"),
    ("/clear", {"location": CPU}, 400, "missing", "instance_id"),
    ("/clear", AT | {"location": ""}, 400, "invalid_value", "location"),
    ("/clear", AT | {"location": "x" * 1025}, 400, "out_of_range", "location"),
    ("/clear", AT | {"instance_id": 5}, 400, "invalid_type", "instance_id"),
    ("/clear", [1], 400, "invalid_json", None),
    ("/pin", AT, 400, "missing", "tokens"),
    ("/pin", AT | {"tokens": []}, 400, "invalid_value", "tokens"),
    ("/pin", AT | {"tokens": None}, 400, "not_array", "tokens"),
    ("/pin", AT | {"tokens": [1, 1.5]}, 400, "invalid_type", "tokens"),
    ("/pin", AT | {"tokens": [2**40]}, 400, "out_of_range", "tokens"),
    ("/pin", AT | {"prefix_hash": 5}, 400, "unsupported", "prefix_hash"),
    ("/pin", AT | TOKENS | {"block_hashes": [5]}, 400, "unsupported", "block_hashes"),
    ("/move", BODIES["/move"] | {"new_position": ["a", CPU]}, 400, "unsupported", "new_position"),
    ("/move", BODIES["/move"] | {"new_position": ["a", "D"]}, 400, "unsupported", "new_position"),
    ("/move", BODIES["/move"] | {"new_position": ["zz", CPU]}, 404, "not_found", "new_position"),
    ("/move", BODIES["/move"] | {"old_position": ["zz", CPU]}, 404, "not_found", "old_position"),
    ("/move", BODIES["/move"] | {"new_position": ["b"]}, 400, "invalid_type", "new_position"),
    ("/move", BODIES["/move"] | {"new_position": ["b", ""]}, 400, "invalid_value", "new_position"),
    ("/move", BODIES["/move"] | {"should_copy": 1}, 400, "invalid_type", "should_copy"),
    ("/compress", AT | TOKENS, 400, "missing", "method"),
    ("/commands", AT, 400, "missing", "action"),
    ("/commands", AT | {"action": "erase"}, 400, "invalid_value", "action"),
    ("/commands", AT | {"action": "clear", "workers": [0, 0]}, 400, "invalid_value", "workers"),
    ("/commands", AT | {"action": "clear", "workers": []}, 400, "invalid_value", "workers"),
    ("/commands", AT | {"action": "clear", "workers": [7]}, 404, "not_found", "workers"),
    ("/commands", AT | {"action": "clear", "workers": [-1]}, 400, "invalid_type", "workers"),
    ("/commands", AT | {"action": "clear", "workers": 0}, 400, "invalid_type", "workers"),
    (
        "/commands",
        AT | {"action": "clear", "workers": list(range(1025))},
        400,
        "invalid_type",
        "workers",
    ),
    ("/check_finish", {}, 400, "missing", "event_id"),
    ("/check_finish", {"event_id": ""}, 400, "invalid_value", "event_id"),
]


@pytest.mark.parametrize(("path", "body", "status", "reason", "field"), HOSTILE)
def test_a_body_that_cannot_be_meant_is_refused_by_field(
    client: AsgiClient,
    commands: FakeCommands,
    path: str,
    body: object,
    status: int,
    reason: str,
    field: str | None,
) -> None:
    reply = client.post_json(path, body)
    document = reply.document()
    assert (reply.status, document["reason"], document.get("field")) == (status, reason, field)
    assert not commands.issued


@pytest.mark.parametrize("text", ['{"instance_id": NaN}', ""])
def test_what_is_no_json_is_refused(client: AsgiClient, commands: FakeCommands, text: str) -> None:
    reply = client.post("/pin", text.encode(), **{"content-type": "application/json"})
    assert (reply.status, reply.document()["reason"]) == (400, "invalid_json")
    assert not commands.issued


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["a", "b", "clear", "move", CPU, "cachegen", "", "x" * 2000])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
_fields = st.sampled_from(
    [
        "action",
        "instance_id",
        "location",
        "tokens",
        "method",
        "old_position",
        "new_position",
        "should_copy",
        "workers",
        "prefix_hash",
        "event_id",
        "ip",
        "worker_ids",
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    path=st.sampled_from(
        [*BODIES, "/commands", "/check_finish", "/query_instance", "/query_worker_info"]
    ),
    changed=st.dictionaries(_fields, _values, max_size=4),
    is_msgpack=st.booleans(),
)
def test_no_body_whatever_is_our_fault(
    path: str, changed: dict[str, Any], is_msgpack: bool
) -> None:
    table = FakeTable()
    join(table, "a")
    join(table, "b")
    client = AsgiClient(create_app(table, table, commands=FakeCommands()))
    body = BODIES.get(path, BODIES["/move"]) | changed
    reply = (client.post_msgpack if is_msgpack else client.post_json)(path, body)
    assert reply.status in (200, 202, 400, 404, 409, 413, 504)
    assert ("error" in reply.document()) == (reply.status >= 400)


def test_too_many_tokens_are_refused(
    client: AsgiClient, commands: FakeCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_requests, "COMMAND_TOKENS_MAX", 3)
    assert client.post_json("/pin", AT | TOKENS).status == 504
    reply = client.post_json("/pin", AT | {"tokens": [1, 2, 3, 4]})
    assert (reply.status, reply.document()["reason"]) == (413, "too_many_elements")
    assert COMMAND_TOKENS_MAX > 128 * 1024, "the longest prompts"


def test_a_target_that_takes_no_blocks_is_told(
    table: FakeTable, client: AsgiClient, commands: FakeCommands
) -> None:
    join(table, "c", 0, peer="")
    body = BODIES["/move"] | {"new_position": ["c", CPU]}
    reply = client.post_json("/move", body)
    assert (reply.status, reply.document()["reason"]) == (409, "no_peer")
    assert "enable_p2p" in reply.document()["error"]
    assert not commands.issued


def test_a_service_without_lmcache_says_so(table: FakeTable) -> None:
    client = AsgiClient(create_app(table, table))
    for path, body in BODIES.items():
        reply = client.post_json(path, body)
        assert (reply.status, reply.document()["reason"]) == (409, "no_commands")
        assert "--lmcache" in reply.document()["error"]
    assert client.get("/commands/x").status == 409


def test_a_log_that_cannot_be_written_is_a_503(client: AsgiClient, commands: FakeCommands) -> None:
    commands.failure = StorageError("the disk is full")
    reply = client.post_json("/clear", AT)
    assert (reply.status, reply.document()["reason"]) == (503, "storage")


def test_get_health_is_still_ours(client: AsgiClient) -> None:
    assert client.get("/health").document()["status"]


def test_msgpack_is_answered_by_msgpack(client: AsgiClient, commands: FakeCommands) -> None:
    commands.answer(0, tokens=1)
    commands.answer(1, tokens=1)
    reply = client.post_msgpack("/clear", AT)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/msgpack"


def test_workers_are_listed_as_lmcache_does(client: AsgiClient) -> None:
    reply = client.post_json("/query_worker_info", {"instance_id": "a"})
    infos = reply.document()["worker_infos"]
    assert [(one["instance_id"], one["worker_id"]) for one in infos] == [("a", 0), ("a", 1)]
    assert infos[1]["peer_init_url"] == "10.0.0.1:8201"
    assert set(infos[0]) == {
        "instance_id",
        "worker_id",
        "ip",
        "port",
        "peer_init_url",
        "registration_time",
        "last_heartbeat_time",
    }
    every = client.post_json("/query_worker_info", {"instance_id": "all", "worker_ids": [1]})
    assert [one["instance_id"] for one in every.document()["worker_infos"]] == ["a", "b"]
    assert client.post_json("/query_worker_info", {"instance_id": "zz"}).status == 404
    assert client.post_json("/query_worker_info", {}).status == 400


def test_an_instance_is_found_by_its_address(client: AsgiClient) -> None:
    reply = client.post_json("/query_instance", {"event_id": "x", "ip": "10.0.0.1"})
    document = reply.document()
    assert (reply.status, document["res"]) == (200, "a")
    assert json.dumps(document).count("QueryInst") == 1
    assert client.post_json("/query_instance", {"ip": "10.9.9.9"}).status == 404
    assert client.post_json("/query_instance", {}).status == 400


def test_the_last_commands_are_listed_with_what_became_of_them(
    client: AsgiClient, commands: FakeCommands
) -> None:
    commands.answer(0, tokens=9)
    for path in ("/clear", "/pin", "/move"):
        client.post_json(path, BODIES[path])
    pinned = msgspec.structs.replace(
        commands.issued[1], command_id="Pin1", origin="advice", prefix=2**63
    )
    commands.book.take(pinned)
    found = client.get("/commands").document()["commands"]
    assert [one["action"] for one in found] == ["pin", "move", "pin", "clear"]
    assert found[0] == client.get("/commands/Pin1").document()
    assert (found[0]["origin"], found[0]["prefix_hash"]) == ("advice", str(2**63))
    assert [one["state"] for one in found] == ["pending", "partial", "partial", "partial"]
    assert len(client.get("/commands?limit=2").document()["commands"]) == 2
    [only] = client.get("/commands?origin=advice&limit=1000").document()["commands"]
    assert only["command_id"] == "Pin1"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *(("limit=0", "limit"), ("limit=1001", "limit"), ("limit=1e2", "limit")),
        *(("limit=%C2%B2", "limit"), ("origin=me", "origin")),
    ],
)
def test_a_list_of_commands_that_cannot_be_is_refused(
    client: AsgiClient, query: str, field: str
) -> None:
    reply = client.get(f"/commands?{query}")
    assert (reply.status, reply.document()["field"]) == (400, field)


def test_a_command_has_the_trace_of_its_request(client: AsgiClient, commands: FakeCommands) -> None:
    client.post_json("/clear", AT, traceparent=TRACEPARENT, tracestate="a=1")
    client.post_json("/commands", {"action": "clear"} | AT, traceparent="no context")
    traces = [(one.traceparent, one.tracestate) for one in commands.issued]
    assert traces == [(TRACEPARENT, "a=1"), ("", "")]
