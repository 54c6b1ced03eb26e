"""Bytes of any kind: what the Rust code reads, it reads as the Python code does, or not at all."""

import contextlib
import json
import random
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from query_api.http.answers import encode_matches
from query_api.http.errors import RequestError
from query_api.http.requests.queries import (
    answer_hash_query,
    answer_query,
    read_hash_query,
    read_query,
)
from query_api.http.wire import Wire, encode
from schemas.arrays import PythonArrayPacker
from schemas.errors import EventsFormatError
from schemas.events import StoredBlocks, encode_events
from schemas.identities import Medium, StreamKey
from schemas.limits import BLOCK_SIZE_MAX
from streams.kernel import Kernel, array_packer, native_available, open_kernel
from streams.kernel.interface import BodyForm, PlainAnswer, PublisherId, ScannedQuery
from tests import strategies
from tests.building import prefix_hashes
from tests.strategies import PUBLISHERS, prompt_tokens, scope_of

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

BOUNDED = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def mutated(encoded: bytes, seed: int) -> bytes:
    """The bytes with a few of them changed, left out, or doubled."""
    choose = random.Random(seed)
    result = bytearray(encoded)
    for _ in range(choose.randrange(1, 4)):
        at = choose.randrange(len(result) + 1)
        match choose.randrange(5):
            case 0:
                result[at : at + 1] = bytes([choose.randrange(256)])
            case 1:
                del result[at : at + choose.randrange(1, 4)]
            case 2:
                result[at:at] = result[at : at + choose.randrange(1, 9)]
            case 3:
                del result[at:]
            case 4:
                result[at : at + 1] = choose.choice((b"\xc0", b"\xdd", b"\xff\xff", b"\xcf", b"0"))
    return bytes(result)


# Events


def attempt(kernel: Kernel, encoded: bytes) -> bool:
    """Whether the bytes were accepted."""
    publisher = kernel.open_publisher(*PUBLISHERS[0])
    try:
        kernel.apply(publisher, encoded, -1)
    except EventsFormatError:
        return False
    return True


def passes(kernel: Kernel, encoded: bytes) -> bool:
    """Whether the check of the events accepts the bytes."""
    try:
        kernel.check_events(encoded)
    except EventsFormatError:
        return False
    return True


@BOUNDED
@given(strategies.event_lists, st.lists(st.integers(0, 2**32), min_size=8, max_size=8))
def test_mutated_events_are_accepted_and_applied_alike(events: list[Any], seeds: list[int]) -> None:
    encoded = encode_events(events)
    reference, rust = (open_kernel(5, name=name) for name in ("reference", "rust"))
    for seed in seeds:
        changed = mutated(encoded, seed)
        accepted = attempt(rust, changed)
        assert accepted == attempt(reference, changed)
        assert accepted == passes(rust, changed) == passes(reference, changed)
        assert rust.counters() == reference.counters()
        assert rust.contexts() == reference.contexts()
    assert sorted(rust.take_changes()) == sorted(reference.take_changes())


@BOUNDED
@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_applied(encoded: bytes) -> None:
    kernel = open_kernel(5, name="rust")
    with contextlib.suppress(ValueError):
        kernel.load(strategies.context_of("", "a"), encoded)
    attempt(kernel, encoded)
    scanned_by_both(encoded)
    kernel.query(scope_of(""), encoded, (b"", encoded), None)
    kernel.query_by_hash(scope_of(""), encoded, None)
    assert kernel.query(scope_of(""), prompt_tokens((0,)), (), "nobody") == []


# Arrays

numbers = st.one_of(
    st.integers(-(2**31), 2**32 - 1), st.integers(-300, 300), st.integers(-(2**63), 2**64 - 1)
)
elements = st.one_of(numbers, st.tuples(numbers, numbers), st.binary(max_size=12), st.booleans())
arrays = st.one_of(
    st.lists(st.integers(-200_000, 200_000), max_size=20),
    st.lists(st.tuples(st.integers(0, 200_000), numbers), max_size=8),
    st.lists(st.one_of(numbers, st.binary(min_size=8, max_size=40)), max_size=8),
    st.lists(elements, max_size=4),
)


def packed(packer: Any, name: str, encoded: bytes) -> bytes | None:
    try:
        result: bytes = getattr(packer, name)(encoded)
    except ValueError:
        return None
    return result


