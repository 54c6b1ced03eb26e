"""The checks of registrations: every reason and text, and the order in which they are found."""

from typing import Any

import msgspec
import pytest

from query_api.http.errors import ErrorEnvelope, RequestError, describe
from query_api.http.requests.registrations import (
    OWN_FIELDS,
    read_register_command,
    read_registration,
    read_unregistration,
)
from query_api.http.wire import Wire, encode
from schemas.limits import BLOCK_SIZE_MAX
from schemas.registration import (
    MOONCAKE,
    NO_EVENTS,
    HashProfile,
    Label,
    PublisherKind,
    Registration,
    Role,
    Unregistration,
)
from tests.unit.query_api.http.requests.wires import in_turn

KINDS = (PublisherKind("vLLM"), PublisherKind("SGLang"))
BOTH = pytest.mark.parametrize("wire", list(Wire))
PROFILE = {
    "strategy": "vllm_v1",
    "algorithm": "sha256_cbor",
    "python_hash_seed": "0",
    "index_projection": "low64_be",
}
CURVE_EXPECTED = "curve_server_key must be a public key of CURVE, 40 characters of Z85"
FULL: dict[str, Any] = {
    "endpoint": "tcp://a:1",
    "type": "vLLM",
    "modelname": "m",
    "instance_id": "a",
    "block_size": 16,
    "replay_endpoint": "tcp://a:2",
    "lora_name": "l",
    "tenant_id": "t",
    "cache_group": 0,
    "hash_profile": PROFILE,
    "dp_rank": 3,
}


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in FULL.items() if name not in names}


def refusal(document: object, wire: Wire) -> ErrorEnvelope:
    with pytest.raises(RequestError) as caught:
        read_registration(encode(document, wire), wire, KINDS)
    status, envelope = describe(caught.value)
    assert status == 400
    return envelope


@BOTH
def test_a_full_registration_is_read(wire: Wire) -> None:
    assert read_registration(encode(FULL, wire), wire, KINDS) == Registration(
        endpoint="tcp://a:1",
        kind=PublisherKind("vLLM"),
        model_name="m",
        instance_id="a",
        block_size=16,
        dp_rank=3,
        tenant_id="t",
        lora_name="l",
        replay_endpoint="tcp://a:2",
        hash_profile=HashProfile(**PROFILE),
    )


@BOTH
def test_defaults_are_conductors(wire: Wire) -> None:
    optional = ("replay_endpoint", "lora_name", "tenant_id", "cache_group")
    read = read_registration(encode(without(*optional), wire), wire, KINDS)
    defaults = (read.replay_endpoint, read.lora_name, read.tenant_id, read.additional_salt)
    assert defaults == ("", "", "default", "")
    empty = {**FULL, "tenant_id": "", "cache_group": None}
    assert read_registration(encode(empty, wire), wire, KINDS).tenant_id == "default"


def test_the_published_json_form_has_a_namespace_and_needs_no_hash_profile() -> None:
    document = {**without("hash_profile"), "additionalsalt": "w8a8", "type": "SGLang"}
    read = read_registration(encode(document, Wire.JSON), Wire.JSON, KINDS)
    assert (read.additional_salt, read.kind) == ("w8a8", PublisherKind("SGLang"))
    assert read.hash_profile is None
    document |= {"additionalsalt": None, "lora_name": None, "hash_profile": None}
    read = read_registration(encode(document, Wire.JSON), Wire.JSON, KINDS)
    assert (read.additional_salt, read.lora_name, read.hash_profile) == ("", "", None)


def test_the_published_json_form_may_say_what_requests_ask_the_engine_to_report() -> None:
    for mode in ("", "full", "incremental"):
        document = {**FULL, "kv_cache_report_mode": mode}
        read = read_registration(encode(document, Wire.JSON), Wire.JSON, KINDS)
        assert read.kv_cache_report_mode == mode
    envelope = refusal({**FULL, "kv_cache_report_mode": "all"}, Wire.JSON)
    error = "kv_cache_report_mode must be full or incremental"
    assert envelope == ErrorEnvelope(error, "invalid_value", "kv_cache_report_mode")


