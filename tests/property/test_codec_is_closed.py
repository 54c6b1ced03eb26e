"""Whatever bytes come back, a decoder answers or raises one of its own errors; nothing else."""

import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import generate_latest

from bridge.wire import KINDS
from lmcache_adapter.commands.book import CommandBook
from lmcache_adapter.wire.commands import read_reply, request_of, unsupported
from query_api.http.errors import RequestError
from query_api.http.requests.registrations import read_registration
from query_api.http.wire import Wire
from schemas import codec
from schemas.command_records import (
    BlockPlace,
    ClosedRecord,
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandWorker,
    ResultRecord,
    encode_command,
)
from schemas.errors import EntryError, RecordError, RowCorruptError, RowVersionError
from schemas.events import encode_events
from schemas.identities import ModelContext
from schemas.limits import ERROR_DETAIL_CHARS_MAX, NAME_BYTES_MAX
from schemas.positions import PublisherState
from schemas.records import (
    EventsRecord,
    GapRecord,
    RegisteredRecord,
    ResetRecord,
    UnregisteredRecord,
    UnusableRun,
    encode_record,
)
from schemas.registration import LiveRegistration
from schemas.topics import CursorNote, encode_note, encode_publisher, encode_registration
from streams.kernel import native_available, open_kernel
from streams.log.record_lines import PlacedRecord, StreamFilter, record_line
from streams.table.fold import INTERNAL_ERROR, Fold, UnprovenState
from streams.table.ledger import Account, Incarnation, Interval, Ledger
from streams.table.rows import bodies
from streams.table.rows import format as rows
from streams.table.rows.format import RowKind, RowPlace
from streams.table.store import LocalCopy
from tests.fakes import registration
from tests.strategies import event_lists

ONE = registration("a", additional_salt="s", lora_name="l")
KEY = encode_publisher(ONE.publisher)
CONTEXT = ModelContext("t", "m", "l", 4, "s", "i")
ENVELOPE: dict[str, Any] = {"stream": ONE.stream, "dp_rank": 0, "bridge_time": 1.0}
CURSOR: dict[str, Any] = {"incarnation": 1, "first_sequence": 3, "last_sequence": 4}
NOTE = CursorNote(incarnation=1, sequence=4, partition=2, offset=7, engine_time=1.5, registered=9)
ROW_KEY = rows.row_key(RowPlace(CONTEXT, 1, 2))
LOST = Account(2, (Interval(3, 3, "missed", 1.0, 2.0),), 1, 1)
LEDGER = Ledger(incarnations=(Incarnation(number=1, last=4, lost=LOST),), lost={"missed": 2})


def events_record(encoded: bytes, **fields: Any) -> bytes:
    return encode_record(
        EventsRecord(**ENVELOPE, **CURSOR, engine_time=2.0, events=msgspec.Raw(encoded), **fields)
    )


RECORDS = [
    events_record(encode_events([])),
    events_record(
        encode_events([]),
        repaired="missed",
        incomplete=4,
        unusable=(UnusableRun(3, 3, "bad_hashes"), UnusableRun(4, 4, "undecodable", True)),
    ),
    encode_record(ResetRecord(**ENVELOPE, incarnation=2, first_sequence=-1, last_sequence=-1)),
    encode_record(GapRecord(**ENVELOPE, **CURSOR, reason="spool_full")),
    encode_record(RegisteredRecord(**ENVELOPE, registration=ONE)),
    encode_record(UnregisteredRecord(**ENVELOPE)),
]


COMMANDS = [
    encode_command(
        CommandRecord(
            command_id="Move1",
            action=CommandAction.MOVE,
            instance_id="a",
            location="L",
            tokens=bytes(8),
            target=BlockPlace("b", "LocalCPUBackend"),
            workers=(CommandWorker(0, "10.0.0.7:8200"), CommandWorker(3)),
            issued_at=5.0,
        )
    ),
    encode_command(
        ResultRecord(command_id="Move1", worker_id=3, outcome=CommandOutcome.OK, tokens=2, at=6.0)
    ),
    encode_command(ClosedRecord(command_id="Move1", reason="why", at=7.0)),
]
REPLIES = [
    msgspec.msgpack.encode({"type": "PinWorkerRetMsg", "num_tokens": 5}),
    msgspec.msgpack.encode({"type": "HealthWorkerRetMsg", "error_code": 0}),
    msgspec.msgpack.encode({"type": "ErrorMsg", "error": "text"}),
]


