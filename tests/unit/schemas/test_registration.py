"""What a registration is as a record: older ones are read, and what is not said is not written."""

from typing import Any

import msgspec
import pytest

from schemas import codec
from schemas.answer_states import Doubt
from schemas.errors import EntryError, RegistrationConflictError
from schemas.limits import (
    KV_TOKEN_BYTES_MAX,
    KV_TOKENS_MAX,
    LABEL_BYTES_MAX,
    LABELS_MAX,
    READS_MAX,
    SEQUENCES_AT_ONCE_MAX,
)
from schemas.registration import (
    LMCACHE_TOPIC,
    MOONCAKE,
    NO_EVENTS,
    Label,
    PublisherKind,
    Registration,
    is_new,
    restated_by,
)
from schemas.topics import encode_publisher, encode_registration

OLD: dict[str, Any] = {
    "endpoint": "tcp://a:1",
    "kind": "vLLM",
    "model_name": "m",
    "instance_id": "a",
    "block_size": 16,
}
PLAIN = Registration(
    endpoint="tcp://a:1",
    kind=PublisherKind("vLLM"),
    model_name="m",
    instance_id="a",
    block_size=16,
)
KEY = encode_publisher(PLAIN.publisher)


def decoded(document: dict[str, Any]) -> Registration:
    return read(msgspec.msgpack.encode(document))


def read(record: bytes) -> Registration:
    entry = codec.decode_registry_entry(KEY, record)
    assert entry is not None
    assert entry.registration is not None
    return entry.registration


def test_a_record_without_the_later_fields_is_read_and_written_as_it_was() -> None:
    written = b"\xde\x00\x05" + msgspec.msgpack.encode(OLD)[1:]  # a map whose length takes 16 bits
    assert read(written) == PLAIN
    assert encode_registration(PLAIN) == written
    assert encode_registration(decoded(OLD)) == written


SILENT = msgspec.structs.replace(PLAIN, endpoint="", kind=NO_EVENTS)


def test_an_engine_without_events_has_no_endpoint_and_every_other_has_one() -> None:
    assert read(encode_registration(SILENT)) == SILENT
    assert not SILENT.has_events
    assert PLAIN.has_events
    for document in ({**OLD, "endpoint": ""}, {**OLD, "kind": "none"}):
        with pytest.raises(EntryError):
            decoded(document)


def test_engines_without_events_share_no_endpoint_and_still_a_name() -> None:
    other = msgspec.structs.replace(SILENT, instance_id="b")
    assert is_new(other, {SILENT.publisher: SILENT})
    assert not is_new(SILENT, {SILENT.publisher: SILENT})
    with pytest.raises(RegistrationConflictError, match="service key"):
        is_new(SILENT, {PLAIN.publisher: PLAIN})
    with pytest.raises(RegistrationConflictError, match="service key"):
        is_new(PLAIN, {SILENT.publisher: SILENT})


STREAM = msgspec.structs.replace(PLAIN, endpoint="grpc://a:50051", kv_cache_groups="one")


def test_a_stream_has_neither_a_replay_socket_nor_a_relay() -> None:
    assert STREAM.has_stream
    assert (PLAIN.has_stream, STREAM.has_url, STREAM.local_socket) == (False, False, "")
    assert read(encode_registration(STREAM)) == STREAM
    for more in ({"replay_endpoint": "tcp://a:2"}, {"curve_server_key": "k" * 40}):
        with pytest.raises(EntryError):
            decoded({**OLD, "endpoint": "grpc://a:50051", **more})


def test_the_ranks_of_a_stream_share_its_endpoint_and_nobody_else_does() -> None:
    second = msgspec.structs.replace(STREAM, dp_rank=1)
    assert is_new(second, {STREAM.publisher: STREAM})
    other = msgspec.structs.replace(STREAM, instance_id="b")
    with pytest.raises(RegistrationConflictError, match="endpoint"):
        is_new(other, {STREAM.publisher: STREAM})


LMCACHE_STREAM = msgspec.structs.replace(STREAM, kind=LMCACHE_TOPIC, block_size=256)


def test_a_server_of_lmcache_is_registered_where_it_streams() -> None:
    assert not LMCACHE_STREAM.is_self_registered
    assert msgspec.structs.replace(LMCACHE_STREAM, endpoint="coordinator://a").is_self_registered


def test_a_server_of_lmcache_streams_each_model_and_may_have_its_engines_name() -> None:
    known = {LMCACHE_STREAM.publisher: LMCACHE_STREAM, PLAIN.publisher: PLAIN}
    assert is_new(LMCACHE_STREAM, {PLAIN.publisher: PLAIN})
    assert is_new(msgspec.structs.replace(LMCACHE_STREAM, model_name="other"), known)
    other = msgspec.structs.replace(LMCACHE_STREAM, instance_id="b")
    with pytest.raises(RegistrationConflictError, match="endpoint"):
        is_new(other, known)


