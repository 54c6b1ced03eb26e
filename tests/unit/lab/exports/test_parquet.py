"""A Parquet file read back has the events of the capture, one by one."""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from lab.exports.columns import COLUMNS
from lab.exports.output import whole_file
from lab.exports.parquet import schema_of, write_parquet
from replay.as_records import CaptureRecords
from replay.block_events import BlockEvents
from replay.capture.reader import Capture
from replay.chains import Chains
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, extra_key
from schemas.identities import Medium
from schemas.records import EventsRecord
from tests.building import (
    BLOCK,
    cleared,
    events_record,
    gap_record,
    prefix_hashes,
    registered_record,
    registration,
    removed,
    reset_record,
    stored,
    u32s,
    u64s,
    unregistered_record,
)
from tests.unit.replay.histories import history
from tests.unit.replay.test_block_events import capture_of, steps_of

parquet = pytest.importorskip("pyarrow.parquet")

Row = dict[str, Any]


def exported(capture: Path, path: Path) -> Path:
    with Capture(capture) as opened, whole_file(path, replace=True) as output:
        steps = BlockEvents(CaptureRecords(opened))
        write_parquet(steps, Chains(1337), opened.header, output, opened.notes)
    return path


def rows_of(path: Path) -> list[Row]:
    rows: list[Row] = parquet.read_table(path).to_pylist()
    return rows


def packed(numbers: Iterable[int | None]) -> bytes:
    return u64s([number for number in numbers if number is not None])


def events_of(rows: list[Row]) -> Iterator[tuple[int, int, BlockEvent]]:
    """The events that the rows say, with position and number."""
    named = (row for row in rows if row["event"] is not None)
    for (position, number), group in groupby(named, lambda row: (row["position"], row["event"])):
        blocks = list(group)
        first = blocks[0]
        assert [row["block"] for row in blocks if row["block"] is not None] == [
            *range(sum(row["hash"] is not None for row in blocks))
        ]
        yield position, number, _event(first, blocks)


def _event(first: Row, blocks: list[Row]) -> BlockEvent:
    sequence = first["sequence"]
    hashes = packed(row["hash"] for row in blocks)
    if first["kind"] == "cleared":
        return ClearedBlocks(sequence=sequence)
    place = {"medium": Medium(first["medium"]), "shared": first["shared"]}
    if first["kind"] == "removed":
        return RemovedBlocks(sequence=sequence, hashes=hashes, group=first["cache_group"], **place)
    keys = tuple(row["extra_key"] for row in blocks if row["extra_key"] is not None)
    return StoredBlocks(
        sequence=sequence,
        hashes=hashes,
        tokens=u32s([token for row in blocks for token in row["tokens"] or ()]),
        parent=first["parent"],
        block_size=first["tokens_per_block"],
        lora_name=first["lora"],
        group=first["cache_group"],
        spec_kind=first["spec_kind"],
        extra_keys=keys,
        **place,
    )


