"""Dynamo's select service over the router: its bodies, its answers, its reservations."""

import struct
from typing import Any

import msgspec
import pytest
import xxhash

from query_api.http.errors import RequestError
from routing.select.routes import SelectService
from schemas.events import StoredBlocks, encode_events
from schemas.routing_records import DecisionsRecord, traces_of
from tests.fakes import FakeTable
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, KeptSpans
from tests.unit.routing.http.conftest import Service

TOKENS = list(range(64))
WHOLE = {"model_name": "m", "routing_group": "default"}


URL = "http://10.0.0.1:8000"


@pytest.fixture
def service(table: FakeTable) -> Service:
    return Service(table, select_service=True)


def worker(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "worker_id": number,
        "model_name": "m",
        "endpoint": f"http://10.0.0.{number}:8000",
        "block_size": 16,
        "kv_events_endpoint": f"tcp://10.0.0.{number}:5557",
        **fields,
    }


def post(service: Service, path: str, body: object, status: int = 200) -> Any:
    reply = service.client.post_json(path, body)
    assert reply.status == status, reply.body
    return msgspec.json.decode(reply.body)


def call(service: Service, method: str, path: str, status: int = 200) -> Any:
    reply = service.client.request(method, path)
    assert reply.status == status, reply.body
    return msgspec.json.decode(reply.body)


def add(service: Service, number: int, *, blocks: int = 0, **fields: Any) -> None:
    post(service, "/workers", worker(number, **fields), 201)
    if blocks:
        hold(service, number, blocks)
    service.clock.now += 1.0  # so that it is looked again who is registered


def hold(service: Service, number: int, blocks: int, rank: int = 0) -> None:
    (known,) = (
        one
        for one in service.table.registrations.values()
        if (one.instance_id, one.dp_rank) == (str(number), rank)
    )
    publisher = service.table.kernel.open_publisher(known.stream, rank)
    stored = StoredBlocks(
        sequence=0,
        hashes=struct.pack(f"<{blocks}Q", *range(1, blocks + 1)),
        tokens=struct.pack(f"<{16 * blocks}I", *TOKENS[: 16 * blocks]),
        block_size=16,
    )
    service.table.kernel.apply(publisher, encode_events([stored]), -1)


def local_hashes(tokens: list[int]) -> list[int]:
    """As Dynamo's clients compute them: of each block alone, signed."""
    found = []
    for start in range(0, len(tokens), 16):
        packed = struct.pack("<16I", *tokens[start : start + 16])
        (signed,) = struct.unpack("<q", xxhash.xxh3_64_digest(packed, 1337)[::-1])
        found.append(signed)
    return found


def requests_of(service: Service) -> dict[int, int]:
    (found,) = call(service, "GET", "/loads")
    return {one["worker_id"]: one["active_requests"] for one in found["loads"]}


def test_it_is_not_there_unless_it_is_wanted(table: FakeTable) -> None:
    reply = Service(table).client.post_json("/select", {"token_ids": TOKENS})
    assert reply.status == 404


def test_a_selection_has_the_published_shape(service: Service) -> None:
    add(service, 1)
    add(service, 2, blocks=3)
    found = post(service, "/select", WHOLE | {"selection_id": "s", "token_ids": TOKENS})
    assert found == WHOLE | {
        "selection_id": "s",
        "worker_id": 2,
        "dp_rank": 0,
        "endpoint": "http://10.0.0.2:8000",
        "block_size": 16,
        "overlap": {"longest_matched": 48, "gpu": 48, "dp": {"0": 48}, "cpu": 48, "disk": 48},
        "effective_prefill_tokens": 16,
        "potential_decode_blocks": 4,
    }
    assert len(service.queue) == 0
    assert "selection_id" not in post(service, "/select", WHOLE | {"token_ids": TOKENS})