def test_what_a_stream_keeps_back_of_cache_groups_is_doubted() -> None:
    assert STREAM.doubt is None
    assert msgspec.structs.replace(STREAM, kv_cache_groups="").doubt is Doubt.GROUPS_UNKNOWN


@pytest.mark.parametrize(
    ("before", "after", "restates"),
    [
        ({}, {"kv_cache_groups": "one", "kv_partial_reuse": "none", "lora_reload": "none"}, True),
        ({"kv_cache_groups": "one"}, {}, True),
        ({}, {"role": "decode", "labels": (Label("a", "b"),), "kv_capacity_tokens": 1}, True),
        ({}, {"reads": ()}, True),
        ({"reads": ("a", "b")}, {"reads": ("a",)}, True),
        ({"reads": ()}, {}, True),
        ({}, {"kv_offloading": "native"}, True),
        ({"kv_offloading": "native"}, {}, False),
        ({}, {"kv_offloading": "lmcache"}, False),
        ({}, {"kv_offloading": "none"}, False),
        ({"kind": MOONCAKE, "kv_offloading": "native"}, {"kind": MOONCAKE}, True),
        ({}, {"kv_cache_groups": "one", "endpoint": "tcp://a:2"}, False),
        ({}, {"kv_cache_groups": "one", "instance_id": "b"}, False),
        ({}, {"kv_cache_groups": "one", "lora_name": "x"}, False),
        ({}, {}, False),
    ],
)
def test_what_says_how_an_engine_is_and_not_what_its_stream_is_restates_it(
    before: Any, after: Any, restates: bool
) -> None:
    first, second = (msgspec.structs.replace(PLAIN, **one) for one in (before, after))
    assert second.restates(first) is restates
    assert (restated_by(second, {first.publisher: first}) == [first]) is restates


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kv_partial_reuse": "none"}, "kv_partial_reuse is left out, got: none"),
        ({"labels": (Label("a", "b"),)}, "labels is left out, got: "),
        ({"replay_endpoint": "tcp://a:2"}, "replay_endpoint is left out, got: tcp://a:2"),
        ({"dp_rank": 0, "max_num_seqs": 3}, "max_num_seqs is 0, got: 3"),
        ({"reads": ()}, "reads is left out, got: []"),
        ({"reads": ("a", "b")}, "reads is left out, got: ['a', 'b']"),
    ],
)
def test_a_conflict_names_what_differs(fields: Any, text: str) -> None:
    other = msgspec.structs.replace(PLAIN, **fields)
    with pytest.raises(RegistrationConflictError) as refused:
        is_new(other, {PLAIN.publisher: PLAIN})
    assert refused.value.differs.startswith(text)


def test_what_is_said_of_an_instance_comes_back_as_it_was_written() -> None:
    full = msgspec.structs.replace(
        PLAIN,
        role="prefill",
        labels=(Label("host", "h"), Label("rack", "")),
        kv_bytes_per_token=KV_TOKEN_BYTES_MAX,
        max_num_seqs=SEQUENCES_AT_ONCE_MAX,
        kv_capacity_tokens=KV_TOKENS_MAX,
        reads=tuple(f"engine-{number}" for number in range(READS_MAX)),
    )
    assert read(encode_registration(full)) == full
    nothing = msgspec.structs.replace(PLAIN, reads=())
    assert read(encode_registration(nothing)) == nothing != PLAIN
    assert decoded({**OLD, "role": "combined", "labels": [], "max_num_seqs": 0}) == PLAIN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("role", "both"),
        ("labels", [["", "a"]]),
        ("labels", [["a", "x" * (LABEL_BYTES_MAX + 1)]]),
        ("labels", [[str(number), ""] for number in range(LABELS_MAX + 1)]),
        ("labels", {"a": "b"}),
        ("kv_bytes_per_token", KV_TOKEN_BYTES_MAX + 1),
        ("max_num_seqs", -1),
        ("kv_capacity_tokens", KV_TOKENS_MAX + 1),
        ("reads", [str(number) for number in range(READS_MAX + 1)]),
        ("reads", [""]),
        ("reads", "a"),
    ],
)
def test_what_is_above_a_bound_is_no_registration(name: str, value: object) -> None:
    with pytest.raises(EntryError):
        decoded({**OLD, name: value})


def test_an_instance_reads_its_own_blocks_and_of_others_what_is_said() -> None:
    for reads, names in ((None, "apq"), ((), "a"), (("p",), "ap"), (("a", "q"), "aq")):
        one = msgspec.structs.replace(PLAIN, reads=reads)
        assert "".join(filter(one.can_read, "apq")) == names
    member = msgspec.structs.replace(PLAIN, instance_id="p#1", pool="p")
    assert (member.shared_as, PLAIN.shared_as) == ("p", "a")
