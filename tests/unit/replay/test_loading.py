"""A loaded log folds to what was captured, and claims no more of now than the capture can."""

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.embedded import EmbeddedLog, ReadOnlyLog
from replay.as_records import CaptureRecords
from replay.capture.errors import CaptureError
from replay.capture.format import CaptureSelection
from replay.capture.reader import Capture
from replay.loading import LoadResult, load_into_log
from schemas.codec import decode_log_record
from schemas.errors import DataDirectoryInUseError
from schemas.memory_segments import MemoryRecord
from schemas.records import HeartbeatRecord
from streams.table.verification import context_digests
from tests.building import events_record, registered_record, registration, stored
from tests.unit.replay.histories import (
    captured,
    digests_of,
    fold_of,
    fold_of_records,
    history,
    replayed,
    write_log,
)

RECORDS = history()
MEMORY = Path("/dev/shm")  # databases are opened by the hundred, and nothing has to last


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_log(tmp_path / "data", RECORDS)


def load(path: Path, data: Path, *, force: bool = False, local_sockets: bool = False) -> LoadResult:
    with Capture(path) as capture:
        return load_into_log(
            lambda: CaptureRecords(capture), data, force=force, local_sockets=local_sockets
        )


def values_of(data: Path) -> list[bytes]:
    log = ReadOnlyLog(data / "log")
    values = [value for _, value in log.read(log.complete_from)]
    log.close()
    return values


def is_heartbeat(value: bytes) -> bool:
    return not value.startswith(b"\xc1") and isinstance(decode_log_record(value), HeartbeatRecord)


def is_of_memory(value: bytes) -> bool:
    return not value.startswith(b"\xc1") and isinstance(decode_log_record(value), MemoryRecord)


def test_a_whole_log_is_the_same_log_again_but_for_what_was_true_then_alone(
    tmp_path: Path, data: Path
) -> None:
    path, copy = captured(data, tmp_path / "c"), tmp_path / "copy"
    loaded = load(path, copy)
    kept = [
        value
        for value in RECORDS
        if value[:1] != b"\xc1" and not is_heartbeat(value) and not is_of_memory(value)
    ]
    assert values_of(copy) == kept
    assert loaded.records == len(kept)
    assert set(loaded.left_out) == {"heartbeats", "memory", "unreadable"}
    assert digests_of(copy) == digests_of(data)
    again = captured(copy, tmp_path / "again")
    assert replayed(again).digests == digests_of(data)


def test_nothing_of_the_past_is_confirmed_now(tmp_path: Path, data: Path) -> None:
    load(captured(data, tmp_path / "c"), tmp_path / "copy")
    assert any(is_heartbeat(value) for value in RECORDS), "or this shows nothing"
    fold = fold_of(tmp_path / "copy")
    assert not fold.bridges
    assert any(map(is_of_memory, RECORDS)), "or this shows nothing"
    assert not fold.memory.segments
    assert {state.confirmation for state in fold.publishers.values()} == {None}


def test_two_ranges_one_after_the_other_are_the_whole(tmp_path: Path, data: Path) -> None:
    first = captured(data, tmp_path / "1", CaptureSelection(last={0: 60}))
    second = captured(data, tmp_path / "2", CaptureSelection(first={0: 61}))
    load(first, tmp_path / "copy")
    load(second, tmp_path / "copy")
    assert digests_of(tmp_path / "copy") == digests_of(data)
    mine, theirs = fold_of(tmp_path / "copy"), fold_of(data)
    assert {name: state.degraded_since for name, state in mine.publishers.items()} == {
        name: state.degraded_since for name, state in theirs.publishers.items()
    }


@given(seed=st.integers(0, 2**16), cut=st.integers(0, 79))
@settings(max_examples=8)
def test_any_history_cut_anywhere_is_the_whole_again(seed: int, cut: int) -> None:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place:
        _cut_and_joined(Path(place), seed, cut)