def test_block_hashes_say_the_same_as_tokens(service: Service) -> None:
    add(service, 1)
    add(service, 2, blocks=3)
    hashes = {"block_hashes": local_hashes(TOKENS), "sequence_hashes": [1, 2, 3, 4]}
    by_hash = post(service, "/select", WHOLE | hashes | {"isl_tokens": 64})
    assert by_hash == post(service, "/select", WHOLE | {"token_ids": TOKENS})


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"block_hashes": [1]}, 400, "sequence_hashes"),
        ({"block_hashes": [1], "sequence_hashes": [1]}, 400, "isl_tokens"),
        ({"block_hashes": [1], "sequence_hashes": [1], "isl_tokens": 0}, 400, "isl_tokens"),
        ({"block_hashes": [1], "sequence_hashes": [1], "isl_tokens": 2**31}, 400, "isl_tokens"),
        ({"token_ids": TOKENS, "expected_output_tokens": 2**31}, 400, "expected_output_tokens"),
        ({"sequence_hashes": [1], "isl_tokens": 16}, 400, "block_hashes"),
        (
            {"block_hashes": [1], "sequence_hashes": [1, 2], "isl_tokens": 16},
            400,
            "block_hashes",
        ),
        ({"token_ids": TOKENS, "is_eagle": True}, 501, "is_eagle"),
        ({"token_ids": TOKENS, "block_mm_infos": [{"a": 1}]}, 501, "block_mm_infos"),
        ({"token_ids": TOKENS, "model_name": "other"}, 503, "model_name"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(
    service: Service, fields: dict[str, Any], status: int, field: str
) -> None:
    add(service, 1)
    assert post(service, "/select", WHOLE | fields, status)["field"] == field


def test_what_means_nothing_here_is_ignored(service: Service) -> None:
    add(service, 1)
    ignored = {"priority_jump": 1.0, "is_eagle": False, "block_mm_infos": [None], "x": 1}
    post(service, "/select", WHOLE | ignored | {"token_ids": TOKENS, "routing_constraints": {}})


def test_only_allowed_and_pinned_workers_are_chosen(service: Service) -> None:
    add(service, 1)
    add(service, 2, blocks=3)
    asked = WHOLE | {"token_ids": TOKENS}
    assert post(service, "/select", asked | {"allowed_worker_ids": [1, 9]})["worker_id"] == 1
    pinned = {"pinned_worker": {"worker_id": 1, "dp_rank": 0}}
    assert post(service, "/select", asked | pinned)["worker_id"] == 1
    none = post(service, "/select", asked | {"allowed_worker_ids": [9]}, 503)
    assert none["reason"] == "no_candidate"


def test_a_reservation_is_booked_until_it_ends(service: Service) -> None:
    add(service, 1)
    body = WHOLE | {"selection_id": "s", "token_ids": TOKENS}
    first = post(service, "/select_and_reserve", body)
    assert first["selection_id"] == "s"
    assert post(service, "/select_and_reserve", body)["worker_id"] == first["worker_id"]
    (shown,) = call(service, "GET", "/loads?model_name=m&routing_group=default")
    assert shown["loads"][0] == {
        "worker_id": 1,
        "dp_rank": 0,
        "potential_prefill_tokens": 64,
        "potential_decode_blocks": 20,  # 64 tokens of the prompt, 256 that it may answer
        "active_requests": 1,
    }
    assert call(service, "POST", "/reservations/s/prefill_complete") == {"status": "ok"}
    (shown,) = call(service, "GET", "/loads")
    assert shown["loads"][0]["potential_prefill_tokens"] == 0
    assert post(service, "/reservations/s/output_block", {"decay_fraction": 0.5}) == {
        "status": "ok"
    }
    post(service, "/reservations/s/output_block", {"decay_fraction": 1.5}, 400)
    assert call(service, "DELETE", "/reservations/s") == {"status": "ok"}
    assert requests_of(service) == {1: 0}


def test_a_reservation_without_a_name_is_given_one(service: Service) -> None:
    add(service, 1)
    name = post(service, "/select_and_reserve", WHOLE | {"token_ids": TOKENS})["selection_id"]
    call(service, "DELETE", f"/reservations/{name}")
    assert requests_of(service) == {1: 0}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/reservations/none/prefill_complete"),
        ("POST", "/reservations/none/output_block"),
        ("DELETE", "/reservations/none"),
        ("DELETE", "/workers/7"),
    ],
)
def test_what_is_not_known_is_not_found(service: Service, method: str, path: str) -> None:
    assert call(service, method, path, 404)["reason"] == "not_found"


