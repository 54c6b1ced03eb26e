"""`POST /query` and `POST /query_by_hash` over a real kernel, through the whole app."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query_api.http.http_settings import HttpSettings
from reprise.application import create_app
from schemas.answer_states import AnswerState, Standing
from schemas.errors import StorageError
from schemas.events import extra_key
from schemas.identities import Medium, PrefixScope
from schemas.limits import BODY_BYTES_MAX, QUERY_TOKENS_MAX
from schemas.positions import Position
from streams.kernel import native_available, open_kernel
from streams.kernel.interface import InstanceMatch, ScannedQuery
from streams.kernel.reference import ReferenceKernel
from tests.building import prefix_hashes
from tests.fakes import SEED, AsgiClient, FakeTable, pack_hashes, pack_tokens, registration

needs_rust = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")
PLAIN = {"model": "m", "block_size": 4, "token_ids": list(range(18))}


def query(**changes: object) -> dict[str, Any]:
    return {key: value for key, value in {**PLAIN, **changes}.items() if value is not ...}


def fill_walk(table: FakeTable) -> None:
    """The state of the contract's first example: two blocks on GPU, one in CPU, one on disk."""
    publisher = table.add(registration("a"))
    table.store(publisher, range(8), hashes=[1, 2])
    table.store(publisher, range(8, 12), hashes=[3], parent=2, medium=Medium.CPU)
    table.store(publisher, range(12, 16), hashes=[4], parent=3, medium=Medium.DISK)


def test_conductors_walk_down_the_tiers_is_answered_in_msgpack(
    table: FakeTable, client: AsgiClient
) -> None:
    fill_walk(table)
    reply = client.post_msgpack("/query", query())
    assert reply.status == 200
    assert reply.document() == {
        "instances": {
            "a": {
                "longest_matched": 16,
                "dp": {"0": 8},
                "rank_matches": {"0": {"gpu": 8, "cpu": 12, "disk": 16}},
                "gpu": 8,
                "cpu": 12,
                "disk": 16,
            }
        }
    }


def test_conductors_two_ranks_are_answered_in_msgpack(table: FakeTable, client: AsgiClient) -> None:
    table.store(table.add(registration("a", dp_rank=0)), range(12), hashes=[1, 2, 3])
    table.store(table.add(registration("a", dp_rank=1)), range(4), hashes=[1])
    assert client.post_msgpack("/query", query()).document() == {
        "instances": {
            "a": {
                "longest_matched": 12,
                "dp": {"0": 12, "1": 4},
                "rank_matches": {
                    "0": {"gpu": 12, "cpu": 12, "disk": 12},
                    "1": {"gpu": 4, "cpu": 4, "disk": 4},
                },
                "gpu": 12,
                "cpu": 12,
                "disk": 12,
            }
        }
    }


def test_a_service_without_a_history_says_so(client: AsgiClient) -> None:
    reply = client.post_json("/query?as_of=0:0", PLAIN)
    assert (reply.status, reply.document()["reason"]) == (400, "no_history")


def test_the_published_shape_is_answered_in_json(table: FakeTable, client: AsgiClient) -> None:
    fill_walk(table)
    reply = client.post_json("/query", query())
    assert reply.headers["content-type"] == "application/json"
    assert reply.document() == {
        "default": {
            "a": {"longest_matched": 16, "GPU": 8, "CPU": 0, "DISK": 0, "DP": {"0": 16}},
        }
    }


