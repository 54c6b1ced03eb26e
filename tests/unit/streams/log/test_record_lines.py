"""Records as JSON lines: every field, exact numbers, and what is no record."""

import json
from typing import Any

import msgspec
import pytest

from schemas.events import BlockEvent, StoredBlocks, encode_events, extra_key
from schemas.identities import StreamKey
from schemas.records import (
    NEWEST_VERSION,
    EventsRecord,
    GapRecord,
    Record,
    RegisteredRecord,
    ResetRecord,
    UnregisteredRecord,
    encode_record,
)
from schemas.registration import PublisherKind, Registration
from streams.log.record_lines import PlacedRecord, StreamFilter, record_line
from tests.building import cleared, events_record, memory_record, removed, stored, u32s, u64s

STREAM = StreamKey("t", "m", 4, "s", "i")
ENVELOPE = {
    "version": 1,
    "stream": {
        "tenant_id": "t",
        "model_name": "m",
        "block_size": 4,
        "additional_salt": "s",
        "instance_id": "i",
    },
    "dp_rank": 2,
    "bridge_time": 1.5,
}
CURSOR: dict[str, Any] = {"incarnation": 3, "first_sequence": 5, "last_sequence": 9}
PUBLISHER: dict[str, Any] = {"stream": STREAM, "dp_rank": 2, "bridge_time": 1.5}


ANY = StreamFilter()


def line(value: bytes | None, wanted: StreamFilter = ANY, **options: bool) -> Any:
    encoded = record_line(PlacedRecord(7, 11, value), wanted, **options)
    assert encoded is None or b"\n" not in encoded
    return None if encoded is None else json.loads(encoded)


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (
            ResetRecord(**PUBLISHER, **CURSOR, reason="r"),
            {"kind": "reset", **CURSOR, "reason": "r"},
        ),
        (GapRecord(**PUBLISHER, **CURSOR, reason="r"), {"kind": "gap", **CURSOR, "reason": "r"}),
        (UnregisteredRecord(**PUBLISHER), {"kind": "unregistered"}),
        (
            EventsRecord(
                **PUBLISHER, **CURSOR, engine_time=2.5, events=msgspec.Raw(encode_events([]))
            ),
            {"kind": "events", **CURSOR, "engine_time": 2.5, "events": []},
        ),
    ],
)
def test_a_line_has_its_place_and_every_field(record: Record, fields: dict[str, Any]) -> None:
    assert line(encode_record(record)) == {"partition": 7, "offset": 11, **ENVELOPE, **fields}


def test_a_registration_is_shown_whole() -> None:
    registration = Registration(
        endpoint="tcp://h:1",
        kind=PublisherKind("vLLM"),
        model_name="m",
        instance_id="i",
        block_size=4,
    )
    record = RegisteredRecord(
        stream=registration.stream, dp_rank=0, bridge_time=1.0, registration=registration
    )
    shown = line(encode_record(record))
    assert shown["kind"] == "registered"
    assert shown["registration"] == msgspec.to_builtins(registration)


def test_numbers_are_exact() -> None:
    """2**53 + 1 is the first integer that a reader with doubles would change."""
    first, last = 2**53 + 1, 2**64 - 1
    event = stored(5, [first, last], [0, 1, 2, 2**32 - 1], parent=last)
    (shown,) = line(events_record(5, 5, [event]))["events"]
    assert shown["hashes"] == [str(first), str(last)]
    assert shown["parent"] == str(last)
    assert shown["tokens"] == [0, 1, 2, 2**32 - 1]


def test_events_keep_their_order_and_their_fields() -> None:
    events: list[BlockEvent] = [
        stored(5, [1], [1, 2, 3, 4], lora_name="l"),
        removed(6, [1]),
        cleared(7),
    ]
    assert line(events_record(5, 7, events))["events"] == [
        {
            "type": "stored",
            "sequence": 5,
            "hashes": ["1"],
            "tokens": [1, 2, 3, 4],
            "block_size": 4,
            "lora_name": "l",
        },
        {"type": "removed", "sequence": 6, "hashes": ["1"]},
        {"type": "cleared", "sequence": 7},
    ]