def test_what_was_selected_is_booked_by_its_name_once(service: Service) -> None:
    add(service, 1)
    add(service, 2, blocks=3)
    post(service, "/select", WHOLE | {"selection_id": "s", "token_ids": TOKENS})
    found = post(service, "/reservations", WHOLE | {"selection_id": "s"}, 201)
    endpoint = "http://10.0.0.2:8000"
    assert found == WHOLE | {
        "selection_id": "s",
        "worker_id": 2,
        "dp_rank": 0,
        "endpoint": endpoint,
    }
    assert requests_of(service) == {1: 0, 2: 1}
    assert post(service, "/reservations", WHOLE | {"selection_id": "s"}, 201) == found
    assert requests_of(service) == {1: 0, 2: 1}
    post(service, "/reservations", WHOLE | {"selection_id": "t"}, 404)


def test_a_client_says_where_it_sent_a_request_and_what_is_to_be_computed(
    service: Service,
) -> None:
    add(service, 1)
    add(service, 2, blocks=3)
    body = WHOLE | {
        "selection_id": "s",
        "worker_id": 1,
        "dp_rank": 0,
        "sequence_hashes": [1, 2, 3, 4],
        "isl_tokens": 64,
        "effective_prefill_tokens": 40,
    }
    assert post(service, "/reservations", body, 201)["worker_id"] == 1
    (shown,) = call(service, "GET", "/loads")
    assert [one["potential_prefill_tokens"] for one in shown["loads"]] == [40, 0]
    too_many = body | {"selection_id": "t", "effective_prefill_tokens": 65}
    assert post(service, "/reservations", too_many, 400)["field"] == "effective_prefill_tokens"
    post(service, "/reservations", body | {"worker_id": 2}, 409)
    post(service, "/reservations", body | {"worker_id": 3, "selection_id": "u"}, 404)


def test_what_was_sent_somewhere_is_booked_however_much_there_is_to_do(service: Service) -> None:
    add(service, 1)
    reply = service.client.post_json(
        "/load", {"instance_id": "1", "waiting": 5000, "kv_usage": 1.0}
    )
    assert reply.status == 202
    asked = WHOLE | {"token_ids": TOKENS}
    refused = service.client.post_json("/select", asked)
    assert (refused.status, refused.headers["retry-after"]) == (429, "60")
    post(service, "/reservations", asked | {"selection_id": "s", "worker_id": 1}, 201)
    (shown,) = call(service, "GET", "/loads")
    assert shown["loads"][0]["potential_decode_blocks"] == 20, "booked, beside what it has said"


def test_potential_loads_book_nothing(service: Service) -> None:
    add(service, 1)
    add(service, 2, blocks=3)
    found = post(service, "/potential_loads", WHOLE | {"token_ids": TOKENS})
    rows = [(one["worker_id"], one["potential_prefill_tokens"]) for one in found]
    assert rows == [(1, 64), (2, 16)]
    assert {one["potential_decode_blocks"] for one in found} == {4}
    assert requests_of(service) == {1: 0, 2: 0}


def test_overlap_scores_are_blocks_of_each_rank(service: Service) -> None:
    endpoints = {"0": "tcp://10.0.0.1:5557", "1": "tcp://10.0.0.1:5558"}
    add(service, 1, data_parallel_size=2, kv_events_endpoints=endpoints)
    hold(service, 1, 2, rank=1)
    found = post(service, "/overlap_scores", WHOLE | {"token_ids": TOKENS})
    assert (found["block_size"], found["num_blocks"]) == (16, 4)
    rows = [(one["dp_rank"], one["device_blocks"], one["disk_blocks"]) for one in found["workers"]]
    assert rows == [(0, 0, 0), (1, 2, 2)]
    selected = post(service, "/select", WHOLE | {"token_ids": TOKENS})
    assert (selected["dp_rank"], selected["overlap"]["dp"]) == (1, {"0": 0, "1": 32})


def test_workers_that_publish_no_events_are_registered_so_and_selected_by_what_was_sent(
    service: Service,
) -> None:
    for number in (1, 2):
        body = worker(number, kv_events_endpoint=None, data_parallel_size=2, total_kv_blocks=64)
        added = post(service, "/workers", body, 201)
        assert (added["kv_events_endpoint"], added["kv_events_endpoints"]) == (None, {})
    assert {one.kind for one in service.table.registrations.values()} == {"none"}
    assert call(service, "GET", "/workers")[0] == {**added, "worker_id": 1, "endpoint": URL}
    service.clock.now += 1.0
    first, second = (
        post(service, "/select_and_reserve", WHOLE | {"token_ids": TOKENS}) for _ in range(2)
    )
    assert first["overlap"]["longest_matched"] == 0
    assert second["overlap"]["longest_matched"] == 64
    place = (first["worker_id"], first["dp_rank"])
    assert (second["worker_id"], second["dp_rank"]) == place