def test_two_ranks_are_answered_in_json(table: FakeTable, client: AsgiClient) -> None:
    table.store(table.add(registration("a", dp_rank=0)), range(12), hashes=[1, 2, 3])
    table.store(table.add(registration("a", dp_rank=1)), range(4), hashes=[1])
    assert client.post_json("/query", query()).document() == {
        "default": {
            "a": {
                "longest_matched": 12,
                "GPU": 12,
                "CPU": 0,
                "DISK": 0,
                "DP": {"0": 12, "1": 4},
            }
        }
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "other"},
        {"block_size": 8},
        {"block_size": 2**63 - 1},
        {"tenant_id": "other"},
        {"lora_name": "other"},
        {"instance_id": "other"},
        {"instance_id": ""},
    ],
)
def test_an_unknown_scope_is_an_empty_answer(
    table: FakeTable, client: AsgiClient, changes: dict[str, object]
) -> None:
    fill_walk(table)
    assert client.post_json("/query", query(**changes)).body == b"{}"
    assert client.post_msgpack("/query", query(**changes)).document() == {"instances": {}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "other"}, "model=other; known=m"),
        ({"block_size": 8}, "block_size=8; known=4"),
        ({"tenant_id": "other"}, "tenant_id=other; known="),
        ({"instance_id": "other"}, None),
        ({"token_ids": [9] * 8}, None),
    ],
)
@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_what_nobody_has_is_said_with_what_there_is(
    table: FakeTable, client: AsgiClient, changes: dict[str, object], said: str | None, wire: str
) -> None:
    fill_walk(table)
    post = client.post_json if wire == "json" else client.post_msgpack
    assert post("/query", query(**changes)).headers.get("reprise-unknown") == said


@pytest.mark.parametrize("tokens", [[], [0, 1, 2]])
def test_less_than_one_block_lists_every_instance_with_zeros(
    table: FakeTable, client: AsgiClient, tokens: list[int]
) -> None:
    fill_walk(table)
    reply = client.post_json("/query", query(token_ids=tokens))
    zeros = {"longest_matched": 0, "GPU": 0, "CPU": 0, "DISK": 0, "DP": {"0": 0}}
    assert reply.document() == {"default": {"a": zeros}}


def test_a_trailing_partial_block_does_not_count(table: FakeTable, client: AsgiClient) -> None:
    fill_walk(table)
    whole = client.post_json("/query", query(token_ids=list(range(8))))
    partial = client.post_json("/query", query(token_ids=list(range(11))))
    assert whole.body == partial.body


def test_a_filter_leaves_one_instance(table: FakeTable, client: AsgiClient) -> None:
    table.add(registration("b"))
    fill_walk(table)
    assert list(client.post_json("/query", query()).document()["default"]) == ["a", "b"]
    filtered = client.post_json("/query", query(instance_id="b")).document()
    assert list(filtered["default"]) == ["b"]


def test_an_empty_tenant_is_the_default_one(table: FakeTable, client: AsgiClient) -> None:
    fill_walk(table)
    assert "default" in client.post_json("/query", query(tenant_id="")).document()


def test_tenants_are_apart_and_named_in_the_answer(table: FakeTable, client: AsgiClient) -> None:
    publisher = table.add(registration("a", tenant_id="t"))
    table.store(publisher, range(4), hashes=[1])
    assert list(client.post_json("/query", query(tenant_id="t")).document()) == ["t"]


def test_a_salt_that_names_a_registered_namespace_queries_it(
    table: FakeTable, client: AsgiClient
) -> None:
    publisher = table.add(registration("a", additional_salt="w8a8"))
    table.store(publisher, range(8), hashes=[1, 2])
    reply = client.post_json("/query", query(cache_salt="w8a8"))
    assert reply.document()["default"]["a"]["longest_matched"] == 8
    explicit = client.post_json("/query", query(additional_salt="w8a8"))
    assert explicit.body == reply.body
    assert client.post_json("/query", query()).body == b"{}"


def test_any_other_salt_enters_the_first_block(table: FakeTable, client: AsgiClient) -> None:
    publisher = table.add(registration("a"))
    keys = (extra_key(["customer"]), b"")
    table.store(publisher, range(8), hashes=[1, 2], extra_keys=keys)

    def longest(**changes: object) -> object:
        document = client.post_json("/query", query(**changes)).document()
        return document["default"]["a"]["longest_matched"]

    assert longest(cache_salt="customer") == 8
    assert longest(cache_salt="other") == 0
    assert longest() == longest(cache_salt=None) == longest(cache_salt="") == 0
    assert client.post_msgpack("/query", query(cache_salt="customer")).document()["instances"]


