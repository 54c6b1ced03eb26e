"""The watch over a directory: looks in a thread, problems that are said, nothing that ends it."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.memory.reading import Reading, Scan
from bridge.memory.watch import MemorySettings, MemoryWatch
from schemas.conditions import Conditions, Part
from schemas.errors import ConfigurationError
from tests.memory_segments import Segment

BOUND_S = 20.0


def scan_of(*names: str, skipped: dict[str, int] | None = None, error: str = "") -> Scan:
    readings = {name: Reading(1, 100, 5, 0) for name in names}
    named = tuple((f"file-{reason}", reason) for reason in skipped or {})
    return Scan(readings, frozenset(names), Counter(skipped), named, error, error and "denied")


class Directory:
    """What looks find, one after the other; the last again and again."""

    def __init__(self, *found: Scan | Exception) -> None:
        self.found = list(found)
        self.known: list[frozenset[str]] = []

    def __call__(self, known: frozenset[str]) -> Scan:
        self.known.append(known)
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(found, Exception):
            raise found
        return found


def watch_of(
    read: Callable[[frozenset[str]], Scan] | None, directory: Path = Path("/none")
) -> tuple[MemoryWatch, Conditions]:
    conditions = Conditions(lambda: 0.0)
    settings = MemorySettings(directory=directory, period_s=0.25, host="host")
    return MemoryWatch(settings, bridge="bridge", conditions=conditions, read=read), conditions


def looked(watch: MemoryWatch, times: int = 1) -> None:
    for _ in range(times):
        watch.look()
        watch.take()


def test_what_is_found_becomes_records_until_they_are_written() -> None:
    directory = Directory(scan_of("a", "b"))
    watch, conditions = watch_of(directory)
    looked(watch, 2)
    assert directory.known == [frozenset(), {"a", "b"}]
    records = watch.records()
    assert [(one.host, one.segment, one.bridge) for one in records] == [
        ("host", "a", "bridge"),
        ("host", "b", "bridge"),
    ]
    watch.written(records[0])
    assert [one.segment for one in watch.records()] == ["b"]
    status = watch.status()
    assert (status.segments, status.looks, status.records) == (2, 2, 1)
    assert conditions.all() == ()


def test_a_directory_that_cannot_be_read_is_a_condition_until_it_can() -> None:
    watch, conditions = watch_of(Directory(scan_of(error="no"), scan_of("a")))
    looked(watch)
    [condition] = conditions.all()
    assert (condition.part, condition.reason, condition.message) == (Part.MEMORY, "denied", "no")
    assert conditions.ready, "everything else goes on"
    assert watch.failed_looks == 1
    looked(watch)
    assert conditions.all() == ()


def test_too_many_segments_are_a_condition() -> None:
    watch, conditions = watch_of(Directory(scan_of("a", skipped={"too_many": 7}), scan_of("a")))
    looked(watch)
    [condition] = conditions.all()
    assert condition.reason == "too_many"
    assert "left out: at least 7" in condition.message
    looked(watch)
    assert conditions.all() == ()


def test_an_unexpected_error_of_a_look_is_one_failed_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch, conditions = watch_of(Directory(RuntimeError("bug"), scan_of("a")))
    looked(watch)
    assert [one.reason for one in conditions.all()] == ["internal_error"]
    looked(watch)
    assert conditions.all() == ()
    assert watch.names == {"a"}


def test_a_file_that_is_left_out_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    skipped = {"wrong_size": 1, "locked": 1, "empty": 1}
    watch, conditions = watch_of(Directory(scan_of(skipped=skipped)))
    looked(watch, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "Cannot use the segment file-wrong_size of /none (wrong_size); it is left out"
    ], "what passes by itself is not named"
    assert conditions.all() == ()
    assert watch.status().skipped == skipped


def test_files_that_are_named_are_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.memory.watch.MEMORY_SEGMENTS_READ_MAX", 3)
    named = tuple((f"file-{number}", "wrong_size") for number in range(9))
    watch, _ = watch_of(Directory(Scan({}, frozenset(), Counter(wrong_size=9), named)))
    looked(watch, 2)
    assert len(caplog.records) == 3


def test_it_looks_in_a_thread_of_its_own_until_it_is_cancelled(tmp_path: Path) -> None:
    watch, _ = watch_of(None, tmp_path)
    threads = set(threading.enumerate())

    async def run() -> None:
        found = asyncio.Event()
        running = asyncio.create_task(watch.run(lambda: found.set() if watch.names else None))
        with Segment(tmp_path / "kvcached_a", 100, 1):
            await asyncio.wait_for(found.wait(), BOUND_S)
        [thread] = set(threading.enumerate()) - threads
        assert (thread.name, thread.daemon) == ("memory", True)
        running.cancel()
        await asyncio.wait([running])
        await asyncio.to_thread(thread.join, BOUND_S)
        assert not thread.is_alive()

    asyncio.run(run())


def test_a_look_that_hangs_holds_nothing_up_and_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.memory.watch.MEMORY_STUCK_S", 0.01)
    go_on = threading.Event()

    def hang(known: frozenset[str]) -> Scan:
        assert go_on.wait(BOUND_S)
        return scan_of("a")

    watch, conditions = watch_of(hang)

    async def run() -> None:
        found = asyncio.Event()
        running = asyncio.create_task(watch.run(found.set))
        while not conditions.has(Part.MEMORY):  # noqa: ASYNC110 -- another thread
            await asyncio.sleep(0.01)
        assert [one.reason for one in conditions.all()] == ["stuck"]
        go_on.set()
        await asyncio.wait_for(found.wait(), BOUND_S)
        assert conditions.all() == ()
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(asyncio.wait_for(run(), BOUND_S))


@pytest.mark.parametrize("host", ["a/b", "x" * 2000])
def test_a_host_that_no_pattern_could_name_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="Expected a host name"):
        MemorySettings(directory=Path("/dev/shm"), host=host)


def test_the_host_is_that_of_this_machine_where_none_is_given() -> None:
    assert MemorySettings(directory=Path("/dev/shm")).host_name
    assert MemorySettings(directory=Path("/dev/shm"), host="node-7").host_name == "node-7"