def test_workers_are_registrations_and_the_other_way_round(service: Service) -> None:
    endpoints = {"4": "tcp://10.0.0.1:5557", "5": "tcp://10.0.0.1:5558"}
    body = worker(
        1,
        data_parallel_start_rank=4,
        data_parallel_size=2,
        kv_events_endpoints=endpoints,
        replay_endpoint="tcp://10.0.0.1:5560",
        total_kv_blocks=100,
        topology_domains={"rack": "r1"},
    )
    added = post(service, "/workers", body, 201)
    assert added["kv_events_endpoints"] == endpoints
    assert (added["data_parallel_start_rank"], added["data_parallel_size"]) == (4, 2)
    assert (added["total_kv_blocks"], added["topology_domains"]) == (100, {"rack": "r1"})
    assert added["replay_endpoint"] is None  # of which rank, nobody says
    assert added["lifecycle"] == "schedulable"
    assert call(service, "GET", "/workers") == [added]
    assert call(service, "GET", "/workers?model_name=other") == []
    assert call(service, "PATCH", "/workers/1", 501)["reason"] == "unsupported"
    assert call(service, "DELETE", "/workers/1") == added
    assert call(service, "GET", "/workers") == []
    assert not service.table.registrations


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"block_size": None}, 400),
        ({"endpoint": None}, 400),
        ({"data_parallel_size": 2}, 501),
        ({"data_parallel_size": 2, "kv_events_endpoints": {"0": "tcp://10.0.0.7:5557"}}, 501),
        ({"taints": ["a"]}, 501),
        ({"type": "other"}, 400),
        ({"topology_domains": {"": "x"}}, 400),
    ],
)
def test_a_worker_that_cannot_be_one_is_refused(
    service: Service, fields: dict[str, Any], status: int
) -> None:
    post(service, "/workers", worker(1, **fields), status)
    assert not service.table.registrations


def test_an_instance_with_a_name_is_no_worker(service: Service) -> None:
    for name in ("a", "01", "9" * 30):
        body = {
            "endpoint": f"tcp://10.0.1.{len(name)}:5557",
            "type": "vLLM",
            "modelname": "m",
            "instance_id": name,
            "block_size": 16,
            "dp_rank": 0,
        }
        assert service.client.post_json("/register", body).status == 200
    assert call(service, "GET", "/workers") == []
    add(service, 2)
    assert post(service, "/select", WHOLE | {"token_ids": TOKENS})["worker_id"] == 2


def test_workers_of_several_block_sizes_are_a_conflict(service: Service) -> None:
    add(service, 1)
    add(service, 2, block_size=32)
    found = post(service, "/select", WHOLE | {"token_ids": TOKENS}, 409)
    assert found["reason"] == "conflict"


def test_what_it_does_not_have_says_so(service: Service) -> None:
    for method, path in (
        ("GET", "/dump"),
        ("GET", "/replica_sync/peers"),
        ("POST", "/replica_sync/register_peer"),
    ):
        assert call(service, method, path, 501)["reason"] == "unsupported"


def test_msgpack_is_no_form_of_it(service: Service) -> None:
    reply = service.client.post_msgpack("/select", {"token_ids": TOKENS})
    assert reply.status == 415


def test_a_reservation_is_a_decision_of_the_routing_log(service: Service) -> None:
    add(service, 1)
    post(service, "/select_and_reserve", WHOLE | {"selection_id": "s", "token_ids": TOKENS})
    (record,) = service.queue.take(service.clock.now)
    assert isinstance(record, DecisionsRecord)
    assert record.decisions[0].request_id == "s"


def kept(service: Service, table: FakeTable, count: int) -> tuple[SelectService, list[int]]:
    """A select service after so many selections, and what booking each by name is answered with."""
    selecting = SelectService(table, table, service.router)
    for number in range(count):
        body = WHOLE | {"selection_id": f"s{number}", "token_ids": TOKENS}
        assert selecting.select(msgspec.json.encode(body), reserve=False).status_code == 200
    statuses = []
    for number in range(count):
        try:
            named = WHOLE | {"selection_id": f"s{number}"}
            statuses.append(selecting.reserve(msgspec.json.encode(named)).status_code)
        except RequestError as error:
            statuses.append(error.status)
    return selecting, statuses