def test_a_named_namespace_makes_the_salt_the_requests_own(
    table: FakeTable, client: AsgiClient
) -> None:
    table.add(registration("b", additional_salt="customer"))
    publisher = table.add(registration("a", additional_salt="w8a8"))
    table.store(publisher, range(4), hashes=[1], extra_keys=(extra_key(["customer"]),))
    reply = client.post_json("/query", query(additional_salt="w8a8", cache_salt="customer"))
    assert reply.document()["default"]["a"]["longest_matched"] == 4


def test_adapters_are_apart_and_the_deprecated_number_names_one(
    table: FakeTable, client: AsgiClient
) -> None:
    publisher = table.add(registration("a", lora_name="lora_id:7"))
    table.store(publisher, range(8), hashes=[1, 2], lora_name="lora_id:7")
    by_name = client.post_json("/query", query(lora_name="lora_id:7"))
    assert by_name.document()["default"]["a"]["longest_matched"] == 8
    assert client.post_json("/query", query(lora_id=7)).body == by_name.body
    assert client.post_json("/query", query(lora_id=7, lora_name="")).body == by_name.body
    assert client.post_json("/query", query(lora_name=None)).body == b"{}"


def test_tokens_in_a_bin_are_the_same_tokens(table: FakeTable, client: AsgiClient) -> None:
    fill_walk(table)
    array = client.post_msgpack("/query", query())
    packed = client.post_msgpack("/query", query(token_ids=pack_tokens(range(18))))
    assert packed.body == array.body


@pytest.mark.parametrize("name", ["seq_hashes", "block_hash"])
def test_hashes_find_what_their_tokens_find(
    table: FakeTable, client: AsgiClient, name: str
) -> None:
    fill_walk(table)
    hashes = prefix_hashes(list(range(18)))
    assert max(hashes) > 2**53
    signed = [value - 2**64 if value >= 2**63 else value for value in hashes]
    by_tokens = client.post_json("/query", query())
    for values in (hashes, signed):
        document = query(token_ids=..., **{name: values})
        assert client.post_json("/query_by_hash", document).body == by_tokens.body
    expected = client.post_msgpack("/query", query()).body
    for encoded in (hashes, signed, pack_hashes(hashes)):
        document = query(token_ids=..., **{name: encoded})
        assert client.post_msgpack("/query_by_hash", document).body == expected


def test_a_salt_beside_hashes_can_only_name_a_namespace(
    table: FakeTable, client: AsgiClient
) -> None:
    fill_walk(table)
    namespaced = table.add(registration("b", additional_salt="w8a8"))
    table.store(namespaced, range(4), hashes=[1])
    hashes = query(token_ids=..., seq_hashes=prefix_hashes(list(range(16))))
    plain = client.post_json("/query_by_hash", hashes)
    assert client.post_json("/query_by_hash", {**hashes, "cache_salt": "x"}).body == plain.body
    salted = client.post_json("/query_by_hash", {**hashes, "cache_salt": "w8a8"}).document()
    assert salted["default"]["b"]["longest_matched"] == 4


def test_unicode_names_survive_both_ways(table: FakeTable, client: AsgiClient) -> None:
    name, tenant = 'прё"фикс\\\n🎵', "租户"
    publisher = table.add(registration(name, tenant_id=tenant, model_name="模型"))
    table.store(publisher, range(4), hashes=[1])
    document = query(model="模型", tenant_id=tenant)
    json = client.post_json("/query", document).document()
    assert json[tenant][name]["longest_matched"] == 4
    assert list(client.post_msgpack("/query", document).document()["instances"]) == [name]


def test_headers_tell_position_state_and_request(table: FakeTable, client: AsgiClient) -> None:
    reply = client.post_json("/query", query(), x_request_id="id-1")
    assert reply.headers["reprise-position"] == "0:1234"
    assert reply.headers["reprise-state"] == "exact"
    assert reply.headers["x-request-id"] == "id-1"
    assert int(reply.headers["content-length"]) == len(reply.body)
    table.at, table.answer_state = (Position(3, 9),), AnswerState.DEGRADED
    hashes = query(token_ids=..., seq_hashes=[])
    later = client.post_json("/query_by_hash", hashes, x_request_id="bad\nid")
    assert later.headers["reprise-position"] == "3:9"
    assert later.headers["reprise-state"] == "degraded"
    assert "x-request-id" not in later.headers


