"""LMCache's coordinator: whose events count, what is missing, what reaches the log, and what one
run tells the next.
"""

from pathlib import Path

import pytest

from lmcache_adapter.coordinator.members import COORDINATOR_LEFT_S
from lmcache_adapter.coordinator.service import COORDINATOR_SILENT_S
from lmcache_adapter.settings import Model, Models
from lmcache_adapter.worker.keys import Budget
from schemas.answer_states import Doubt
from schemas.errors import DiskError, NewerVersionError
from storage.rocksdb import new_batch
from tests.unit.lmcache_adapter.coordinator.scene import Coordinator, Server, Sink, publisher, run

A, B = publisher("a"), publisher("b")


def test_what_is_stored_and_deleted_reaches_the_log(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            assert (await server.register())[0] == 200
            assert await server.store(1, 2) == {"applied": 1, "duplicates": 0, "stale": 0}
            await server.store(3, tier="l2", backend="fs")
            await server.delete(1)
            assert coordinator.keys(A) == {("CPU", 2), ("DISK", 3)}
            assert coordinator.doubt(A) is None
            assert coordinator.sink.index.degraded[A] is None

    run(scene())


def test_a_server_whose_model_says_nothing_more_may_drop_events_unseen(tmp_path: Path) -> None:
    """So answers about it are unconfirmed, as of any tier that may only ever store."""

    async def scene(models: Models | None, doubt: Doubt | None, data: Path) -> None:
        async with Coordinator(data, models) as coordinator:
            await Server(coordinator).store(1)
            [registration] = coordinator.service.servers.known()
            assert registration.doubt == doubt

    run(scene(None, Doubt.DROPS_UNSAID, tmp_path / "a"))
    run(scene(Models(models={"m": Model(says_all=True)}), None, tmp_path / "b"))


def test_a_jump_is_a_gap_and_the_batch_is_applied(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            await server.store(1)
            server.batch("store", 2)  # lost
            await server.store(3)
            assert coordinator.keys(A) == {("CPU", 1), ("CPU", 3)}
            assert coordinator.sink.index.degraded[A] == "batches_missed"
            assert coordinator.service.servers.gaps == 1

    run(scene())


def test_events_that_were_dropped_without_a_jump_are_a_gap(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            await server.store(1)
            server.dropped = 3
            await server.store(2)
            assert coordinator.sink.index.degraded[A] == "events_dropped"
            await server.store(3)
            assert coordinator.service.servers.gaps == 1, "the count has not risen again"

    run(scene())


def test_a_post_that_was_lost_is_one_gap_however_it_shows(tmp_path: Path) -> None:
    """The number jumps, and the count of what was dropped rises."""

    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            await server.store(1)
            server.batch("store", 2)
            server.dropped = 1
            await server.store(3)
            assert coordinator.service.servers.gaps == 1
            assert coordinator.sink.index.degraded[A] == "batches_missed"

    run(scene())


def test_what_a_server_had_dropped_before_it_was_known_is_not_counted_twice(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            server.seq, server.dropped = 9, 5
            await server.store(1)
            assert coordinator.sink.index.degraded[A] == "beginning_missed"
            assert coordinator.service.servers.gaps == 1

    run(scene())


def test_a_new_process_has_an_empty_memory_and_its_storage(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            await server.store(1)
            await server.store(2, tier="l2", backend="fs")
            await Server(coordinator, incarnation=200).store(3)
            assert coordinator.keys(A) == {("DISK", 2), ("CPU", 3)}
            late = await server.store(4)
            assert late == {"applied": 0, "duplicates": 0, "stale": 1}
            assert coordinator.keys(A) == {("DISK", 2), ("CPU", 3)}
            status, listed = await coordinator.ask("GET", "/directory/keys")
            assert status == 200
            assert listed["total"] == 2

    run(scene())


def test_one_that_has_left_is_refused_until_it_registers_or_is_another_process(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            await server.register()
            await server.store(1)
            assert await server.leave() == 204
            assert A not in coordinator.service.followed, "it holds nothing"
            assert A not in coordinator.sink.index.registered
            assert await server.store(2) == {"applied": 0, "duplicates": 0, "stale": 1}
            assert coordinator.service.dropped["departed_instance"] == 1
            await server.register()
            await server.store(3)
            assert coordinator.keys(A) == {("CPU", 3)}
            assert coordinator.sink.index.degraded[A] == "beginning_missed"
            await server.leave()
            await Server(coordinator, incarnation=200).store(4)
            assert coordinator.keys(A) == {("CPU", 4)}
            assert coordinator.sink.index.degraded[A] is None

    run(scene())


def test_what_one_that_has_left_keeps_in_storage_stays_and_is_doubted(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            await server.register()
            await server.store(1)
            await server.store(2, tier="l2", backend="fs")
            await server.leave()
            assert coordinator.keys(A) == {("DISK", 2)}
            assert coordinator.doubt(A) is Doubt.WORKER_SILENT
            assert not coordinator.service.is_linked(A)

    run(scene())


def test_one_without_heartbeats_is_doubted_and_then_has_left(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            await server.register()
            await server.store(1)
            await coordinator.wait(COORDINATOR_SILENT_S)
            assert coordinator.doubt(A) is None
            await coordinator.wait(1.0)
            assert coordinator.doubt(A) is Doubt.WORKER_SILENT
            assert await server.beat() == 200
            assert coordinator.doubt(A) is None
            await coordinator.wait(COORDINATOR_LEFT_S + 1.0)
            assert A not in coordinator.service.followed
            assert coordinator.service.departed == 1
            assert await server.beat() == 404, "so it registers again"

    run(scene())


@pytest.mark.parametrize("killed", [False, True])
def test_after_a_restart_nothing_is_lost_where_the_next_number_follows_on(
    tmp_path: Path, killed: bool
) -> None:
    async def scene() -> None:
        sink = Sink()
        first = Coordinator(tmp_path, sink=sink)
        async with first:
            server = Server(first)
            await server.register()
            await server.store(1, 2)
            await server.store(3, tier="l2", backend="s3", shared=True)
            await server.delete(1)
            if killed:
                await first.die()
                first = Coordinator(tmp_path, sink=sink)
        second = first if killed else Coordinator(tmp_path, sink=sink)
        async with second:
            assert second.keys(A) == {("CPU", 2), ("DISK", 3)}
            assert second.doubt(A) is Doubt.WORKER_SILENT  # it may have ended meanwhile
            assert await server.beat_of(second) == 404
            server.coordinator = second
            await server.register()
            assert second.doubt(A) is Doubt.WORKER_SILENT  # or have told what went astray
            await server.tell(server.batch("config"))  # as it does behind each registration
            assert second.doubt(A) is None
            await server.store(4)
            await server.delete(2)
            assert second.keys(A) == {("CPU", 4), ("DISK", 3)}
            assert second.sink.index.degraded[A] is None
            status, stats = await second.ask("GET", "/directory/stats")
            assert status == 200
            assert (stats["num_keys"], stats["l1_count"], stats["l2_count"]) == (2, 1, 1)

    run(scene())


def test_after_a_restart_what_was_told_meanwhile_is_a_gap(tmp_path: Path) -> None:
    async def scene() -> None:
        sink = Sink()
        async with Coordinator(tmp_path, sink=sink) as coordinator:
            server = Server(coordinator)
            await server.register()
            await server.store(1)
        server.batch("store", 2)  # nobody is there
        async with Coordinator(tmp_path, sink=sink) as coordinator:
            server.coordinator = coordinator
            await server.store(3)
            assert sink.index.degraded[A] == "batches_missed"

    run(scene())


def test_after_a_restart_one_that_does_not_come_back_has_left(tmp_path: Path) -> None:
    async def scene() -> None:
        sink = Sink()
        async with Coordinator(tmp_path, sink=sink) as coordinator:
            server = Server(coordinator)
            await server.register()
            await server.store(1)
        async with Coordinator(tmp_path, sink=sink) as coordinator:
            await coordinator.wait(COORDINATOR_SILENT_S + 1.0)
            assert A not in coordinator.service.followed
            assert A not in sink.index.registered
        async with Coordinator(tmp_path, sink=sink) as coordinator:
            assert coordinator.service.servers.instances == []
            assert (await coordinator.ask("GET", "/directory/keys"))[1]["total"] == 0

    run(scene())


def test_rows_of_an_empty_memory_are_deleted_in_passing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            await server.store(*range(1, 50))
            await Server(coordinator, incarnation=200).store(50)
            assert coordinator.service.directory.placements.total() == 1
            while not coordinator.service.directory.is_swept:
                await coordinator.wait(2.0)
            assert coordinator.service.directory.stale().keys == []
            assert (await coordinator.ask("GET", "/directory/keys"))[1]["total"] == 1

    run(scene())


def test_what_cannot_be_kept_is_refused_and_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose post is refused counts what was in it as dropped, and goes on."""

    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            await server.store(1)

            def full(*_: object) -> None:
                raise DiskError(action="write", path="/", detail="no space")

            with monkeypatch.context() as patched:
                patched.setattr(coordinator.service.directory, "keep", full)
                body = {"batches": [server.batch("store", 2)]}
                status, answer = await coordinator.ask("POST", "/events", body)
            assert status == 503
            assert "no space" in answer["detail"]
            await server.store(3)
            assert coordinator.keys(A) == {("CPU", 1), ("CPU", 3)}
            assert coordinator.sink.index.degraded[A] == "not_kept"

    run(scene())


def test_what_finds_no_room_is_neither_kept_nor_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            monkeypatch.setattr(coordinator.service.servers, "_budget", Budget(2))
            server = Server(coordinator)
            await server.store(1, 2)
            body = {"batches": [server.batch("store", 3)]}
            assert (await coordinator.ask("POST", "/events", body))[0] == 503
            assert coordinator.keys(A) == {("CPU", 1), ("CPU", 2)}
            assert coordinator.sink.index.degraded[A] == "not_kept"
            assert (await coordinator.ask("GET", "/directory/keys"))[1]["total"] == 2

    run(scene())


def test_a_body_of_which_anything_is_none_is_refused_as_a_whole(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            good, bad = server.batch("store", 1), server.batch("store", 2, tier="l9")
            bodies: list[object] = [{"batches": [good, bad]}, {"batches": 1}, []]
            for body in bodies:
                status, answer = await coordinator.ask("POST", "/events", body)
                assert status == 422
                assert answer["detail"][0]["loc"] == ["body"]
            assert coordinator.service.servers.instances == []

    run(scene())


def test_chunks_are_of_the_size_that_servers_agree_on(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            assert (await server.register(chunk_size=16))[0] == 200
            await server.store(1)
            assert coordinator.keys(publisher("a", size=16)) == {("CPU", 1)}
            other = Server(coordinator, "b")
            assert (await other.register(chunk_size=32))[0] == 409
        async with Coordinator(tmp_path) as coordinator:
            assert coordinator.service.directory.chunk_tokens == 16
            size = {"chunk_size": 32}
            assert (await coordinator.ask("PUT", "/config/chunk-size", size))[0] == 409
            await coordinator.wait(COORDINATOR_SILENT_S + 1.0)
            assert (await coordinator.ask("PUT", "/config/chunk-size", size))[0] == 200

    run(scene())


def test_storage_that_servers_share_is_ended_by_whichever_deletes(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            one, other = Server(coordinator), Server(coordinator, "b")
            shared = {"tier": "l2", "backend": "s3", "shared": True}
            await one.store(1, 2, **shared)
            await other.store(2, size_bytes=7, **shared)
            _, stats = await coordinator.ask("GET", "/directory/stats")
            assert (stats["l2_count"], stats["l2_size_bytes"]) == (2, 17)
            await other.delete(1, 2, **shared)
            assert coordinator.keys(A) == set()
            _, stats = await coordinator.ask("GET", "/directory/stats")
            assert stats["num_keys"] == 0
            assert not coordinator.service.directory.placements

    run(scene())


def test_what_it_does_not_do_says_what_does(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            for method, path in (
                ("PUT", "/quota/tenant"),
                ("PUT", "/quota/config"),
                ("POST", "/cache/pins"),
                ("POST", "/cache/prefetches"),
                ("GET", "/cache/prefetches/a/1"),
                ("POST", "/cache/delete"),
            ):
                status, answer = await coordinator.ask(method, path, {})
                assert status == 501, (method, path)
                assert answer["detail"].startswith("Reprise does not ")

    run(scene())


def test_a_directory_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            await Server(coordinator).store(1)
            batch = new_batch()
            batch.put(b"format", b"2")
            coordinator.service.directory._database.write(batch)
        with pytest.raises(NewerVersionError, match="LMCache's directory"):
            Coordinator(tmp_path)

    run(scene())


def test_a_client_unregisters_and_the_next_batch_brings_it_back(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            server = Server(coordinator)
            await server.store(1)
            coordinator.service.forget([A])
            assert A not in coordinator.service.followed
            await server.store(2)
            assert coordinator.keys(A) == {("CPU", 1), ("CPU", 2)}

    run(scene())


@pytest.mark.parametrize("incarnation", [0, 100])
def test_what_one_that_has_left_held_never_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, incarnation: int
) -> None:
    """Though its rows are not all deleted when it is told of again."""
    monkeypatch.setattr("lmcache_adapter.coordinator.directory.DIRECTORY_SWEPT", 1)

    async def scene() -> None:
        sink = Sink()
        async with Coordinator(tmp_path, sink=sink) as coordinator:
            server = Server(coordinator, incarnation=incarnation)
            await server.register()
            await server.store(1, 2, 3)
            await server.leave()
        async with Coordinator(tmp_path, sink=sink) as coordinator:
            server = Server(coordinator, incarnation=incarnation + 100)
            await server.register()
            await server.store(9)
            assert (await coordinator.ask("GET", "/directory/keys"))[1]["total"] == 1
        async with Coordinator(tmp_path, sink=sink) as coordinator:
            assert coordinator.keys(A) == {("CPU", 9)}

    run(scene())


def test_tokens_that_name_too_many_objects_are_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            assert (await Server(coordinator).register(chunk_size=1))[0] == 200
            asked = {"token_ids": [0] * 1100, "model_name": "m", "world_size": 255}
            status, answer = await coordinator.ask("POST", "/directory/lookup", asked)
            assert (status, "too many objects" in answer["detail"]) == (400, True)

    run(scene())
