"""Segments of memory with real processes: the embedded service, and kvcached's own code."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import kvcached
from tests.contract.deployments import memory_options
from tests.memory_segments import GIB, Segment, SegmentProcess
from tests.processes import Service, until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    return tmp_path / "shm"


@pytest.fixture
def service(tmp_path: Path, shm: Path) -> Iterator[Service]:
    running = Service(tmp_path / "data", *memory_options(shm))
    running.start()
    yield running
    running.kill()


def segments(service: Service) -> dict[str, dict[str, Any]]:
    status, document = service.get("/memory")
    assert status == 200
    return {one["segment"]: one for one in document["segments"]}


def until_is(service: Service, name: str, **fields: object) -> dict[str, Any]:
    until(
        lambda: fields.items() <= segments(service).get(name, {}).items(),
        what=f"{name} is {fields}, not {segments(service).get(name)}",
    )
    return segments(service)[name]


def conditions(service: Service) -> list[str]:
    return [one["reason"] for one in service.get("/health")[1]["conditions"]]


def test_what_became_of_segments_while_the_service_was_away_is_told(
    service: Service, shm: Path
) -> None:
    killed, stays = SegmentProcess(shm), SegmentProcess(shm)
    try:
        killed.write(1000, 100, 0)
        stays.write(1000, 200, 0)
        removed = Segment(shm / "kvcached_removed", 1000, 300)
        removed.close()
        for name, used in ((killed.name, 100), (stays.name, 200), ("kvcached_removed", 300)):
            until_is(service, name, used=used, state="live")
        service.kill()
        killed.kill()
        removed.remove()
        stays.write(1000, 500, 0)
        service.start()
        until_is(service, killed.name, state="orphaned", used=100)
        until_is(service, "kvcached_removed", state="gone", used=300)
        until_is(service, stays.name, state="live", used=500)
    finally:
        stays.kill()


def test_a_directory_that_goes_is_a_condition_and_its_segments_get_old(
    service: Service, shm: Path
) -> None:
    with Segment(shm / "kvcached_a", 1000, 100):
        before = until_is(service, "kvcached_a", state="live")
        away = shm.with_name("away")
        shm.rename(away)
        until(lambda: conditions(service) == ["no_directory"], what="the condition is there")
        assert service.is_ready()
        assert segments(service)["kvcached_a"]["state"] == "live", "nobody has said that it went"
        assert segments(service)["kvcached_a"]["observed_at"] == before["observed_at"]
        away.rename(shm)
        until(lambda: conditions(service) == [], what="the condition has ended")
    shutil.rmtree(shm)
    shm.write_bytes(b"")
    until(lambda: conditions(service) == ["no_directory"], what="the condition is there")
    assert service.stop() == 0


def test_the_log_has_its_records_and_a_capture_of_it_too(
    service: Service, shm: Path, tmp_path: Path
) -> None:
    with Segment(shm / "kvcached_a", 1000, 100) as segment:
        until_is(service, "kvcached_a", used=100)
        segment.write(1000, 960, 0)
        until_is(service, "kvcached_a", used=960)
        segment.remove()
        until_is(service, "kvcached_a", state="gone")
    lines = reprise("tail", "--data", str(service.data))
    told = [one for one in map(json.loads, lines.splitlines()) if one["kind"] == "memory"]
    assert [(one["segment"], one["change"], one["used"]) for one in told] == [
        ("kvcached_a", "appeared", 100),
        ("kvcached_a", "changed", 960),
        ("kvcached_a", "disappeared", 960),
    ]
    assert {(one["host"], one["version"]) for one in told} == {("node-1", 5)}
    assert told[1]["pressure"] == 0.96
    capture = tmp_path / "c.capture"
    reprise("capture", "--data", str(service.data), "--out", str(capture))
    assert reprise("replay", str(capture))
    listed = json.loads(reprise("get", "/memory", "--json", "--url", service.base_url))
    assert [one["segment"] for one in listed["segments"]] == ["kvcached_a"]


def reprise(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "reprise", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# kvcached's own code


@pytest.mark.skipif(not kvcached.interpreter(), reason=kvcached.MISSING)
def test_kvcacheds_own_tracker_is_read_as_its_own_tools_read_it(tmp_path: Path) -> None:
    """Its release writes the segment, in the one directory that it knows."""
    tracker = kvcached.Tracker(tmp_path, 40 * GIB)
    options = (
        "--set",
        f"memory.dir={kvcached.DIRECTORY}",
        "--set",
        f"memory.prefix={tracker.name}",
    )
    service = Service(tmp_path / "data", *options)
    try:
        service.start()
        until_is(service, tracker.name, total=40 * GIB, used=0, state="live", writer="alive")
        for used, preallocated in ((12 * GIB, 2 * GIB), (30 * GIB, 8 * GIB), (1, 0)):
            tracker.use(used, preallocated)
            expected = {"used": used, "preallocated": preallocated, "total": 40 * GIB}
            until_is(service, tracker.name, **expected)
            theirs = kvcached.listed(tmp_path, tracker.name)
            assert theirs == {"limit_bytes": 40 * GIB, "used_bytes": used}
            [ours] = json.loads(
                reprise(
                    *("get", "/memory", "--json", "--url", service.base_url),
                    *("--filter", tracker.name),
                )
            )["segments"]
            assert expected.items() <= ours.items()
        kvcached.limit(tmp_path, tracker.name, "16G")
        until_is(service, tracker.name, total=16 * GIB)
        tracker.kill()
        until_is(service, tracker.name, state="orphaned", total=16 * GIB)
        second = kvcached.Tracker(tmp_path, 8 * GIB)
        assert second.name != tracker.name
        second.end()
        assert not (kvcached.DIRECTORY / second.name).exists()
    finally:
        service.kill()
        tracker.kill()
        (kvcached.DIRECTORY / tracker.name).unlink(missing_ok=True)