@pytest.mark.parametrize(
    ("content_type", "answered"),
    [
        ("application/json", "application/json"),
        ("Application/JSON; charset=utf-8", "application/json"),
        ("application/vnd.api+json", "application/json"),
        ("application/msgpack; charset=utf-8", "application/msgpack"),
        ("Application/MsgPack", "application/msgpack"),
    ],
)
def test_the_content_type_chooses_the_wire_form(
    client: AsgiClient, content_type: str, answered: str
) -> None:
    module = msgspec.json if answered == "application/json" else msgspec.msgpack
    reply = client.post("/query", module.encode(query()), content_type=content_type)
    assert (reply.status, reply.headers["content-type"]) == (200, answered)


def test_no_content_type_is_json(client: AsgiClient) -> None:
    assert client.post("/query", msgspec.json.encode(query())).status == 200


def test_another_content_type_is_refused(client: AsgiClient) -> None:
    reply = client.post("/query", b"{}", content_type="text/plain", x_request_id="7")
    assert reply.status == 400
    assert reply.document() == {
        "error": "Content-Type must be application/json or application/msgpack, got: text/plain",
        "reason": "unsupported_content_type",
    }
    assert reply.headers["x-request-id"] == "7"


def test_a_table_that_recovers_answers_no_query(table: FakeTable, client: AsgiClient) -> None:
    table.ready, table.problem = False, "reading the log"
    for reply in (client.post_json("/query", query()), client.post_msgpack("/query", query())):
        assert reply.status == 503
        assert reply.document() == {"error": "reading the log", "reason": "recovering"}
    assert client.post_json("/query_by_hash", {}).status == 503


