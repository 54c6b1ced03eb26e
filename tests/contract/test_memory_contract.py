"""Segments of memory, as both forms of the service show them."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from tests.contract.deployments import WAIT_S, Deployment, tenant_of
from tests.memory_segments import GIB, Segment, SegmentProcess
from tests.processes import until

pytestmark = pytest.mark.timeout(180)


class Shown:
    """What `GET /memory` shows of one segment."""

    def __init__(self, deployment: Deployment, name: str) -> None:
        self._deployment = deployment
        self.name = name

    def now(self) -> dict[str, Any]:
        status, document = self._deployment.api.get("/memory")
        assert status == 200, document
        assert document["count"] == len(document["segments"])
        found = [one for one in document["segments"] if one["segment"] == self.name]
        assert len(found) <= 1
        return found[0] if found else {}

    def until(self, what: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        try:
            until(lambda: holds(self.now()), what=what, timeout_s=WAIT_S)
        except AssertionError as error:
            log = self._deployment.log()
            raise AssertionError(f"{error}\nshown: {self.now()}\n{log}") from error
        return self.now()

    def until_is(self, **fields: object) -> dict[str, Any]:
        return self.until(str(fields), lambda one: fields.items() <= one.items())


@pytest.fixture
def shown(deployment: Deployment) -> Shown:
    """Of a name of the test's own."""
    return Shown(deployment, f"kvcached_{uuid.uuid4().hex[:8]}")


@pytest.fixture
def path(deployment: Deployment, shown: Shown) -> Iterator[Path]:
    path = deployment.memory / shown.name
    yield path
    path.unlink(missing_ok=True)


def test_a_segment_is_shown_as_it_comes_changes_and_goes(
    deployment: Deployment, shown: Shown, path: Path
) -> None:
    with Segment(path, 40 * GIB, 10 * GIB, 2 * GIB) as segment:
        first = shown.until_is(state="live", used=10 * GIB)
        assert (first["host"], first["inode"], first["instances"]) == ("node-1", segment.inode, [])
        assert (first["total"], first["preallocated"]) == (40 * GIB, 2 * GIB)
        assert first["pressure"] == 0.3
        segment.write(40 * GIB, 30 * GIB, 8 * GIB)
        second = shown.until_is(used=30 * GIB, pressure=0.95)
        assert second["since"] == first["since"]
        assert second["changed_at"] > first["changed_at"]
        labels = {"host": "node-1", "segment": shown.name}
        assert deployment.api.metric("reprise_memory_pressure", **labels) == 0.95
        assert deployment.api.metric("reprise_memory_used_bytes", **labels) == 30 * GIB
        state = {"state": "live"}
        assert deployment.api.metric("reprise_memory_segment_state", **labels, **state) == 1.0
        segment.write(20 * GIB, 30 * GIB, 8 * GIB)
        shown.until_is(total=20 * GIB, pressure=1.9)
    path.unlink()
    gone = shown.until_is(state="gone")
    assert (gone["used"], gone["since"]) == (30 * GIB, first["since"])


def test_another_file_of_the_name_is_another_run(shown: Shown, path: Path) -> None:
    with Segment(path, 1000, 100) as segment:
        first = shown.until_is(used=100)
        other = path.with_name("new")
        with Segment(other, 1000, 100) as next_one:
            assert segment.inode != next_one.inode
            other.rename(path)
            second = shown.until_is(inode=next_one.inode)
    assert second["since"] > first["since"]


def test_it_is_mapped_by_the_registration_and_shown_without_one(
    deployment: Deployment, shown: Shown, path: Path
) -> None:
    with (
        Segment(path, 1000, 1),
        tenant_of(deployment, f"t-{uuid.uuid4().hex[:8]}") as tenant,
    ):
        assert shown.until_is(state="live")["instances"] == []
        publisher = Publisher(PublisherOptions())
        try:
            tenant.connect(publisher, memory_segment=f"node-1/{shown.name[:-2]}*")
            one = shown.until("it belongs to an instance", lambda found: found["instances"])
            [instance] = one["instances"]
            assert instance.items() >= {
                "tenant_id": tenant.tenant_id,
                "model_name": "m",
                "instance_id": "a",
                "dp_rank": 0,
            }.items()  # fmt: skip
            labels = {"segment": shown.name, "tenant": tenant.tenant_id, "instance": "a"}
            assert deployment.api.metric("reprise_memory_segment_instance", **labels) == 1.0
            [service] = tenant.services()
            assert service["MemorySegment"] == f"node-1/{shown.name[:-2]}*"
            tenant.leave()
            shown.until("it belongs to nobody", lambda found: found["instances"] == [])
        finally:
            publisher.close()


def test_it_is_answered_in_msgpack_too(deployment: Deployment, shown: Shown, path: Path) -> None:
    with Segment(path, 1000, 1):
        shown.until_is(state="live")
        accept = {"Accept": "application/msgpack"}
        status, body, headers = deployment.api.request("GET", "/memory", headers=accept)
    assert (status, headers["content-type"]) == (200, "application/msgpack")
    assert shown.name in [one["segment"] for one in msgpack.unpackb(body)["segments"]]


def test_a_writer_that_was_killed_leaves_an_orphan(deployment: Deployment) -> None:
    writer = SegmentProcess(deployment.memory)
    writer.write(1000, 400, 100)
    shown = Shown(deployment, writer.name)
    assert shown.until_is(used=400, state="live")["writer"] == "alive"
    writer.kill()
    orphan = shown.until_is(state="orphaned")
    assert (orphan["writer"], orphan["used"]) == ("gone", 400)
    (deployment.memory / writer.name).unlink()
    shown.until_is(state="gone")


def test_a_writer_that_ends_takes_its_segment_along(deployment: Deployment) -> None:
    writer = SegmentProcess(deployment.memory)
    writer.write(1000, 400, 100)
    shown = Shown(deployment, writer.name)
    shown.until_is(state="live", used=400)
    writer.end()
    shown.until_is(state="gone")


@pytest.mark.both_forms
def test_what_is_known_of_segments_survives_a_restart_of_everything(
    deployment: Deployment, shown: Shown, path: Path
) -> None:
    with Segment(path, 1000, 100) as segment:
        before = shown.until_is(used=100)
        deployment.restart()
        after = shown.until(
            "another bridge reads it", lambda one: one["bridge"] != before["bridge"]
        )
        same = ("inode", "used", "since", "changed_at")
        assert [after[name] for name in same] == [before[name] for name in same]
        segment.write(1000, 200, 0)
        shown.until_is(used=200)


def test_nothing_in_the_directory_disturbs_its_neighbours(
    deployment: Deployment, shown: Shown, path: Path
) -> None:
    strange = [path.with_name(f"{path.name}_{number}") for number in range(4)]
    strange[0].write_bytes(b"\xff" * 24)
    strange[1].write_bytes(b"\xff" * 1000)
    strange[2].symlink_to("/etc/hostname")
    strange[3].mkdir()
    try:
        with Segment(path, 1000, 100) as segment:
            shown.until_is(used=100)
            with segment.locked():
                assert shown.now()["state"] == "live"
            segment.write(1000, 300, 0)
            shown.until_is(used=300)
    finally:
        for one in strange[:3]:
            one.unlink()
        strange[3].rmdir()