def fold_command(encoded: bytes) -> object:
    """And all that is done with it: whatever was decoded can be folded, and be sent to a worker."""
    record = codec.decode_command(encoded)
    book = CommandBook()
    for one in (record, *map(codec.decode_command, COMMANDS)):
        book.take(one)
    if isinstance(record, CommandRecord):
        unsupported(record)
        return [request_of(record, worker) for worker in record.workers]
    return record


def decode_record_with_events(encoded: bytes) -> object:
    record = codec.decode_record(encoded)
    return codec.decode_record_events(record) if isinstance(record, EventsRecord) else record


def decode_events(encoded: bytes) -> object:
    record = msgspec.structs.replace(
        codec.decode_record(RECORDS[0]),
        events=msgspec.Raw(encoded),
    )
    assert isinstance(record, EventsRecord)
    return codec.decode_record_events(record)


def body(kind: type) -> Callable[[bytes], object]:
    decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(kind)
    return lambda encoded: codec.decode_row_body(decoder, key=b"key", body=encoded)


class Decoder(NamedTuple):
    name: str
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    valid: list[bytes]


ENTRY, ROW = (EntryError,), (RowCorruptError, RowVersionError)
DECODERS = [
    Decoder("record", decode_record_with_events, (RecordError,), RECORDS),
    Decoder("command", fold_command, (RecordError,), COMMANDS),
    Decoder("answer to a command", lambda frame: read_reply(CommandAction.PIN, frame), (), REPLIES),
    Decoder("events", decode_events, (RecordError,), [encode_events([])]),
    Decoder("publisher", codec.decode_publisher, ENTRY, [KEY]),
    Decoder(
        "registry value",
        lambda value: codec.decode_registry_entry(KEY, value),
        ENTRY,
        [encode_registration(ONE)],
    ),
    Decoder(
        "registry key",
        lambda key: codec.decode_registry_entry(key, encode_registration(ONE)),
        ENTRY,
        [KEY],
    ),
    Decoder("registry tombstone", lambda key: codec.decode_registry_entry(key, None), (), [KEY]),
    Decoder(
        "cursor value",
        lambda value: codec.decode_cursor_entry(KEY, value),
        ENTRY,
        [encode_note(NOTE)],
    ),
    Decoder(
        "cursor key", lambda key: codec.decode_cursor_entry(key, encode_note(NOTE)), ENTRY, [KEY]
    ),
    Decoder("row key", rows.parse_row_key, ROW, [ROW_KEY]),
    Decoder("mark key", rows.parse_mark_key, ROW, [rows.mark_key(CONTEXT)]),
    Decoder(
        "publisher key",
        rows.parse_publisher_key,
        ROW,
        [rows.publisher_key(rows.PUBLISHER, ONE.publisher)],
    ),
    Decoder("ledger key", rows.parse_ledger_key, ROW, [rows.ledger_key(ONE.publisher)]),
    Decoder("ledger", body(Ledger), ROW, [msgspec.msgpack.encode(LEDGER)]),
    Decoder(
        "row",
        lambda value: rows.decode_row(b"key", value),
        ROW,
        [rows.encode_row(RowKind.DELTA, 7, b"body")],
    ),
    Decoder("mark", lambda value: rows.parse_mark(b"key", value), ROW, [b"\1\0\0\0"]),
    Decoder("seed", lambda value: rows.parse_seed(b"key", value), ROW, [b"\1\0\0\0\0\0\0\0"]),
    Decoder(
        "publisher state",
        body(PublisherState),
        ROW,
        [msgspec.msgpack.encode(PublisherState(incarnation=1, sequence=3, degraded_since=2))],
    ),
    Decoder(
        "registered",
        body(LiveRegistration),
        ROW,
        [msgspec.msgpack.encode(LiveRegistration(ONE, 3))],
    ),
    Decoder(
        "unproven",
        body(UnprovenState),
        ROW,
        [msgspec.msgpack.encode(UnprovenState(3, (ONE.publisher,)))],
    ),
    Decoder("local", body(LocalCopy), ROW, [msgspec.msgpack.encode(LocalCopy(3, 1.0))]),
]
ids = [decoder.name for decoder in DECODERS]