def test_a_body_comes_in_chunks(table: FakeTable, client: AsgiClient) -> None:
    fill_walk(table)
    body = msgspec.json.encode(query())
    chunks = [body[:7], b"", body[7:20], body[20:]]
    assert client.post("/query", chunks).body == client.post("/query", body).body


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large_is_refused_and_thrown_away(
    client: AsgiClient, declared: bool
) -> None:
    chunks = [b" " * 2**20] * (BODY_BYTES_MAX // 2**20 + 1)
    headers = {"content_length": str(BODY_BYTES_MAX + 2**20)} if declared else {}
    reply = client.post("/query", chunks, **headers)
    assert (reply.status, reply.document()["reason"]) == (413, "body_too_large")
    assert reply.headers["connection"] == "close"


def test_too_many_tokens_are_refused(client: AsgiClient) -> None:
    tokens = bytes(4 * (QUERY_TOKENS_MAX + 1))
    reply = client.post_msgpack("/query", query(token_ids=tokens))
    assert reply.status == 413
    assert reply.document() == {
        "error": f"token_ids must have at most {QUERY_TOKENS_MAX} elements",
        "reason": "too_many_elements",
        "field": "token_ids",
    }


def test_a_client_that_leaves_gets_nothing(client: AsgiClient) -> None:
    assert client.abandon("/query", b"{") == []
    assert client.post_json("/query", query()).status == 200
    metrics = client.get("/metrics").body
    assert b'reprise_http_requests_total{route="/query",status="499"} 1.0' in metrics


class FailingKernel(ReferenceKernel):
    def __init__(self, error: Exception) -> None:
        super().__init__(SEED)
        self.error = error

    def query(
        self, scope: PrefixScope, tokens: bytes, keys: Sequence[bytes], instance_id: str | None, /
    ) -> list[InstanceMatch]:
        raise self.error


def test_an_unexpected_error_is_logged_once_and_the_service_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = FakeTable(FailingKernel(RuntimeError("boom")))
    client = AsgiClient(create_app(table, table))
    for reply in (client.post_json("/query", query()), client.post_msgpack("/query", query())):
        assert (reply.status, reply.document()) == (500, {"error": "Internal server error"})
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert client.get("/health").status == 200


def test_a_storage_error_is_answered_as_such() -> None:
    table = FakeTable(FailingKernel(StorageError("disk gone")))
    reply = AsgiClient(create_app(table, table)).post_json("/query", query())
    assert reply.status == 503
    assert reply.document() == {"error": "disk gone", "reason": "storage"}


@pytest.mark.parametrize(
    ("changes", "scanned"),
    [
        ({}, True),
        ({"tenant_id": "default"}, True),
        ({"tenant_id": ""}, True),
        ({"tenant_id": "t"}, True),
        ({"lora_name": "l"}, True),
        ({"cache_salt": "customer"}, True),
        ({"cache_salt": "w8a8"}, True),
        ({"cache_salt": ""}, True),
        ({"instance_id": "b"}, True),
        ({"instance_id": ""}, False),
        ({"token_ids": []}, True),
        ({"token_ids": [2**31 - 1] * 4}, True),
        ({"token_ids": [2**32 - 1] * 4}, True),
        ({"token_ids": [-1, -(2**31), 0, -7]}, True),
        ({"token_ids": [1, 2**32]}, False),
        ({"token_ids": [1, -(2**31) - 1]}, False),
        ({"model": ""}, False),
        ({"model": "x" * 300}, True),
        ({"model": "x" * 1025}, False),
        ({"instance_id": "é" * 513}, False),
        ({"block_size": 0}, False),
        ({"block_size": 70_000}, False),
        ({"cache_salt": None}, False),
        ({"lora_id": 7}, False),
        ({"token_ids": ...}, False),
        ({"unknown": 1}, False),
    ],
)
@needs_rust
def test_the_scanned_and_the_full_path_answer_alike(
    changes: dict[str, object], scanned: bool
) -> None:
    body = msgspec.json.encode(query(**changes))
    assert (open_kernel(SEED, name="rust").scan_query(body) is not None) == scanned
    replies = [client.post("/query", body) for client in both_paths()]
    assert replies[0] == replies[1]


class KernelWithoutScanner(ReferenceKernel):
    def scan_query(self, body: bytes, /) -> ScannedQuery | None:
        return None


@cache
def both_paths() -> tuple[AsgiClient, AsgiClient]:
    """The same state over a kernel that scans bodies, and over one that never does."""
    clients = []
    for kernel in (open_kernel(SEED, name="rust"), KernelWithoutScanner(SEED)):
        table = FakeTable(kernel)
        fill_walk(table)
        salted = table.add(registration("b", additional_salt="w8a8"))
        table.store(salted, range(8), hashes=[1, 2])
        clients.append(AsgiClient(create_app(table, table)))
    return clients[0], clients[1]


tokens = st.integers(0, 2**31 - 1) | st.integers(-2, 2**33) | st.sampled_from([None, 1.0, "1"])
documents = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "", "x", "\\", 5])},
    optional={
        "block_size": st.sampled_from([4, 0, 1, 70_000, "4", True]),
        "token_ids": st.just(list(range(18))) | st.lists(tokens, max_size=6),
        "tenant_id": st.sampled_from(["", "default", "t", None]),
        "lora_name": st.sampled_from(["", "l", None]),
        "cache_salt": st.sampled_from(["", "w8a8", "customer", None]),
        "instance_id": st.sampled_from(["", "a", "b", "é", None]),
        "x": st.just(1),
    },
)


@needs_rust
@settings(max_examples=300)
@given(document=documents, indent=st.sampled_from([0, 1]), tail=st.sampled_from(["", " ", "x"]))
def test_any_body_is_answered_alike_by_both_paths(
    document: dict[str, object], indent: int, tail: str
) -> None:
    body = msgspec.json.format(msgspec.json.encode(document), indent=indent) + tail.encode()
    replies = [client.post("/query", body) for client in both_paths()]
    assert replies[0] == replies[1]