def _cut_and_joined(place: Path, seed: int, cut: int) -> None:
    records = history(80, seed)
    data = write_log(place / "data", records)
    first = captured(data, place / "1", CaptureSelection(last={0: cut}))
    assert replayed(first).digests == context_digests(fold_of_records(records[: cut + 1]).kernel)
    load(first, place / "copy")
    if cut + 1 < len(records):
        load(captured(data, place / "2", CaptureSelection(first={0: cut + 1})), place / "copy")
    assert digests_of(place / "copy") == digests_of(data)
    assert replayed(captured(place / "copy", place / "3")).digests == digests_of(data)


def test_what_the_log_has_already_is_refused_and_changes_nothing(
    tmp_path: Path, data: Path
) -> None:
    path = captured(data, tmp_path / "c")
    load(path, tmp_path / "copy")
    before = values_of(tmp_path / "copy")
    with pytest.raises(CaptureError, match=r"at or beyond those of the capture.*--force"):
        load(path, tmp_path / "copy")
    assert values_of(tmp_path / "copy") == before
    load(path, tmp_path / "copy", force=True)
    assert len(values_of(tmp_path / "copy")) == 2 * len(before)
    assert digests_of(tmp_path / "copy") == digests_of(data)


def test_a_socket_of_this_machine_is_refused_unless_who_loads_allows_it(tmp_path: Path) -> None:
    """A capture may be anybody's, and the service connects to what it registers."""
    one = registration()
    for local in (
        msgspec.structs.replace(one, endpoint="ipc:///run/any.sock"),
        msgspec.structs.replace(one, replay_endpoint="ipc:///run/any.sock"),
    ):
        data = write_log(tmp_path / local.endpoint[:3], [registered_record(local)])
        path, copy = captured(data, tmp_path / f"{local.endpoint[:3]}.c"), tmp_path / "copy"
        with pytest.raises(CaptureError, match=r"got ipc:///run/any\.sock of .*--local-sockets"):
            load(path, copy)
        assert not copy.exists()
        loaded = load(path, tmp_path / f"{local.endpoint[:3]}-copy", local_sockets=True)
        assert loaded.records == 1


def test_a_load_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    one = registration()
    batches = [events_record(n, n, [stored(n, [n], [n] * 4)]) for n in range(700)]
    data = write_log(tmp_path / "data", [registered_record(one), *batches])
    path, copy = captured(data, tmp_path / "c"), tmp_path / "copy"
    with Capture(path) as capture:
        loaded = load_into_log(lambda: CaptureRecords(capture), copy, stopped=lambda: True)
    assert not loaded.ended
    assert 0 < loaded.records < 701
    load(path, copy, force=True)
    assert digests_of(copy) == digests_of(data)


def test_a_later_range_does_not_vouch_for_a_silent_publisher(tmp_path: Path) -> None:
    """It was registered before the range, and sent nothing in it."""
    silent, other = registration("a"), registration("b", port=5558)
    records = [
        registered_record(silent),
        registered_record(other),
        *(events_record(n, n, [stored(n, [n], [n] * 4)], stream=other.stream) for n in range(20)),
    ]
    data = write_log(tmp_path / "data", records)
    load(captured(data, tmp_path / "c", CaptureSelection(first={0: 10})), tmp_path / "copy")
    fold = fold_of(tmp_path / "copy")
    assert fold.publishers[silent.publisher].degraded_since == 0
    assert fold.publishers[other.publisher].degraded_since == 0, "its first batches are missing"
    assert len(fold.registrations) == 2
    again = captured(tmp_path / "copy", tmp_path / "again")
    assert replayed(again).publishers.keys() == fold.publishers.keys()
    assert replayed(again).publishers[silent.publisher].degraded_since == 0


def test_a_running_service_is_not_loaded_into(tmp_path: Path, data: Path) -> None:
    path = captured(data, tmp_path / "c")
    log = EmbeddedLog(data / "log")
    with pytest.raises(DataDirectoryInUseError):
        load(path, data)
    log.close()