UNUSUAL: list[BlockEvent] = [
    StoredBlocks(
        sequence=0,
        hashes=u64s([2**64 - 1, 7]),
        tokens=u32s([2**32 - 1, *range(1, 2 * BLOCK)]),
        block_size=BLOCK,
        medium=Medium.CPU,
        shared=True,
        lora_name="l",
        group=3,
        spec_kind="full_attention",
        extra_keys=(extra_key(["x"]), b""),
    ),
    stored(0, [7], [], medium=Medium.DISK),
    stored(0, [], []),
    removed(0, []),
    StoredBlocks(sequence=0, hashes=u64s([1, 2]), tokens=u32s([1, 2, 3]), block_size=BLOCK),
    StoredBlocks(sequence=0, hashes=b"", tokens=u32s([1, 2]), block_size=BLOCK),
    cleared(0),
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("group_rows", [3, 65_536])
def test_events_read_back_are_those_of_the_capture(
    tmp_path: Path, seed: int, group_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.exports.parquet.EXPORT_ROWS", group_rows)
    records = [*history(200, seed), events_record(0, 0, UNUSUAL, stream=registration("z").stream)]
    capture = capture_of(tmp_path / "a.capture", records)
    rows = rows_of(exported(capture, tmp_path / "a.parquet"))
    steps, _ = steps_of(capture)
    expected = [(step.position, number, event) for step in steps for number, event in step.events]
    assert list(events_of(rows)) == expected
    assert {row["kind"] for row in rows} == {
        *("stored", "removed", "cleared", "reset", "gap", "registered", "unregistered")
    }
    for step in steps:
        named = [row for row in rows if row["position"] == step.position]
        if not step.events and not isinstance(step.record, EventsRecord):
            assert len(named) == 1
        for row in named:
            stream, rank = step.record.publisher
            found = [row[name] for name in ("tenant", "model", "block_size", "salt", "instance")]
            assert (*found, row["dp_rank"]) == (*stream, rank)
            assert row["time"].timestamp() == pytest.approx(step.record.bridge_time)


def test_records_without_events_are_a_row(tmp_path: Path) -> None:
    one = registration("a")
    records = [
        registered_record(one),
        gap_record(3, 9),
        reset_record(2),
        unregistered_record(one),
    ]
    rows = rows_of(exported(capture_of(tmp_path / "a.capture", records), tmp_path / "a.parquet"))
    assert [row["kind"] for row in rows] == ["registered", "gap", "reset", "unregistered"]
    gap, reset = rows[1], rows[2]
    assert (gap["sequence"], gap["last_sequence"], gap["reason"]) == (3, 9, "missed")
    assert (reset["incarnation"], reset["reason"], reset["sequence"]) == (2, "restarted", None)


def test_each_block_has_its_prefix_and_its_parent(tmp_path: Path) -> None:
    tokens = list(range(3 * BLOCK))
    events: list[BlockEvent] = [
        stored(0, [1, 2], tokens[: 2 * BLOCK]),
        stored(0, [3], tokens[2 * BLOCK :], parent=2),
        stored(0, [5], tokens[:BLOCK], parent=4),
        removed(0, [2]),
    ]
    capture = capture_of(tmp_path / "a.capture", [events_record(0, 0, events)])
    rows = rows_of(exported(capture, tmp_path / "a.parquet"))
    assert [row["prefix"] for row in rows] == [*prefix_hashes(tokens), None, None]
    assert [row["parent"] for row in rows] == [None, 1, 2, 4, None]
    assert [row["tokens"] for row in rows] == [
        *(tokens[:BLOCK], tokens[BLOCK : 2 * BLOCK], tokens[2 * BLOCK :], tokens[:BLOCK], None)
    ]


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    path = exported(capture_of(tmp_path / "a.capture", history(50)), tmp_path / "a.parquet")
    metadata = parquet.read_metadata(path).metadata
    assert metadata[b"reprise.schema"] == b"1"
    assert json.loads(metadata[b"reprise.header"])["source"] == "test"
    summary = json.loads(metadata[b"reprise.summary"])
    assert summary["rows"] == parquet.read_metadata(path).num_rows
    assert summary["ended"] == "complete"
    schema = parquet.read_schema(path)
    assert schema.equals(schema_of())
    assert [field.metadata[b"meaning"].decode() for field in schema] == [
        column.meaning for column in COLUMNS
    ]
    assert [str(field.type) for field in schema_of()] == [column.type for column in COLUMNS]


def test_what_was_read_before_an_interruption_is_a_whole_file(tmp_path: Path) -> None:
    capture, path = capture_of(tmp_path / "a.capture", history(600)), tmp_path / "a.parquet"
    looks = iter([False, True])
    with Capture(capture) as opened, whole_file(path, replace=False) as output:
        steps = BlockEvents(CaptureRecords(opened), stopped=lambda: next(looks))
        written = write_parquet(steps, Chains(1337), opened.header, output, [])
    metadata = parquet.read_metadata(path)
    assert 100 < written.rows == metadata.num_rows
    assert max(row["position"] for row in rows_of(path)) < 256
    assert json.loads(metadata.metadata[b"reprise.summary"])["ended"] == "interrupted"


def test_row_groups_are_bounded_by_tokens_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.exports.parquet.EXPORT_TOKEN_BYTES", 64)
    records = [events_record(at, at, [stored(at, [at], range(BLOCK))]) for at in range(40)]
    path = exported(capture_of(tmp_path / "a.capture", records), tmp_path / "a.parquet")
    assert parquet.read_metadata(path).num_row_groups == 10, "of four events with 16 bytes each"


def test_the_widest_numbers_have_room_and_wider_ones_are_no_events(tmp_path: Path) -> None:
    wide = StoredBlocks(
        sequence=2**64 - 1,
        hashes=u64s([2**64 - 1]),
        tokens=u32s([1]),
        parent=2**64 - 1,
        block_size=2**32 - 1,
        group=2**32 - 1,
        extra_keys=(b"a", b"b"),
    )
    refused = StoredBlocks(sequence=1, hashes=u64s([1]), parent=-1)
    records = [events_record(0, 0, [wide]), events_record(1, 1, [refused])]
    capture = capture_of(tmp_path / "a.capture", records)
    [row] = rows_of(exported(capture, tmp_path / "a.parquet"))
    assert (row["parent"], row["cache_group"]) == (2**64 - 1, 2**32 - 1)
    assert (row["sequence"], row["tokens"], row["tokens_per_block"]) == (None, [1], 2**32 - 1)
    _, read = steps_of(capture)
    assert read.skipped == {"malformed_events": 1}


def test_a_time_that_no_calendar_has_is_null(tmp_path: Path) -> None:
    import msgspec

    from schemas.codec import decode_log_record
    from schemas.records import encode_record

    record = decode_log_record(events_record(0, 0, [removed(0, [1])]))
    odd = encode_record(msgspec.structs.replace(record, bridge_time=1e300, engine_time=-1e300))
    capture = capture_of(tmp_path / "a.capture", [odd])
    [row] = rows_of(exported(capture, tmp_path / "a.parquet"))
    assert (row["time"], row["engine_time"]) == (None, None)