@BOUNDED
@given(arrays, st.lists(st.integers(0, 2**32), min_size=8, max_size=8))
def test_mutated_arrays_are_packed_alike(values: list[Any], seeds: list[int]) -> None:
    encoded = msgspec.msgpack.encode(values)
    python, rust = PythonArrayPacker(), array_packer()
    for changed in (encoded, *(mutated(encoded, seed) for seed in seeds)):
        for name in ("pack_tokens", "pack_hashes"):
            assert packed(rust, name, changed) == packed(python, name, changed)


# The JSON of a query

_NAMES = ("model", "lora_name", "tenant_id", "instance_id", "cache_salt")


def parsed(body: bytes) -> ScannedQuery | None:
    """What the full parse says of the body, or None where it refuses it."""
    try:
        query = read_query(body, Wire.JSON)
    except RequestError:
        return None
    assert query.additional_salt is None, "no body that is scanned names a namespace"
    return ScannedQuery(
        query.model,
        query.lora_name,
        query.tenant_id,
        query.instance_id,
        query.block_size,
        query.cache_salt,
        query.content,
    )


def scanned_by_both(body: bytes) -> ScannedQuery | None:
    """What both kernels' scanners say, which must be the same, and what the full parse says."""
    reference, rust = (open_kernel(5, name=name).scan_query(body) for name in ("reference", "rust"))
    assert rust == reference
    if rust is not None:
        assert rust == parsed(body)
    return rust


json_names = st.text(
    st.characters(exclude_characters='"\\', exclude_categories=("Cc", "Cs")), min_size=1, max_size=9
)
bodies = st.fixed_dictionaries(
    {
        "model": json_names,
        "block_size": st.integers(1, BLOCK_SIZE_MAX),
        "token_ids": st.builds(
            lambda tokens, times: tokens * times,
            st.lists(
                st.one_of(st.integers(-(2**31), 2**32 - 1), st.integers(-1, 200_000)), max_size=30
            ),
            st.sampled_from((1, 1, 9)),  # enough of them are read eight at a time
        ),
    },
    optional={name: json_names for name in _NAMES[1:]},
)


@BOUNDED
@given(
    bodies,
    st.permutations(range(7)),
    st.sampled_from((None, 0, 1)),
    st.sampled_from(((",", ":"), (", ", ": "), (" \n,\t ", "\r: "))),
)
def test_plain_bodies_are_scanned_as_they_are_parsed(
    fields: dict[str, Any], order: list[int], indent: int | None, separators: tuple[str, str]
) -> None:
    pairs = list(fields.items())
    shuffled = dict(pairs[i] for i in order if i < len(pairs))
    text = json.dumps(shuffled, ensure_ascii=False, indent=indent, separators=separators)
    assert scanned_by_both(text.encode()) is not None


def edited(body: bytes, seed: int) -> bytes:
    """The body with a few pieces put in or exchanged that mean something in JSON."""
    choose = random.Random(seed)
    for _ in range(choose.randrange(1, 4)):
        at = choose.randrange(len(body) + 1)
        piece = choose.choice(_PIECES)
        body = body[:at] + piece + body[at + choose.choice((0, 0, 1, len(piece))) :]
    return body


_PIECES = (
    b" ", b"\n", b"\t", b"\r", b"\x0b", b"\x00", b"\x7f", b",", b":", b"[", b"]", b"{", b"}", b'"',
    b"\\", b'\\"', b"\\u0031", b"0", b"00", b"1", b"9" * 8, b"9" * 9, b"2147483648", b"2147483649",
    b"4294967295", b"4294967296", b"-1", b"-2147483649",
    b"123456789012345", b"1234567890123456", b"0" * 16, b"-", b"-0", b"+1", b".", b".0", b"e1",
    b"null", b"true", b"[]", b"{}", b'""', b"\xc3\xa9", b"\xc3", b"\xff", b"\xed\xa0\x80",
    b"\xef\xbb\xbf", b'"model":"m",', b'"x":1,', b'"token_ids":[],', b",1" * 20, b" , 1" * 20,
    b"1234567," * 9, b'"m' + b"m" * 1024 + b'"',
)  # fmt: skip


@BOUNDED
@given(bodies, st.lists(st.integers(0, 2**32), min_size=24, max_size=24))
def test_mutated_bodies_are_scanned_alike_and_as_they_are_parsed_or_not_at_all(
    fields: dict[str, Any], seeds: list[int]
) -> None:
    body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    for seed in seeds:
        scanned_by_both(mutated(body, seed))
        scanned_by_both(edited(body, seed))


@BOUNDED
@given(st.lists(st.sampled_from((*_PIECES, b'{"model":"m","block_size":1,"token_ids":[', b"]}"))))
def test_any_pieces_of_json_are_scanned_alike(pieces: list[bytes]) -> None:
    scanned_by_both(b"".join(pieces))
    scanned_by_both(b'{"model":"m","block_size":1,"token_ids":[' + b"".join(pieces) + b"]}")