def test_the_hot_routes_answer_under_a_prefix_too(table: FakeTable) -> None:
    from fastapi import FastAPI

    fill_walk(table)
    inner = create_app(table, table)
    outer = FastAPI()
    outer.mount("/v1", inner)
    reply = AsgiClient(outer).post_json("/v1/query", query())
    assert reply == AsgiClient(inner).post_json("/query", query())


# What an answer says of each instance


@pytest.fixture
def doubtful(table: FakeTable) -> FakeTable:
    for name in ("a", "b", "c"):
        publisher = table.add(registration(name))
        if name != "c":
            table.store(publisher, range(8), hashes=[1, 2])
    table.answer_state = AnswerState.UNCONFIRMED
    table.standings = {
        "a": Standing(AnswerState.EXACT, "", 5.0),
        "b": Standing(AnswerState.UNCONFIRMED, "link_down", 7.5),
        "c": Standing(AnswerState.DEGRADED, "lost_batches", 9.0),
    }
    return table


def test_detail_tells_the_state_of_every_instance_also_of_those_that_hold_nothing(
    doubtful: FakeTable, client: AsgiClient
) -> None:
    plain = client.post_json("/query", query()).document()["default"]
    detailed = client.post_json("/query?detail=1", query())
    assert detailed.headers["reprise-state"] == "unconfirmed"
    instances = detailed.document()["default"]
    told = {name: (one["state"], one["reason"], one["since"]) for name, one in instances.items()}
    assert told == {
        "a": ("exact", "", 5.0),
        "b": ("unconfirmed", "link_down", 7.5),
        "c": ("degraded", "lost_batches", 9.0),
    }
    assert instances["c"]["longest_matched"] == 0
    for name, one in plain.items():
        assert {field: instances[name][field] for field in one} == one


def test_detail_in_msgpack(doubtful: FakeTable, client: AsgiClient) -> None:
    instances = client.post_msgpack("/query?detail=1", query()).document()["instances"]
    assert instances["b"]["state"] == "unconfirmed"
    assert instances["b"]["longest_matched"] == 8


@pytest.mark.parametrize("detail", ["", "&detail=1"])
def test_only_exact_leaves_out_all_others(
    doubtful: FakeTable, client: AsgiClient, detail: str
) -> None:
    reply = client.post_json(f"/query?only=exact{detail}", query())
    assert reply.headers["reprise-state"] == "unconfirmed"
    assert list(reply.document()["default"]) == ["a"]


def test_a_service_may_leave_out_what_is_not_exact_unless_asked_for_all(
    doubtful: FakeTable,
) -> None:
    client = AsgiClient(create_app(doubtful, doubtful, settings=HttpSettings(only_exact=True)))
    assert list(client.post_json("/query", query()).document()["default"]) == ["a"]
    everything = client.post_json("/query?only=all", query()).document()["default"]
    assert sorted(everything) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "asked",
    [
        *("detail=2", "only=some", "&".join("x=1" for _ in range(40))),
        *("asof=0:1", "as-of=0:1", "Detail=1", "as_of=0:1&as_of=0:2"),
    ],
)
def test_an_option_that_there_is_not_is_refused(
    doubtful: FakeTable, client: AsgiClient, asked: str
) -> None:
    reply = client.post_json(f"/query?{asked}", query())
    assert reply.status == 400
    assert reply.document()["error"]


def test_parameters_that_mean_nothing_are_ignored(doubtful: FakeTable, client: AsgiClient) -> None:
    assert client.post_json("/query?other=1", query()) == client.post_json("/query", query())


def test_a_query_may_name_its_model_as_a_registration_does(
    table: FakeTable, client: AsgiClient
) -> None:
    fill_walk(table)
    body = {("modelname" if name == "model" else name): value for name, value in query().items()}
    assert (
        client.post_json("/query", body).document()
        == client.post_json("/query", query()).document()
    )
    refused = client.post_msgpack("/query", body)
    assert (refused.status, refused.document()["reason"]) == (400, "unknown_field")
