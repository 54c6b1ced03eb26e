"""Events become the requests that they show."""

from pathlib import Path

import pytest

from lab.exports.requests import Requests
from replay.as_records import CaptureRecords
from replay.block_events import BlockEvents
from replay.capture.reader import Capture
from replay.chains import Chains
from replay.traces.reader import read_trace
from replay.traces.request import TraceRequest
from replay.traces.writer import write_requests
from schemas.events import BlockEvent, StoredBlocks
from schemas.identities import Medium, StreamKey
from tests.building import BLOCK, STREAM, cleared, events_record, reset_record, stored
from tests.unit.replay.test_block_events import capture_of

Told = tuple[float, list[BlockEvent]]


def requests_of(
    tmp_path: Path,
    records: list[bytes],
    *,
    block_size: int | None = None,
    join_s: float = 10.0,
) -> tuple[list[TraceRequest], Requests]:
    path = capture_of(tmp_path / "a.capture", records)
    with Capture(path) as capture:
        steps = BlockEvents(CaptureRecords(capture))
        requests = Requests(steps, Chains(1337), block_size=block_size, join_s=join_s)
        return list(requests), requests


def records_of(*events: list[BlockEvent], stream: StreamKey = STREAM) -> list[bytes]:
    """A record a second."""
    return [events_record(at, at, told, stream=stream) for at, told in enumerate(events)]


def run(
    first: int, count: int, parent: int | None = None, medium: Medium = Medium.GPU
) -> BlockEvent:
    """Blocks that are called `first` and so on, whose tokens are their numbers."""
    names = range(first, first + count)
    tokens = [name for name in names for _ in range(BLOCK)]
    return stored(0, list(names), tokens, parent=parent, medium=medium)


def at_sequence(event: BlockEvent, sequence: int) -> BlockEvent:
    import msgspec

    return msgspec.structs.replace(event, sequence=sequence)


def told(*events: BlockEvent | None) -> list[bytes]:
    """One event a second; None for a second without."""
    return records_of(
        *([] if event is None else [at_sequence(event, at)] for at, event in enumerate(events))
    )


def shape(requests: list[TraceRequest]) -> list[tuple[float, int, int]]:
    return [
        (one.timestamp, one.input_length // BLOCK, one.output_length // BLOCK) for one in requests
    ]


def test_a_run_with_the_chain_that_it_hangs_on_is_a_prompt(tmp_path: Path) -> None:
    found, _ = requests_of(
        tmp_path, told(run(1, 3), None, run(11, 2, parent=2), run(21, 1, parent=1))
    )
    assert shape(found) == [(0, 3, 0), (2000, 4, 0), (3000, 2, 0)]
    first, second, third = (one.hash_ids for one in found)
    assert first[:2] == second[:2]
    assert first[:1] == third[:1]
    assert len({*first, *second, *third}) == 3 + 2 + 1
    assert all(0 <= one < 2**63 for one in first)


def test_what_goes_on_is_prompt_in_pieces_then_answer_block_by_block(tmp_path: Path) -> None:
    events = told(run(1, 2), run(3, 2, parent=2), run(5, 1, parent=4), run(6, 1, parent=5))
    found, _ = requests_of(tmp_path, events)
    assert shape(found) == [(0, 4, 2)]


def test_several_blocks_behind_an_answer_are_the_next_request(tmp_path: Path) -> None:
    events = told(run(1, 2), run(3, 1, parent=2), run(4, 2, parent=3), run(6, 1, parent=5))
    found, _ = requests_of(tmp_path, events)
    assert shape(found) == [(0, 2, 1), (2000, 5, 1)]
    assert found[1].hash_ids[:2] == found[0].hash_ids


def test_what_goes_on_too_late_is_a_request_of_its_own(tmp_path: Path) -> None:
    events = told(run(1, 2), None, None, run(3, 1, parent=2))
    assert shape(requests_of(tmp_path, events, join_s=2)[0]) == [(0, 2, 0), (3000, 3, 0)]
    assert shape(requests_of(tmp_path, events, join_s=3)[0]) == [(0, 2, 1)]


def test_requests_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    """The first one goes on while others begin and end."""
    longest: list[BlockEvent | None] = [run(1, 2)]
    for at in range(20):
        longest += [run(3 + at, 1, parent=2 + at), run(1000 + 10 * at, 2)]
    found, _ = requests_of(tmp_path, told(*longest), join_s=3)
    times = [one.timestamp for one in found]
    assert times == sorted(times)
    assert shape(found)[0] == (0, 2, 20)
    assert len(found) == 21


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.exports.requests.EXPORT_REQUESTS_OPEN_MAX", 4)
    found, requests = requests_of(tmp_path, told(*(run(10 * at, 2) for at in range(9))), join_s=99)
    assert len(found) == 9
    assert requests.counters["cut_short"] == 5


def test_nothing_is_kept_of_what_is_over(tmp_path: Path) -> None:
    _, requests = requests_of(tmp_path, told(*(run(10 * at, 2) for at in range(50))), join_s=2)
    assert not requests._open
    assert not requests._tails
    assert len(requests._ends) <= 50


def test_engines_share_ids_and_models_do_not(tmp_path: Path) -> None:
    other = STREAM._replace(instance_id="b")
    model = STREAM._replace(model_name="n")
    records = [
        events_record(0, 0, [run(1, 2)]),
        events_record(0, 0, [run(1, 2)], stream=other),
        events_record(0, 0, [run(1, 2)], stream=model),
    ]
    a, b, c = (one.hash_ids for one in requests_of(tmp_path, records)[0])
    assert a == b
    assert not set(a) & set(c)


def test_ids_may_stand_for_several_blocks(tmp_path: Path) -> None:
    events = told(run(1, 5), run(11, 1, parent=4))
    found, requests = requests_of(tmp_path, events, block_size=2 * BLOCK)
    assert requests.block_size == 2 * BLOCK
    assert [(one.input_length, len(one.hash_ids)) for one in found] == [(20, 3), (20, 3)]
    assert found[0].hash_ids[:2] == found[1].hash_ids[:2]
    assert found[0].hash_ids[2] != found[1].hash_ids[2]


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    wide = StoredBlocks(
        sequence=0,
        hashes=b"12345678",
        tokens=bytes(4 * 8),
        block_size=8,
    )
    records = [
        events_record(0, 0, [run(1, 2), run(3, 1, medium=Medium.CPU), run(1, 2, parent=99)]),
        events_record(0, 0, [wide], stream=STREAM._replace(block_size=8)),
    ]
    found, requests = requests_of(tmp_path, records)
    assert len(found) == 2
    assert requests.counters == {"copies": 1, "begin_unknown": 1, "other_block_size": 1}


def test_a_clear_and_a_restart_end_chains(tmp_path: Path) -> None:
    records = told(run(1, 2), cleared(1), run(3, 2, parent=2))
    records += [reset_record(2), events_record(0, 0, [run(5, 2, parent=4)], incarnation=2)]
    found, requests = requests_of(tmp_path, records)
    assert shape(found) == [(0, 2, 0), (2000, 2, 0), (4000, 2, 0)]
    assert requests.counters["begin_unknown"] == 2


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    events = told(run(1, 3), run(4, 1, parent=3), run(11, 2, parent=2))
    found, _ = requests_of(tmp_path, events)
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        assert write_requests(found, file.write) == 2
    trace = read_trace(path, block_size=BLOCK)
    assert trace.notes == []
    assert [
        (one.timestamp, one.input_length, one.output_length, one.hash_ids) for one in trace.requests
    ] == [(one.timestamp, one.input_length, one.output_length, one.hash_ids) for one in found]
