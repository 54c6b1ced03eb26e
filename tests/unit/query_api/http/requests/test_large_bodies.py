"""What a large body costs before it is refused: nothing is built of more than any body needs."""

import struct
from collections.abc import Callable
from typing import Any

import pytest

from lmcache_adapter.http.command_requests import read_command
from query_api.http.errors import RequestError
from query_api.http.requests import fields
from query_api.http.requests.fields import read_hashes, read_tokens
from query_api.http.requests.queries import read_hash_query, read_query
from query_api.http.requests.registrations import read_registration, read_unregistration
from query_api.http.wire import BODY_COLONS_MAX, BODY_FIELDS_MAX, Field, Wire, encode
from routing.http.requests import read_feedback, read_load, read_route
from routing.select.bodies import PromptBody, SelectBody, read_body, to_request
from schemas.registration import PublisherKind
from streams.kernel.reference import ReferenceKernel

KINDS = (PublisherKind("vLLM"),)
KERNEL = ReferenceKernel(1337)
SPLIT: list[Callable[[bytes, Wire], object]] = [
    read_query,
    read_hash_query,
    lambda body, wire: read_registration(body, wire, KINDS),
    read_unregistration,
    read_command,
]
"""The readers of bodies of which fields are taken out one by one."""


def refusal(read: Callable[[], object]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read()
    return caught.value


def map_of(entries: int, content: bytes) -> bytes:
    return b"\xdf" + struct.pack(">I", entries) + content


@pytest.mark.parametrize("read", SPLIT)
def test_a_map_of_too_many_fields_is_refused_by_its_head(
    read: Callable[[bytes, Wire], object],
) -> None:
    count = BODY_FIELDS_MAX + 1
    content = b"\x01".ljust(2 * count, b"\xc1")  # no name, and no msgpack
    error = refusal(lambda: read(map_of(count, content), Wire.MSGPACK))
    assert (error.status, error.reason) == (400, "too_many_fields")
    assert str(error) == f"expected a body with at most {BODY_FIELDS_MAX} fields, got {count}"


def test_a_map_that_is_cut_off_is_malformed_whatever_it_claims() -> None:
    error = refusal(lambda: read_query(map_of(BODY_FIELDS_MAX + 1, b"\xa1a\x90"), Wire.MSGPACK))
    assert error.reason == "invalid_msgpack"


@pytest.mark.parametrize("read", SPLIT)
def test_an_object_of_too_many_fields_is_refused_before_it_is_decoded(
    read: Callable[[bytes, Wire], object],
) -> None:
    count = BODY_COLONS_MAX + 1
    error = refusal(lambda: read(b"{" + b'"a":1,' * count, Wire.JSON))  # never closed
    assert (error.status, error.reason) == (400, "too_many_fields")
    assert str(error) == f"expected a body with at most {BODY_COLONS_MAX} colons, got {count}"


@pytest.mark.parametrize("wire", list(Wire))
def test_as_many_fields_as_allowed_are_looked_at(wire: Wire) -> None:
    count = BODY_COLONS_MAX if wire is Wire.JSON else BODY_FIELDS_MAX
    body = encode({f"{number}": 1 for number in range(count)}, wire)
    error = refusal(lambda: read_query(body, wire))
    assert (error.reason, error.field) == ("unknown_field", "0")


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize(
    "read",
    [
        lambda body, wire: read_route(body, wire, [], KERNEL, is_ready=True),
        read_feedback,
        lambda body, wire: read_load(body, wire, 0.0),
    ],
)
def test_bodies_that_are_decoded_as_a_whole_end_at_the_first_unknown_field(
    read: Callable[[bytes, Wire], object], wire: Wire
) -> None:
    body = b'{"a":1,' if wire is Wire.JSON else map_of(10_000_000, b"\xa1a\x90\xc1")
    error = refusal(lambda: read(body, wire))
    assert (error.reason, error.field) == ("unknown_field", "a")


def test_fields_that_are_skipped_have_no_bound() -> None:
    names = {f"{number}": 1 for number in range(BODY_COLONS_MAX + 1)}
    assert read_body(encode(names, Wire.JSON), SelectBody) == SelectBody()


@pytest.mark.parametrize("read", [read_tokens, read_hashes])
@pytest.mark.parametrize("wire", list(Wire))
def test_an_array_that_is_too_long_is_refused_before_its_elements_are_read(
    read: Callable[[Field, Wire], bytes], wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "QUERY_TOKENS_MAX", 100)

    def array(count: int) -> Field:
        values: list[Any] = [*range(count - 1), "none"]
        encoded = encode(values, wire)
        if wire is Wire.MSGPACK:
            encoded = b"\xdd" + struct.pack(">I", count) + encoded[3:]
        return Field("token_ids", encoded)

    assert refusal(lambda: read(array(100), wire)).reason == "invalid_type"
    error = refusal(lambda: read(array(101), wire))
    assert (error.status, error.reason) == (413, "too_many_elements")


@pytest.mark.parametrize("wire", list(Wire))
def test_hashes_of_any_sign_are_read(wire: Wire) -> None:
    for values in ([], [0, 2**64 - 1], [-1, 2**64 - 1, -(2**63)]):
        packed = read_hashes(Field("seq_hashes", encode(values, wire)), wire)
        assert packed == struct.pack(f"<{len(values)}Q", *[value % 2**64 for value in values])


def test_hashes_of_dynamos_blocks_are_chained_by_the_kernel() -> None:
    asked = PromptBody(block_hashes=[1, -2], sequence_hashes=[3, 4], isl_tokens=8)
    request = to_request(asked, 4, KERNEL, (), is_ready=True, reserve=False)
    assert request.prefixes == KERNEL.chain_hashes(struct.pack("<2q", 1, -2))