hostile_numbers = st.sampled_from(
    [-(2**63), -2, -1, 0, 2**31, 2**32, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1]
)
hostile_leaves = st.one_of(
    hostile_numbers,
    st.sampled_from([float("nan"), float("inf"), 1e308, True, None, b"\xff", "", "x" * 2**20]),
    st.sampled_from([msgspec.Raw(b"\xa2\xff\xfe"), msgspec.Raw(b"\xc7\x01\x05a")]),
    st.sampled_from(
        [msgspec.Raw(b"\x91" * 3000 + b"\xc0"), msgspec.Raw(b"\xd6\xff" + b"\xff" * 4)]
    ),
    st.sampled_from(["\x00", "\u2028\n\x1b[31m", "\U0010ffff" * NAME_BYTES_MAX]),
    st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
    st.lists(st.integers(0, 3), max_size=3),
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where each value stands in what was decoded."""
    found = [path]
    if isinstance(value, dict):
        found += [place for key in value for place in leaves(value[key], (*path, key))]
    elif isinstance(value, list):
        found += [place for i, one in enumerate(value) for place in leaves(one, (*path, i))]
    return found


def replaced(value: Any, path: tuple[Any, ...], leaf: object) -> Any:
    if not path:
        return leaf
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], leaf)
    return copy


@st.composite
def hostile_bytes(draw: st.DrawFn, valid: list[bytes]) -> bytes:
    """Valid bytes with one thing wrong, or none that ever were."""
    encoded = draw(st.sampled_from(valid))
    match draw(st.integers(0, 5)):
        case 0:
            return draw(st.binary(max_size=200))
        case 1:
            return encoded[: draw(st.integers(0, len(encoded)))]
        case 2:
            return encoded + draw(st.binary(min_size=1, max_size=8))
        case 3:
            at = draw(st.integers(0, max(len(encoded) - 1, 0)))
            return encoded[:at] + draw(st.binary(min_size=1, max_size=4)) + encoded[at + 1 :]
        case 4:
            return draw(
                st.sampled_from(
                    [b"\x91" * 100_000, b"\x81\xa1k" * 50_000, b"\xdd\xff\xff\xff\xff", b"\xc1"]
                )
            )
    try:
        fields = msgspec.msgpack.decode(encoded)
    except ValueError:  # a row: its bytes are fixed
        return encoded[::-1]
    path = draw(st.sampled_from(leaves(fields)))
    return msgspec.msgpack.encode(replaced(fields, path, draw(hostile_leaves)))


@pytest.mark.parametrize("decoder", DECODERS, ids=ids)
def test_what_was_written_is_read(decoder: Decoder) -> None:
    for encoded in decoder.valid:
        decoder.decode(encoded)


@pytest.mark.parametrize("decoder", DECODERS, ids=ids)
@settings(max_examples=100)
@given(data=st.data())
def test_nothing_but_the_closed_set_comes_out(decoder: Decoder, data: st.DataObject) -> None:
    encoded = data.draw(hostile_bytes(decoder.valid))
    try:
        decoder.decode(encoded)
    except decoder.errors as error:
        if decoder.errors != ROW:  # a row's error names its key, whose length others bound
            text = str(error)
            assert len(text) < ERROR_DETAIL_CHARS_MAX + 200
            assert text.isprintable()


@pytest.mark.parametrize("kernel", ["reference", *(["rust"] if native_available() else [])])
@settings(max_examples=100)
@given(hostile=st.lists(hostile_bytes(RECORDS), min_size=1, max_size=4), events=event_lists)
@example(hostile=[RECORDS[1], RECORDS[5]], events=[])  # the publisher's rows go again
def test_what_decodes_can_be_folded_shown_and_stored(
    kernel: str, hostile: list[bytes], events: list[Any]
) -> None:
    fold = Fold(open_kernel(1337, name=kernel))
    for offset, encoded in enumerate([*hostile, events_record(encode_events(events)), *hostile]):
        fold.apply(offset, encoded)  # type: ignore[arg-type]
        line = record_line(PlacedRecord(0, offset, encoded), StreamFilter())
        assert line is not None
        json.loads(line)
    changes = fold.take_changes()
    for publisher, state in changes.publishers.items():
        key = rows.publisher_key(rows.PUBLISHER, publisher)
        assert rows.parse_publisher_key(key) == publisher
        if state is None:
            continue
        stored = msgspec.msgpack.encode(state)
        assert codec.decode_row_body(bodies.PUBLISHER_STATE, key=key, body=stored) == state
    for publisher, ledger in changes.ledgers.items():
        assert rows.parse_ledger_key(rows.ledger_key(publisher)) == publisher
        if ledger is None:  # a deletion: its publisher has been unregistered
            assert changes.publishers[publisher] is None
            continue
        stored = msgspec.msgpack.encode(ledger)
        assert codec.decode_row_body(bodies.LEDGER, key=b"", body=stored) == ledger
    assert not fold.counters[INTERNAL_ERROR]
    for context, _ in changes.contexts:
        assert rows.parse_row_key(rows.row_key(RowPlace(context, 0, 0))).context == context


@settings(max_examples=100)
@given(hostile_bytes([encode_registration(ONE)]))
@example(
    encode_registration(msgspec.structs.replace(ONE, model_name="\x00\n\u2028", dp_rank=2**31 - 1))
)
def test_what_is_registered_can_be_counted_and_told(encoded: bytes) -> None:
    try:
        found = msgspec.msgpack.decode(encoded, type=dict[str, Any])
        key = encode_publisher(msgspec.convert(found, type(ONE)).publisher)
        entry = codec.decode_registry_entry(key, encoded)
    except (EntryError, ValueError, RecursionError):
        return
    assert entry is not None
    assert entry.registration is not None
    struct.pack("<i", entry.registration.dp_rank)
    struct.pack("<I", entry.registration.block_size)
    msgspec.json.encode(entry.registration)
    counter = Counter("n", "text", ["model"], registry=(metrics := CollectorRegistry()))
    counter.labels(entry.registration.model_name).inc()
    generate_latest(metrics)


texts = st.text(max_size=12) | st.sampled_from(["x" * 1024, "x" * 1025, "é" * 600, ""])


@settings(max_examples=100)
@given(
    fields=st.fixed_dictionaries(
        {"endpoint": texts, "modelname": texts, "instance_id": texts, "tenant_id": texts},
        optional={
            "lora_name": texts,
            "replay_endpoint": texts,
            "additionalsalt": texts,
            "role": st.sampled_from(["", "combined", "decode", "x"]),
            "labels": st.dictionaries(texts, texts, max_size=3),
            "kv_bytes_per_token": st.sampled_from([0, 2**30, 2**30 + 1]),
        },
    ),
    block_size=st.sampled_from([-1, 0, 1, 16, 65_536, 65_537, 2**63]),
    dp_rank=st.sampled_from([-1, 0, 7, 2**31 - 1, 2**31]),
)
def test_what_register_accepts_every_reader_takes_and_no_reader_takes_more_numbers(
    fields: dict[str, Any], block_size: int, dp_rank: int
) -> None:
    document = fields | {"type": "vLLM", "block_size": block_size, "dp_rank": dp_rank}
    is_in_range = 1 <= block_size <= 65_536 and 0 <= dp_rank <= 2**31 - 1
    try:
        accepted = read_registration(json.dumps(document).encode(), Wire.JSON, KINDS)
    except RequestError:
        pass
    else:
        assert is_in_range
        key = encode_publisher(accepted.publisher)
        entry = codec.decode_registry_entry(key, encode_registration(accepted))
        assert entry == (accepted.publisher, accepted)
    built = msgspec.structs.replace(ONE, block_size=block_size, dp_rank=dp_rank)
    if not is_in_range:
        with pytest.raises(EntryError):
            codec.decode_registry_entry(KEY, encode_registration(built))