def test_extra_keys_are_readable() -> None:
    keys = (extra_key(["salt"]), b"", extra_key([["image", 3], b"\xff"]), b"\xc1")
    event = StoredBlocks(
        sequence=0, hashes=u64s([1, 2, 3, 4]), tokens=u32s(range(16)), block_size=4, extra_keys=keys
    )
    (shown,) = line(events_record(0, 0, [event]))["events"]
    assert shown["extra_keys"] == [["salt"], None, [["image", 3], "ff"], "c1"]


def test_hashes_that_are_prefix_hashes_are_told_apart() -> None:
    named = StoredBlocks(sequence=5, hashes=u64s([2**64 - 1]), block_size=4, by_hash=True)
    [shown] = line(events_record(5, 5, [named]))["events"]
    assert shown == {
        "type": "stored",
        "sequence": 5,
        "hashes": ["18446744073709551615"],
        "tokens": [],
        "block_size": 4,
        "by_hash": True,
    }


def test_compact_says_how_many() -> None:
    event = stored(0, [1, 2], range(8))
    (shown,) = line(events_record(0, 0, [event]), compact=True)["events"]
    assert (shown["hashes"], shown["tokens"]) == (2, 8)


@pytest.mark.parametrize("value", [None, b"", b"\x00", b"\xc1", b"{}"])
def test_what_is_no_record_is_shown_whatever_the_filter(value: bytes | None) -> None:
    shown = line(value, StreamFilter(tenant="another"))
    assert shown.keys() == {"partition", "offset", "error"}
    assert shown["error"].startswith("Expected a log record")


def test_a_newer_version_is_named() -> None:
    fields = msgspec.msgpack.decode(encode_record(UnregisteredRecord(**PUBLISHER)))
    newer = msgspec.msgpack.encode(fields | {"version": NEWEST_VERSION + 1, "kind": "novelty"})
    assert line(newer)["error"] == (
        f"Expected a record of version `{NEWEST_VERSION}` or older, got `{NEWEST_VERSION + 1}`: a"
        " newer Reprise wrote it, upgrade this one"
    )


@pytest.mark.parametrize(
    "events",
    [
        msgspec.msgpack.encode({"not": "an array"}),
        msgspec.msgpack.encode([{"type": "removed", "sequence": 1, "hashes": b"seven.."}]),
        msgspec.msgpack.encode([{"type": "novelty"}]),
    ],
)
def test_events_that_cannot_be_decoded_leave_the_envelope(events: bytes) -> None:
    record = EventsRecord(**PUBLISHER, **CURSOR, engine_time=0.0, events=msgspec.Raw(events))
    shown = line(encode_record(record))
    assert shown["stream"] == ENVELOPE["stream"]
    assert shown["error"].startswith("Expected an array of block events, got: ")
    assert "events" not in shown


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (StreamFilter(), True),
        (StreamFilter(tenant="t", model="m", instance="i"), True),
        (StreamFilter(tenant="x"), False),
        (StreamFilter(model="x"), False),
        (StreamFilter(tenant="t", instance="x"), False),
    ],
)
def test_every_part_of_the_filter_must_match(wanted: StreamFilter, shown: bool) -> None:
    assert (line(encode_record(UnregisteredRecord(**PUBLISHER)), wanted) is not None) == shown


@pytest.mark.parametrize(
    "key",
    [
        b"\xa1\xff",  # no UTF-8
        b"\x91" * 500 + b"\xc0",
        b"\x91" * 5000,
        b"\xc7\x01\x05a",  # an extension of nobody's
        b"\xd6\xff\xff\xff\xff\xff",  # a time
        b"\x81\x90\x01",  # a map by arrays
    ],
)
def test_extra_keys_that_are_none_are_shown_as_hex(key: bytes) -> None:
    event = msgspec.structs.replace(stored(5, [1], [1, 2, 3, 4]), extra_keys=(key,))
    (shown,) = line(events_record(5, 5, [event]))["events"]
    assert shown["extra_keys"] == [key.hex()]


def test_a_segment_of_memory_is_of_no_stream_and_in_the_line_as_it_was_read() -> None:
    value = encode_record(memory_record(used=960, preallocated=0))
    told = line(value)
    assert (told["kind"], told["version"], told["host"]) == ("memory", 5, "host")
    assert (told["segment"], told["change"], told["used"]) == ("kvcached_a", "changed", 960)
    assert told["pressure"] == 0.96
    assert line(value, StreamFilter(instance="i")) is None
