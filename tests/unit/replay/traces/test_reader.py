"""Traces: what can be read is used, and what cannot is named."""

import gzip
import io
import json
from pathlib import Path

import msgspec
import pytest

from replay.traces.reader import TraceError, read_trace
from replay.traces.request import TRACE_MS_MAX

GOOD = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def write(path: Path, *lines: object) -> Path:
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    return path


def test_requests_are_read(path: Path) -> None:
    trace = read_trace(write(path, GOOD, {**GOOD, "timestamp": 1.5, "hash_ids": [0, 2]}))
    assert trace.name == "trace.jsonl"
    assert [msgspec.structs.astuple(request) for request in trace.requests] == [
        (0.0, 1000, 5, [0, 1], None),
        (1.5, 1000, 5, [0, 2], None),
    ]
    assert (trace.problem, trace.notes) == (None, [])


def test_prompts_of_a_session_share_the_ids_that_are_equal(path: Path) -> None:
    ids = [2000, 3000, 4000]
    lines = [
        {**GOOD, "hash_ids": ids[:2], "session_id": "a"},
        {**GOOD, "hash_ids": ids[:2], "session_id": "b"},
        {**GOOD, "input_length": 1500, "hash_ids": ids, "session_id": "a"},
    ]
    first, other, last = read_trace(write(path, *lines)).requests
    assert [first.session_id, other.session_id, last.session_id] == ["a", "b", "a"]
    assert last.hash_ids == ids
    assert all(one is two for one, two in zip(first.hash_ids, last.hash_ids, strict=False))
    assert not any(one is two for one, two in zip(other.hash_ids, last.hash_ids, strict=False))


def test_empty_lines_and_a_missing_last_end_of_line_do_no_harm(path: Path) -> None:
    path.write_text(f"\n{json.dumps(GOOD)}\n  \n{json.dumps(GOOD)}")
    trace = read_trace(path)
    assert (len(trace.requests), trace.problem) == (2, None)