def test_and_whether_the_engine_has_other_tiers_than_its_gpu() -> None:
    for name in ("", "none", "native", "lmcache"):
        assert read_json(kv_offloading=name).kv_offloading == name
    envelope = refusal({**FULL, "kv_offloading": "cpu"}, Wire.JSON)
    error = "kv_offloading must be none, native or lmcache"
    assert envelope == ErrorEnvelope(error, "invalid_value", "kv_offloading")


def test_and_whether_it_reuses_a_part_of_a_block() -> None:
    for name in ("", "none"):
        assert read_json(kv_partial_reuse=name).kv_partial_reuse == name
    envelope = refusal({**FULL, "kv_partial_reuse": "all"}, Wire.JSON)
    error = "kv_partial_reuse must be none"
    assert envelope == ErrorEnvelope(error, "invalid_value", "kv_partial_reuse")


def test_and_what_its_events_do_not_tell_of_groups_and_adapters() -> None:
    for name in ("", "one", "several"):
        assert read_json(kv_cache_groups=name).kv_cache_groups == name
    for name in ("", "none"):
        assert read_json(lora_reload=name).lora_reload == name
    for field, names in (("kv_cache_groups", "one or several"), ("lora_reload", "none")):
        envelope = refusal({**FULL, field: "all"}, Wire.JSON)
        assert envelope == ErrorEnvelope(f"{field} must be {names}", "invalid_value", field)


def read_json(**more: object) -> Registration:
    return read_registration(encode({**FULL, **more}, Wire.JSON), Wire.JSON, KINDS)


@pytest.mark.parametrize("role", ["combined", "prefill", "decode"])
def test_the_published_json_form_may_say_which_phases_an_instance_is_for(role: Role) -> None:
    assert read_json(role=role) == msgspec.structs.replace(read_json(), role=role)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory_segment", "node-7/kvcached_*"),
        ("url", "http://10.0.0.7:30000"),
        ("url", "any text"),
    ],
)
def test_the_published_json_form_may_name_a_memory_segment_and_what_routers_call_the_engine(
    name: str, text: str
) -> None:
    assert read_json(**{name: text}) == msgspec.structs.replace(read_json(), **{name: text})


def test_labels_are_kept_sorted_by_name_whatever_the_order_of_the_body() -> None:
    labels = read_json(labels={"zone": "z", "host": "", "é" * 64: "x" * 128}).labels
    assert labels == (Label("host", ""), Label("zone", "z"), Label("é" * 64, "x" * 128))
    assert read_json(labels={}).labels == ()
    assert read_json(labels={f"l{number}": "" for number in range(16)}).labels[-1].name == "l9"


def test_the_published_json_form_may_say_whose_shared_blocks_it_reads() -> None:
    assert read_json(reads=["pool", "b", "pool"]).reads == ("b", "pool")
    assert read_json(reads=[]).reads == ()
    assert read_json(reads=None) == read_json()
    names = [f"{number:02}" + "é" * 511 for number in range(64)]
    assert read_json(reads=names).reads == tuple(names)


@pytest.mark.parametrize("kind", ["Mooncake", "none"])
def test_what_is_no_instance_of_the_index_reads_nothing(kind: str) -> None:
    body = {**FULL, "type": kind, "reads": []}
    if kind == "none":
        body = {name: body[name] for name in body if "endpoint" not in name}
    with pytest.raises(RequestError) as caught:
        read_registration(encode(body, Wire.JSON), Wire.JSON, [*KINDS, MOONCAKE])
    error = f"reads must be left out where type is {kind}: it reads no blocks"
    assert describe(caught.value) == (400, ErrorEnvelope(error, "invalid_value", "reads"))


def test_the_published_json_form_may_say_what_a_cache_has_room_for() -> None:
    sizes = {"kv_bytes_per_token": 2**30, "max_num_seqs": 2**20, "kv_capacity_tokens": 2**40}
    assert read_json(**sizes) == msgspec.structs.replace(read_json(), **sizes)


def test_what_is_said_to_be_the_default_is_no_other_registration_and_no_other_record() -> None:
    unknown = {"kv_bytes_per_token": 0, "max_num_seqs": 0, "kv_capacity_tokens": 0}
    unnamed = {"memory_segment": "", "url": ""}
    for role in ("", "combined"):
        said = read_json(role=role, labels={}, **unknown, **unnamed)
        assert said == read_json()
        assert msgspec.msgpack.encode(said) == msgspec.msgpack.encode(read_json())