@pytest.mark.parametrize(
    ("bound", "most"), [("SELECTIONS_MAX", 2), ("SELECTIONS_BYTES_MAX", 2 * 4 * 8 + 7)]
)
def test_more_selections_than_there_is_room_for_are_forgotten_and_counted(
    service: Service,
    table: FakeTable,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    most: int,
) -> None:
    monkeypatch.setattr(f"routing.select.routes.{bound}", most)
    add(service, 1)
    _, statuses = kept(service, table, 4)
    assert statuses == [404, 404, 201, 201]
    assert service.router.live.forgotten == {"selections": 2}


def test_a_worker_that_comes_or_goes_is_seen_at_once(service: Service) -> None:
    asked = WHOLE | {"token_ids": TOKENS}
    post(service, "/select", asked, 503)
    post(service, "/workers", worker(1), 201)
    assert post(service, "/select", asked)["worker_id"] == 1
    call(service, "DELETE", "/workers/1")
    post(service, "/select", asked, 503)


@pytest.fixture
def spans() -> KeptSpans:
    return KeptSpans()


@pytest.fixture
def traced(table: FakeTable, spans: KeptSpans) -> Service:
    service = Service(table, select_service=True, tracer=spans.tracer)
    add(service, 1, blocks=3)
    return service


def send(service: Service, path: str, body: object, traceparent: str = TRACEPARENT) -> None:
    headers = {"traceparent": traceparent} if traceparent else {}
    reply = service.client.post_json(path, body, **headers)
    assert reply.status in (200, 201, 503), reply.body


def kept_traces(service: Service) -> list[str]:
    """As the log has them, of decisions and outcomes."""
    return list(traces_of(service.queue.take(service.clock.now)))


def test_a_reservation_and_its_end_are_part_of_their_trace(
    traced: Service, spans: KeptSpans
) -> None:
    body = WHOLE | {"token_ids": TOKENS, "selection_id": "s"}
    send(traced, "/select_and_reserve", body)
    (routed,) = spans.take()
    assert (routed.name, routed.trace, routed.parent) == ("reprise.route", TRACE, ROUTER_SPAN)
    assert routed.attributes["reprise.instance"] == "1"
    assert routed.attributes["reprise.matched_tokens"] == 48
    call(traced, "DELETE", "/reservations/s")
    (told,) = spans.take()
    assert (told.name, told.parent) == ("reprise.feedback", routed.span)
    assert told.links == [(TRACE, routed.span)]
    assert told.attributes["reprise.reports.accepted"] == 1
    assert kept_traces(traced) == [routed.traceparent] * 2


def test_what_was_selected_is_booked_in_its_trace(traced: Service, spans: KeptSpans) -> None:
    send(traced, "/select", WHOLE | {"token_ids": TOKENS, "selection_id": "s"})
    (selected,) = spans.take()
    send(traced, "/reservations", WHOLE | {"selection_id": "s", "token_ids": TOKENS}, "")
    (booked,) = spans.take()
    assert (booked.name, booked.parent) == ("reprise.route", selected.span)
    assert booked.links == [(TRACE, selected.span)]
    assert kept_traces(traced) == [booked.traceparent]


def test_a_refusal_and_looks_have_spans(traced: Service, spans: KeptSpans) -> None:
    body = WHOLE | {"token_ids": TOKENS}
    send(traced, "/select", body | {"allowed_worker_ids": [9]})
    (refused,) = spans.take()
    assert refused.name == "reprise.route.refused"
    for path in ("/overlap_scores", "/potential_loads"):
        send(traced, path, body)
        send(traced, path, body, "")
        (looked,) = spans.take()
        assert (looked.name, looked.parent) == ("reprise.query", ROUTER_SPAN)
        assert looked.attributes["reprise.matched_tokens"] == 48
        assert looked.attributes["gen_ai.usage.input_tokens"] == len(TOKENS)


def test_without_tracing_the_trace_of_a_reservation_is_kept(service: Service) -> None:
    add(service, 1)
    send(service, "/select_and_reserve", WHOLE | {"token_ids": TOKENS})
    assert kept_traces(service) == [TRACEPARENT]
