"""Segments of memory with real processes: the embedded service, and kvcached's own code."""

import json
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
