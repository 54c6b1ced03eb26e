"""What SGLang's router is answered, in the messages that it has itself."""

from typing import Any

import grpc
import pytest

from query_api.grpc.bounds import GRPC_HASHES_MAX, GRPC_TEXT_BYTES_MAX
from query_api.grpc.refusals import GrpcRefusal
from schemas.answer_states import AnswerState, Standing
from tests.router_protos import PACKED, TEXT, Messages
from tests.unit.query_api.grpc.conftest import NAMES, Index

SIGNED = [name - 2**64 if name >= 2**63 else name for name in NAMES]
BOTH = pytest.mark.parametrize("messages", [PACKED, TEXT], ids=["packed", "text"])


def request(messages: Messages, hashes: list[int], **fields: int) -> bytes:
    values: list[Any] = hashes if messages is PACKED else [str(value) for value in hashes]
    message = messages.MatchExternalKvPrefixRequest(hashes=values, **fields)
    encoded: bytes = message.SerializeToString()
    return encoded


def ask(index: Index, message: bytes, **options: Any) -> Any:
    reply = index.kv_indexer(**options).match_prefix(message)
    return PACKED.MatchExternalKvPrefixResponse.FromString(reply)


def matches(response: Any) -> list[tuple[str, int]]:
    return [(one.worker_address, one.matched_prefix_blocks) for one in response.matches]


@BOTH
def test_the_longest_prefix_comes_first_under_the_routers_own_url(
    index: Index, messages: Messages
) -> None:
    index.add("a", 3, url="http://10.0.0.1:30000/")
    index.add("b", 8, url="http://10.0.0.2:30000")
    index.add("c", 0, url="http://10.0.0.3:30000")
    response = ask(index, request(messages, SIGNED))
    assert matches(response) == [("http://10.0.0.2:30000", 8), ("http://10.0.0.1:30000/", 3)]
    assert (response.best_prefix_blocks, response.blocks_read) == (8, 8)
    assert [one.worker_id for one in response.matches] == ["b|default|0", "a|default|0"]


@BOTH
def test_hashes_that_nobody_holds_are_answered_with_nobody(
    index: Index, messages: Messages
) -> None:
    index.add("a", 3)
    response = ask(index, request(messages, [1, 2, 3]))
    assert matches(response) == []
    assert (response.best_prefix_blocks, response.blocks_read) == (0, 3)


@BOTH
def test_no_more_than_max_blocks_are_looked_at(index: Index, messages: Messages) -> None:
    index.add("a", 8)
    response = ask(index, request(messages, SIGNED, max_blocks=2))
    assert matches(response) == [("a", 2)]
    assert (response.best_prefix_blocks, response.blocks_read) == (2, 2)
    assert index.counts.hashes_ignored == 0


@BOTH
def test_one_hash_is_read_in_either_form(index: Index, messages: Messages) -> None:
    index.add("a", 8)
    assert matches(ask(index, request(messages, SIGNED[:1]))) == [("a", 1)]


def test_unsigned_text_means_the_same_hash(index: Index) -> None:
    index.add("a", 8)
    assert matches(ask(index, request(TEXT, NAMES))) == [("a", 8)]


def test_packed_hashes_may_come_in_several_pieces(index: Index) -> None:
    index.add("a", 8)
    message = request(PACKED, SIGNED[:3]) + request(PACKED, SIGNED[3:])
    assert matches(ask(index, message)) == [("a", 8)]


def test_of_ranks_behind_one_url_the_best_counts(index: Index) -> None:
    index.add("a", 2, url="u", rank=0)
    index.add("a", 5, url="u", rank=1)
    index.add("a", 3, url="u", rank=2)
    index.add("a", 1, url="v", rank=3)
    response = ask(index, request(PACKED, SIGNED))
    assert matches(response) == [("u", 5), ("v", 1)]
    assert response.matches[0].worker_id == "a|default|1"


def test_only_the_named_model_and_tenant_are_asked(index: Index) -> None:
    index.add("a", 2, model_name="m")
    index.add("b", 3, model_name="n")
    index.add("c", 4, tenant_id="t")
    message = request(PACKED, SIGNED)
    assert matches(ask(index, message)) == [("b", 3), ("a", 2)]
    assert matches(ask(index, message, model_name="m")) == [("a", 2)]
    assert matches(ask(index, message, tenant_id="t")) == [("c", 4)]


def test_with_only_exact_others_are_left_out(index: Index) -> None:
    index.add("a", 2)
    index.add("b", 3)
    index.table.standings["b"] = Standing(AnswerState.UNCONFIRMED, "", 0.0)
    assert matches(ask(index, request(PACKED, SIGNED), only_exact=True)) == [("a", 2)]
    assert matches(ask(index, request(PACKED, SIGNED))) == [("b", 3), ("a", 2)]


def test_who_is_registered_later_is_known_at_once(index: Index) -> None:
    index.add("a", 2)
    assert matches(ask(index, request(PACKED, SIGNED))) == [("a", 2)]
    index.add("b", 3, url="later")
    assert matches(ask(index, request(PACKED, SIGNED))) == [("later", 3), ("a", 2)]


def test_of_a_long_prompt_the_first_hashes_count_and_the_rest_is_counted(index: Index) -> None:
    index.add("a", 8)
    hashes = SIGNED + [1] * GRPC_HASHES_MAX
    for max_blocks, ignored in ((0, 8), (GRPC_HASHES_MAX + 3, 3), (7, 0)):
        index.counts.hashes_ignored = 0
        response = ask(index, request(PACKED, hashes, max_blocks=max_blocks))
        assert response.blocks_read == min(max_blocks or GRPC_HASHES_MAX, GRPC_HASHES_MAX)
        assert index.counts.hashes_ignored == ignored


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xff",
        b"\x0a\x05abc",
        b"\x0a\x00",
        b"\x0a\x03abc",
        b"\x0a\x099999999a7",
        b"\x0a\x0112\x0a\x03abc",
        b"\x0a\x0112\x0a\x00",
        PACKED.MatchExternalKvPrefixRequest(max_blocks=3).SerializeToString(),
    ],
)
def test_what_is_no_request_is_refused_by_name(index: Index, message: bytes) -> None:
    with pytest.raises(GrpcRefusal) as caught:
        ask(index, message)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.reason == "malformed"
    assert caught.value.text.startswith("Expected ")


@pytest.mark.parametrize("piece", [b"\x0a\x00", b"\x0a\x018", b"\x0a\x8a\x80\x00" + b"7" * 10])
def test_a_million_small_pieces_are_refused_unread(index: Index, piece: bytes) -> None:
    with pytest.raises(GrpcRefusal) as caught:
        ask(index, piece * (GRPC_TEXT_BYTES_MAX // len(piece) + 1))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.reason == "too_large"


def test_a_million_packed_hashes_are_answered(index: Index) -> None:
    index.add("a", 8)
    response = ask(index, request(PACKED, SIGNED + [1] * 1_000_000))
    assert matches(response) == [("a", 8)]