@pytest.mark.parametrize(
    ("name", "value", "error", "reason"),
    [
        ("role", "both", "role must be combined, prefill or decode", "invalid_value"),
        ("memory_segment", 7, "memory_segment must be a string", "invalid_type"),
        ("memory_segment", "x" * 1025, "memory_segment must be at most 1024 bytes", "out_of_range"),
        ("labels", ["a"], "labels must be an object of strings", "invalid_type"),
        ("labels", None, "labels must be an object of strings", "invalid_type"),
        ("labels", {"": "a"}, "labels must have names", "invalid_value"),
        ("labels", {"a": "x" * 129}, "labels must be at most 128 bytes", "out_of_range"),
        ("labels", {"é" * 65: "a"}, "labels must be at most 128 bytes", "out_of_range"),
        (
            "labels",
            {f"{number}": "" for number in range(17)},
            "labels must have at most 16 entries",
            "out_of_range",
        ),
        ("reads", "pool", "reads must be an array of strings", "invalid_type"),
        ("reads", ["a", 1], "reads must be an array of strings", "invalid_type"),
        ("reads", {"a": 1}, "reads must be an array of strings", "invalid_type"),
        ("reads", ["a", ""], "reads must have names", "invalid_value"),
        ("reads", ["x" * 1025], "reads must be at most 1024 bytes", "out_of_range"),
        ("reads", ["x"] * 65, "reads must have at most 64 entries", "out_of_range"),
        ("reads", [1] * 500_000, "reads must have at most 64 entries", "out_of_range"),
        (
            "kv_bytes_per_token",
            2**30 + 1,
            "kv_bytes_per_token must be from 0 to 1073741824",
            "out_of_range",
        ),
        ("curve_server_key", "k" * 39, CURVE_EXPECTED, "invalid_value"),
        ("curve_server_key", "k" * 39 + "~", CURVE_EXPECTED, "invalid_value"),
        ("curve_server_key", "#" * 40, CURVE_EXPECTED, "invalid_value"),
        ("curve_server_key", "k" * 40 + "\n", CURVE_EXPECTED, "invalid_value"),
        ("max_num_seqs", -1, "max_num_seqs must be from 0 to 1048576", "out_of_range"),
        ("max_num_seqs", 1.0, "max_num_seqs must be an integer", "invalid_type"),
        (
            "kv_capacity_tokens",
            2**40 + 1,
            "kv_capacity_tokens must be from 0 to 1099511627776",
            "out_of_range",
        ),
    ],
)
def test_what_cannot_be_said_of_an_instance_is_named(
    name: str, value: object, error: str, reason: str
) -> None:
    assert refusal({**FULL, name: value}, Wire.JSON) == ErrorEnvelope(error, reason, name)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"url": "http://u/", "http_endpoint": "http://h"}, "http://u/"),
        ({"http_endpoint": "http://h:1"}, "http://h:1"),
        ({"endpoint": "http://e:1"}, "http://e:1"),
        ({}, "node-1"),
    ],
)
def test_routers_call_an_engine_by_its_url_or_its_base_url_or_its_name(
    fields: dict[str, str], expected: str
) -> None:
    body = encode({**FULL, "instance_id": "node-1", **fields}, Wire.JSON)
    registration = read_registration(body, Wire.JSON, KINDS)
    assert registration.router_url == expected


def test_msgpack_is_exactly_conductors() -> None:
    for name in OWN_FIELDS:
        envelope = refusal({**FULL, name: "x"}, Wire.MSGPACK)
        error = f"unsupported request field: {name}"
        assert envelope == ErrorEnvelope(error, "unknown_field", name)
    envelope = refusal(without("hash_profile"), Wire.MSGPACK)
    assert envelope == ErrorEnvelope("hash_profile is required", "missing", "hash_profile")