BROKEN = {
    "cut off": '{"timestamp": 0, "input_le',
    "no object": "[1, 2]",
    "a missing field": {"timestamp": 0, "input_length": 5, "output_length": 5},
    "a negative time": {**GOOD, "timestamp": -1},
    "a time that is no number": {**GOOD, "timestamp": "soon"},
    "a time beyond all bounds": {**GOOD, "timestamp": TRACE_MS_MAX * 2},
    "a negative length": {**GOOD, "input_length": -5},
    "a length beyond all bounds": {**GOOD, "input_length": 2**31},
    "an id that is no number": {**GOOD, "hash_ids": [0, "1"]},
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
def test_what_was_readable_before_a_broken_line_is_kept(path: Path, line: object) -> None:
    trace = read_trace(write(path, GOOD, GOOD, line, GOOD))
    assert len(trace.requests) == 2
    assert str(trace.problem).startswith(f"{path}:3: expected an object with timestamp, ")
    (note,) = trace.notes
    assert note.startswith("line 3: expected an object with timestamp, ")
    assert note.endswith(". Used before it: 2 requests; not read after it: 1 line")


def test_a_trace_that_begins_with_a_broken_line_is_refused(path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: expected an object"):
        read_trace(write(path, BROKEN["no object"], GOOD))


def test_bytes_that_are_no_text_are_a_broken_line(path: Path) -> None:
    path.write_bytes(json.dumps(GOOD).encode() + b'\n{"timestamp": "\xff\xfe"}\n')
    assert str(read_trace(path).problem).startswith(f"{path}:2: ")


def test_deep_nesting_is_a_broken_line(path: Path) -> None:
    write(path, GOOD, '{"timestamp":' + "[" * 100_000)
    assert str(read_trace(path).problem).startswith(f"{path}:2: ")


def test_an_error_shows_no_more_of_a_line_than_is_needed(path: Path) -> None:
    write(path, GOOD, {**GOOD, "x" * 100_000: 1})
    assert len(str(read_trace(path).problem)) < 1000


def test_an_unknown_field_says_how_to_pass_over_it(path: Path) -> None:
    write(path, GOOD, {**GOOD, "session": 5})
    problem = str(read_trace(path).problem)
    assert "unknown field `session`" in problem
    assert "--ignore-unknown-fields" in problem
    trace = read_trace(path, ignore_unknown=True)
    assert (len(trace.requests), trace.problem) == (2, None)


def test_a_line_that_is_too_long_is_not_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.traces.reader.TRACE_LINE_BYTES_MAX", 200)
    trace = read_trace(write(path, GOOD, "x" * 300, GOOD))
    assert str(trace.problem) == f"{path}:2: expected a line of at most 200 bytes, got more"


def test_a_trace_has_a_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.traces.reader.TRACE_REQUESTS_MAX", 2)
    trace = read_trace(write(path, *[GOOD] * 3))
    assert len(trace.requests) == 2
    assert str(trace.problem) == f"{path}:3: expected at most 2 requests, got more"


def test_an_empty_file_is_refused(path: Path) -> None:
    path.write_text("\n\n")
    with pytest.raises(TraceError, match="got an empty file"):
        read_trace(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.jsonl: cannot be read: No such file"):
        read_trace(tmp_path / "none.jsonl")


def test_lines_out_of_order_are_put_in_order_and_told(path: Path) -> None:
    times = [5, 3, 9, 3]
    lines = [{**GOOD, "timestamp": time, "output_length": at} for at, time in enumerate(times)]
    trace = read_trace(write(path, *lines))
    assert [(one.timestamp, one.output_length) for one in trace.requests] == [
        *((3, 1), (3, 3), (5, 0), (9, 2))
    ]
    assert trace.notes == ["2 lines come after one of a later time: put in order"]


@pytest.mark.parametrize(
    ("length", "blocks", "fits"),
    [
        *((511, 0, True), (511, 1, True), (512, 0, False), (512, 1, True), (512, 2, False)),
        *((513, 2, True), (513, 3, False)),
    ],
)
def test_blocks_that_do_not_fit_the_length_are_told(
    path: Path, length: int, blocks: int, fits: bool
) -> None:
    write(path, GOOD, {**GOOD, "input_length": length, "hash_ids": list(range(blocks))})
    trace = read_trace(path)
    assert trace.mismatched == (not fits)
    assert bool(trace.notes) == (not fits)


def test_a_block_size_that_no_request_fits_is_refused_with_one_that_all_fit(path: Path) -> None:
    write(path, {**GOOD, "hash_ids": list(range(62))}, {**GOOD, "hash_ids": list(range(63))})
    with pytest.raises(TraceError, match="in all 2 requests; --block-size 16 fits all of them"):
        read_trace(path)
    assert read_trace(path, block_size=16).notes == []
    with pytest.raises(TraceError, match="in all 1 request; no power of two fits"):
        read_trace(write(path, {**GOOD, "input_length": 10, "hash_ids": list(range(50))}))


def test_gzip_a_byte_order_mark_and_standard_input_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"\xef\xbb\xbf" + 2 * (json.dumps(GOOD).encode() + b"\n")
    path.write_bytes(gzip.compress(content))
    assert len(read_trace(path).requests) == 2
    path.write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(TraceError, match="cannot be read as gzip"):
        read_trace(path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    trace = read_trace(Path("-"))
    assert (trace.name, len(trace.requests)) == ("standard input", 2)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("timestamp,input_length,output_length,hash_ids", "looks like CSV"),
        (json.dumps([GOOD]), "a JSON array: `jq -c "),
        (json.dumps({"model": "m", "messages": []}), "OpenAI's API, which has no hash_ids"),
        (json.dumps({"timestamp": 1, "input_length": 5, "output_length": 0}), "docs/offline.md"),
    ],
)
def test_what_is_no_trace_is_named_with_what_to_do(path: Path, line: str, remedy: str) -> None:
    with pytest.raises(TraceError, match=remedy) as raised:
        read_trace(write(path, line))
    assert "--ignore-unknown-fields" not in str(raised.value)


def test_progress_is_told_in_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.traces.reader.TRACE_LOOK_LINES", 2)
    told: list[int] = []
    read_trace(write(path, *[GOOD] * 5), when_read=told.append)
    line = len(json.dumps(GOOD)) + 1
    assert told == [2 * line, 4 * line]