# Answers


def answered(
    kernel: Kernel, body: bytes, wire: Wire = Wire.JSON, *, by_hash: bool = False
) -> PlainAnswer | None:
    """What the steps make of a body; None where they refuse it."""
    try:
        query = (read_hash_query if by_hash else read_query)(body, wire)
    except RequestError:
        return None
    scope, matches = (answer_hash_query if by_hash else answer_query)(kernel, query)
    longest = max((match.longest for match in matches), default=0)
    text = encode_matches(query.tenant_id, matches, wire)
    tokens = len(query.content) // 8 * query.block_size if by_hash else len(query.content) // 4
    return PlainAnswer(scope, tokens, longest, text)


NAMES = ("i-1", "i-é", 'i-"', "i-\\", "i-\x7f", "i-\n")


def holding(names: Sequence[str], salts: Sequence[str]) -> Kernel:
    """Each instance holds its own share of the prompt 0, 1, 2, ..., on two ranks and two tiers."""
    kernel = open_kernel(7, name="rust")
    for salt in salts:
        for place, name in enumerate(names):
            for rank in range(2):
                stream = StreamKey("t", "m", 4, salt, name)
                publisher = kernel.open_publisher(stream, rank)
                kernel.register(publisher, "", True)
                blocks = 3 + place * (1 + rank)
                stored = StoredBlocks(
                    sequence=0,
                    hashes=b"".join(struct.pack("<Q", block + 1) for block in range(blocks)),
                    tokens=struct.pack(f"<{4 * blocks}I", *range(4 * blocks)),
                    block_size=4,
                    medium=Medium.CPU if rank else Medium.GPU,
                )
                kernel.apply(publisher, encode_events([stored]), -1)
    return kernel


@pytest.mark.parametrize("names", [NAMES[:1], NAMES[:2], *((name,) for name in NAMES[1:])])
@pytest.mark.parametrize("salts", [("",), ("", "salt")])
def test_an_answer_is_what_its_steps_make(names: Sequence[str], salts: Sequence[str]) -> None:
    kernel = holding(names, salts)
    tokens = list(range(200))
    plain = {"model": "m", "block_size": 4, "tenant_id": "t", "token_ids": tokens}
    answers = 0
    changes: list[dict[str, object]] = [
        {},
        {"token_ids": tokens[:10]},
        {"token_ids": []},
        {"token_ids": tokens[::-1]},
        {"instance_id": names[0]},
        {"instance_id": "nobody"},
        {"cache_salt": "salt"},
        {"cache_salt": "another"},
        {"tenant_id": "other"},
        {"model": "other"},
        {"lora_name": "other"},
        {"block_size": BLOCK_SIZE_MAX},
        {"tenant_id": 't"'},
        {"token_ids": [-1]},
        {"token_ids": ["x"]},
    ]
    for changed in changes:
        body = json.dumps({**plain, **changed}, ensure_ascii=False).encode()
        given = kernel.answer(body)
        if given is not None:
            assert given == answered(kernel, body), changed
            answers += 1
    assert answers > 6 or not names[0].isprintable() or set(names[0]) & {'"', "\\"}


@BOUNDED
@given(bodies, st.lists(st.integers(0, 2**32), min_size=8, max_size=8))
def test_an_answer_to_any_body_is_what_its_steps_make_or_none(
    fields: dict[str, Any], seeds: list[int]
) -> None:
    kernel = holding(NAMES[:2], ("",))
    body = json.dumps(fields, ensure_ascii=False).encode()
    for one in (body, *(mutated(body, seed) for seed in seeds)):
        given = kernel.answer(one)
        assert given is None or given == answered(kernel, one)