@pytest.mark.parametrize(
    ("wire", "name", "value", "error", "reason"),
    in_turn(
        ("x", 1, "unsupported request field: x", "unknown_field"),
        ("endpoint", "", "endpoint must not be empty", "invalid_value"),
        ("endpoint", 1, "endpoint must be a string", "invalid_type"),
        ("modelname", None, "modelname must be a string", "invalid_type"),
        ("type", "", "type must not be empty", "invalid_value"),
        ("instance_id", "", "instance_id must not be empty", "invalid_value"),
        ("block_size", "4", "block_size must be an integer", "invalid_type"),
        ("block_size", True, "block_size must be an integer", "invalid_type"),
        ("block_size", 0, "block_size must be greater than zero", "out_of_range"),
        (
            "block_size",
            BLOCK_SIZE_MAX + 1,
            f"block_size must be at most {BLOCK_SIZE_MAX}",
            "out_of_range",
        ),
        ("replay_endpoint", None, "replay_endpoint must be a string", "invalid_type"),
        ("tenant_id", None, "tenant_id must be a string", "invalid_type"),
        ("cache_group", "0", "cache_group must be an integer or null", "invalid_type"),
        ("cache_group", 0.0, "cache_group must be an integer or null", "invalid_type"),
        ("cache_group", 1, "only cache group zero is supported", "unsupported"),
        ("dp_rank", None, "dp_rank must be an integer", "invalid_type"),
        ("dp_rank", 0.0, "dp_rank must be an integer", "invalid_type"),
        ("dp_rank", -1, "dp_rank must be a non-negative int", "out_of_range"),
        ("dp_rank", 2**31, "dp_rank must be a non-negative int", "out_of_range"),
    ),
)
def test_a_bad_field_is_named(
    wire: Wire, name: str, value: object, error: str, reason: str
) -> None:
    assert refusal({**FULL, name: value}, wire) == ErrorEnvelope(error, reason, name)


@pytest.mark.parametrize(
    ("wire", "name"),
    [
        *in_turn(("type",), ("endpoint",), ("modelname",), ("instance_id",), ("block_size",)),
        (Wire.MSGPACK, "dp_rank"),  # in JSON 0 where it is left out
    ],
)
def test_a_missing_field_is_named(wire: Wire, name: str) -> None:
    assert refusal(without(name), wire) == ErrorEnvelope(f"{name} is required", "missing", name)


@BOTH
def test_fields_are_checked_in_conductors_order_not_the_bodys(wire: Wire) -> None:
    order = (
        "endpoint",
        "type",
        "modelname",
        "instance_id",
        "block_size",
        "replay_endpoint",
        "lora_name",
        "tenant_id",
        "cache_group",
        "hash_profile",
    )
    bad: dict[str, Any] = {"dp_rank": "x", **{name: 1.5 for name in reversed(order)}}
    for name in order:
        assert refusal(bad, wire).field == name
        bad[name] = FULL[name]
    bad["type"] = "Other"
    assert refusal(bad, wire).field == "type"
    bad["type"] = "vLLM"
    assert refusal(bad, wire).field == "dp_rank"
    assert refusal({**bad, "x": 1}, wire).field == "x"


@pytest.mark.parametrize(
    ("wire", "changes", "error", "reason", "field"),
    in_turn(
        ({"strategy": "x"}, "unsupported hash strategy: x", "invalid_value", "strategy"),
        ({"algorithm": "md5"}, "unsupported hash algorithm: md5", "invalid_value", "algorithm"),
        (
            {"index_projection": "x"},
            "unsupported index projection: x",
            "invalid_value",
            "index_projection",
        ),
        (
            {"python_hash_seed": "0x1"},
            'python_hash_seed must be "random" or ASCII decimal text in 0..4294967295',
            "invalid_value",
            "python_hash_seed",
        ),
        (
            {"python_hash_seed": "4294967296"},
            "python_hash_seed must be in range 0..4294967295",
            "invalid_value",
            "python_hash_seed",
        ),
        (
            {"python_hash_seed": 0},
            "python_hash_seed must be a string",
            "invalid_type",
            "python_hash_seed",
        ),
        ({"root_digest": ""}, "unsupported request field: root_digest", "unknown_field", None),
    ),
)
def test_a_bad_hash_profile_is_named(
    wire: Wire, changes: dict[str, object], error: str, reason: str, field: str | None
) -> None:
    envelope = refusal({**FULL, "hash_profile": {**PROFILE, **changes}}, wire)
    assert envelope == ErrorEnvelope(error, reason, field or "root_digest")


@pytest.mark.parametrize("seed", ["random", "00", "4294967295", "0" * 600])
def test_hash_seeds_are_kept_as_text(seed: str) -> None:
    document = {**FULL, "hash_profile": {**PROFILE, "python_hash_seed": seed}}
    read = read_registration(encode(document, Wire.MSGPACK), Wire.MSGPACK, KINDS)
    assert read.hash_profile is not None
    assert read.hash_profile.python_hash_seed == seed


def test_a_hash_profile_must_be_a_map() -> None:
    document = {**FULL, "hash_profile": [1]}
    assert refusal(document, Wire.MSGPACK).error == "hash_profile must be a map"
    assert refusal(document, Wire.JSON).error == "hash_profile must be an object"
    assert refusal({**FULL, "hash_profile": None}, Wire.MSGPACK).reason == "invalid_type"


def test_of_a_repeated_field_the_first_counts() -> None:
    full = encode(FULL, Wire.MSGPACK)
    twice = bytes([full[0] + 1]) + full[1:] + encode({"instance_id": 1}, Wire.MSGPACK)[1:]
    assert read_registration(twice, Wire.MSGPACK, KINDS).instance_id == "a"


@BOTH
def test_an_unregistration_takes_both_published_forms(wire: Wire) -> None:
    short = {"instance_id": "a", "dp_rank": 0}
    expected = Unregistration("default", "a", 0, None, None)
    assert read_unregistration(encode(short, wire), wire) == expected
    published = {
        **short,
        "type": "vLLM",
        "modelname": "m",
        "lora_name": "l",
        "tenant_id": "t",
        "block_size": 16,
    }
    expected = Unregistration("t", "a", 0, "m", 16)
    assert read_unregistration(encode(published, wire), wire) == expected


@pytest.mark.parametrize(
    ("wire", "document", "error", "reason"),
    in_turn(
        ({"dp_rank": 0}, "instance_id is required", "missing"),
        ({"instance_id": "", "dp_rank": 0}, "instance_id must not be empty", "invalid_value"),
        (
            {"instance_id": "a", "dp_rank": -1},
            "dp_rank must be a non-negative int",
            "invalid_value",
        ),
        (
            {"instance_id": "a", "dp_rank": "0"},
            "dp_rank must be a non-negative int",
            "invalid_value",
        ),
        (
            {"instance_id": "a", "dp_rank": 0, "endpoint": "x"},
            "unsupported request field: endpoint",
            "unknown_field",
        ),
    ),
)
def test_a_bad_unregistration_is_refused(
    wire: Wire, document: dict[str, object], error: str, reason: str
) -> None:
    with pytest.raises(RequestError) as caught:
        read_unregistration(encode(document, wire), wire)
    assert (caught.value.message, caught.value.reason) == (error, reason)


def test_what_people_leave_out_or_write_otherwise_in_json() -> None:
    wire = Wire.JSON
    body = {key: value for key, value in FULL.items() if key not in ("dp_rank", "modelname")}
    read = read_registration(encode({**body, "type": "vllm", "model": "m"}, wire), wire, KINDS)
    assert (read.dp_rank, read.kind, read.model_name) == (0, "vLLM", "m")
    both = {**body, "type": "sGLANG", "model": "other", "modelname": "m"}
    assert read_registration(encode(both, wire), wire, KINDS).model_name == "m"
    target = read_unregistration(encode({"instance_id": "a", "model": "m"}, wire), wire)
    assert (target.dp_rank, target.model_name) == (0, "m")
    with pytest.raises(RequestError, match="dp_rank is required"):
        read_unregistration(encode({"instance_id": "a"}, Wire.MSGPACK), Wire.MSGPACK)


def test_whether_it_replaces_is_said_in_json_alone() -> None:
    for more, expected in (({}, False), ({"replace": True}, True), ({"replace": False}, False)):
        body = encode({**FULL, **more}, Wire.JSON)
        assert read_register_command(body, Wire.JSON, KINDS).replace is expected
    for said in (1, "true", None):
        wanted = ErrorEnvelope("replace must be true or false", "invalid_type", "replace")
        assert refusal({**FULL, "replace": said}, Wire.JSON) == wanted
    assert refusal({**FULL, "replace": True}, Wire.MSGPACK).reason == "unknown_field"