@pytest.mark.parametrize("names", [NAMES[:1], NAMES, [f"i-{place}" for place in range(20)]])
@pytest.mark.parametrize("salts", [("",), ("", "salt")])
@pytest.mark.parametrize("by_hash", [False, True])
def test_a_packed_answer_is_what_its_steps_make(
    names: Sequence[str], salts: Sequence[str], by_hash: bool
) -> None:
    kernel = holding(names, salts)
    name = "seq_hashes" if by_hash else "token_ids"
    chain = prefix_hashes(range(40), 4, seed=7)
    content = struct.pack("<10Q", *chain) if by_hash else struct.pack("<40I", *range(40))
    plain = {"model": "m", "block_size": 4, "tenant_id": "t", name: content}
    hits = 0
    changes: list[dict[str, object]] = [
        {},
        {name: content[:40]},
        {name: b""},
        {name: content[:3]},
        {name: [1, 2]},
        {name: None},
        {"instance_id": names[0]},
        {"instance_id": ""},
        {"cache_salt": "salt"},
        {"cache_salt": "another"},
        {"cache_salt": None},
        {"tenant_id": ""},
        {"model": ""},
        {"model": "other"},
        {"lora_name": "other"},
        {"lora_name": None},
        {"additional_salt": "x"},
        {"block_size": BLOCK_SIZE_MAX},
        {"block_size": BLOCK_SIZE_MAX + 1},
        {"block_size": 0},
        {"block_size": 4.0},
        {"tenant_id": "t" * 1025},
        {"other": 1},
    ]
    for changed in changes:
        body = msgspec.msgpack.encode({**plain, **changed})
        for sent in (body, body + b"\xc0", body[:-1]):
            given = kernel.answer(sent, True, by_hash)
            if given is not None:
                assert given == answered(kernel, sent, Wire.MSGPACK, by_hash=by_hash), changed
                hits += given.hit_tokens > 0
    assert hits > 2


@BOUNDED
@given(bodies, st.booleans(), st.lists(st.integers(0, 2**32), min_size=8, max_size=8))
def test_a_packed_answer_to_any_body_is_what_its_steps_make_or_none(
    fields: dict[str, Any], by_hash: bool, seeds: list[int]
) -> None:
    kernel = holding(NAMES[:2], ("",))
    tokens = struct.pack(f"<{len(fields['token_ids'])}q", *fields["token_ids"])
    named = {key: value for key, value in fields.items() if key != "token_ids"}
    body = msgspec.msgpack.encode({**named, "seq_hashes" if by_hash else "token_ids": tokens})
    for one in (body, *(mutated(body, seed) for seed in seeds)):
        given = kernel.answer(one, True, by_hash)
        assert given is None or given == answered(kernel, one, Wire.MSGPACK, by_hash=by_hash)


@pytest.mark.parametrize("wire", list(Wire))
def test_answers_follow_who_joins_and_leaves(wire: Wire, seed: int) -> None:
    """Also beyond 64 instances and 64 ranks, where masks get wider; with and without misses."""
    rng = random.Random(seed)
    kernel = open_kernel(7, name="rust")
    publishers: dict[tuple[str, int], PublisherId] = {}
    tokens = struct.pack("<40I", *range(40))
    fields = {"model": "m", "block_size": 4, "tenant_id": "t"}
    packed = wire is Wire.MSGPACK
    numbers: object = tokens if packed else list(range(40))
    body = encode({**fields, "token_ids": numbers}, wire)
    form = BodyForm.MSGPACK if packed else BodyForm.JSON
    for step in range(300):
        key = (f"i-{rng.randrange(90)}", rng.randrange(2))
        if key in publishers and rng.random() < 0.3:
            kernel.unregister(publishers.pop(key))
        elif key not in publishers:
            publishers[key] = kernel.open_publisher(StreamKey("t", "m", 4, "", key[0]), key[1])
            kernel.register(publishers[key], "", True)
        if key in publishers and rng.random() < 0.3:
            blocks = rng.randrange(1, 11)
            stored = StoredBlocks(
                sequence=0,
                hashes=b"".join(struct.pack("<Q", block + 1) for block in range(blocks)),
                tokens=tokens[: 16 * blocks],
                block_size=4,
                medium=Medium.GPU,
            )
            kernel.apply(publishers[key], encode_events([stored]), -1)
        given = kernel.answer(body, form)
        assert (given is not None) is bool(publishers)
        if given is None:  # nobody is there
            continue
        assert given == answered(kernel, body, wire), f"seed {seed}, step {step}"
        _, matches = answer_query(kernel, read_query(body, wire))
        hits = [match for match in matches if match.longest]
        given = kernel.answer(body, form, False, b"hits_only=1")
        assert given is not None
        assert given.text == encode_matches("t", hits, wire), f"seed {seed}, step {step}"


def test_the_reference_kernel_has_no_answers() -> None:
    body = b'{"model":"m","block_size":1,"token_ids":[1]}'
    for name, answers in (("reference", False), ("rust", True)):
        kernel = open_kernel(7, name=name)
        assert kernel.answer(body) is None  # nobody has what is asked for
        publisher = kernel.open_publisher(StreamKey("default", "m", 1, "", "a"), 0)
        kernel.register(publisher, "", True)
        assert (kernel.answer(body) is not None) is answers