@pytest.mark.parametrize("kind", ["Other", "None"])
def test_a_type_is_one_of_those_that_the_form_has(kind: str) -> None:
    for wire, expected in ((Wire.MSGPACK, "vLLM or SGLang"), (Wire.JSON, "vLLM or SGLang or none")):
        wanted = ErrorEnvelope(f"type must be {expected}", "invalid_value", "type")
        assert refusal({**FULL, "type": kind}, wire) == wanted


def test_a_relays_key_is_of_zmq_addresses_alone() -> None:
    body = {**FULL, "curve_server_key": "a.-:+=^!/*?&<>()[]{}@%$#0123456789012345"}
    read = read_registration(encode(body, Wire.JSON), Wire.JSON, KINDS)
    assert read.curve_server_key == body["curve_server_key"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(read), type=Registration) == read
    with pytest.raises(RequestError, match="ZMQ address") as raised:
        read_registration(
            encode({**body, "endpoint": "http://a:8000"}, Wire.JSON), Wire.JSON, KINDS
        )
    assert raised.value.field == "endpoint"
    with pytest.raises(ValueError, match="ZMQ address of a relay"):
        msgspec.structs.replace(read, endpoint="https://a")


WITHOUT_EVENTS: dict[str, Any] = {
    "type": "none",
    "modelname": "m",
    "instance_id": "a",
    "block_size": 16,
    "dp_rank": 0,
}


def test_an_engine_without_events_has_no_endpoint() -> None:
    own = {
        "http_endpoint": "http://a:8000",
        "url": "http://a",
        "role": "decode",
        "labels": {"rack": "r1"},
        "kv_capacity_tokens": 4096,
        "kv_bytes_per_token": 8,
    }
    for given in ({}, {"endpoint": "", "replay_endpoint": ""}):
        body = encode({**WITHOUT_EVENTS, **own, **given}, Wire.JSON)
        read = read_registration(body, Wire.JSON, KINDS)
        assert read == Registration(
            endpoint="",
            kind=NO_EVENTS,
            model_name="m",
            instance_id="a",
            block_size=16,
            http_endpoint="http://a:8000",
            url="http://a",
            role="decode",
            labels=(Label("rack", "r1"),),
            kv_capacity_tokens=4096,
            kv_bytes_per_token=8,
        )
        assert not read.has_events


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoint", "tcp://a:1"),
        ("replay_endpoint", "tcp://a:2"),
        ("curve_server_key", "k" * 40),
        ("kv_cache_report_mode", "full"),
        ("kv_offloading", "none"),
        ("kv_partial_reuse", "none"),
        ("kv_cache_groups", "one"),
        ("lora_reload", "none"),
    ],
)
def test_an_engine_without_events_says_nothing_of_them(name: str, value: str) -> None:
    error = f"{name} must be left out where type is none: nothing is followed"
    found = refusal({**WITHOUT_EVENTS, name: value}, Wire.JSON)
    assert found == ErrorEnvelope(error, "invalid_value", name)


def test_an_engine_without_events_is_no_part_of_conductors_form() -> None:
    found = refusal({**FULL, "type": "none"}, Wire.MSGPACK)
    assert found == ErrorEnvelope("type must be vLLM or SGLang", "invalid_value", "type")
    found = refusal({**WITHOUT_EVENTS, "hash_profile": PROFILE}, Wire.MSGPACK)
    assert (found.reason, found.field) == ("missing", "endpoint")


def test_an_escaped_none_with_an_endpoint_is_refused() -> None:
    body = encode(FULL, Wire.JSON).replace(b'"vLLM"', b'"\\u006eone"')
    with pytest.raises(RequestError, match="type must be"):
        read_registration(body, Wire.JSON, KINDS)


@pytest.mark.parametrize(
    ("field", "value"), [("replay_endpoint", "tcp://10.0.0.7:5558"), ("curve_server_key", "k" * 40)]
)
def test_a_stream_has_no_socket_beside_it(field: str, value: str) -> None:
    streams = {**FULL, "endpoint": "grpc://10.0.0.7:50051", "replay_endpoint": ""}
    assert read_registration(encode(streams, Wire.JSON), Wire.JSON, KINDS).has_stream
    named = "endpoint" if field == "curve_server_key" else field
    assert refusal({**streams, field: value}, Wire.JSON).field == named
