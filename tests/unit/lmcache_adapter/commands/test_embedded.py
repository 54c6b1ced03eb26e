"""The log of commands of the embedded form: what it says survives, and each command ends once."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lmcache_adapter.commands import embedded as commands_module
from lmcache_adapter.commands import executor as executor_module
from lmcache_adapter.commands import issued as issued_module
from lmcache_adapter.commands.embedded import EmbeddedCommands
from lmcache_adapter.commands.log import COMMANDS
from lmcache_adapter.controller.member import WorkerAddress
from logs.declaration import EmbeddedParts
from logs.embedded import EmbeddedLog
from query_api.http.errors import RequestError
from schemas.clock import REAL_CLOCK
from schemas.command_records import (
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandState,
    CommandWorker,
    ResultRecord,
    encode_command,
)
from schemas.conditions import Conditions
from schemas.errors import DiskError, StorageError
from schemas.tracing import NO_TRACER, Tracer
from tests.lmcache_commands import CommandSocket
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, KeptSpans

Scene = Callable[[EmbeddedCommands], Coroutine[Any, Any, None]]


def command(name: str = "Clear1", rank: int = 0) -> CommandRecord:
    return CommandRecord(
        command_id=name,
        action=CommandAction.CLEAR,
        instance_id="a",
        location="L",
        workers=(CommandWorker(rank),),
        issued_at=time.time(),
    )


def play(data: Path, scene: Scene, port: int = 0, tracer: Tracer = NO_TRACER) -> EmbeddedCommands:
    """Runs a service whose only worker is at the port; it is stopped then."""

    async def locate(instance_id: str) -> Mapping[int, WorkerAddress]:
        return {0: WorkerAddress(f"tcp://127.0.0.1:{port}", is_linked=True)} if port else {}

    parts = EmbeddedParts(data, Conditions(time.time), REAL_CLOCK, tracer=tracer)
    service = EmbeddedCommands(parts, locate)
    service.start()
    try:
        asyncio.run(scene(service))
    finally:
        service.stop()
    return service


async def state(service: EmbeddedCommands, name: str = "Clear1") -> CommandState | None:
    found = await service.find(name)
    return None if found is None else found.state


def test_a_command_is_in_the_log_is_executed_and_is_known_after_a_restart(tmp_path: Path) -> None:
    async def first(service: EmbeddedCommands) -> None:
        await service.issue(command())
        found = await service.ended("Clear1")
        assert found is not None
        assert (found.state, found.results[0].tokens) == (CommandState.DONE, 7)

    async def second(service: EmbeddedCommands) -> None:
        assert await state(service) is CommandState.DONE
        assert await state(service, "other") is None
        assert await service.ended("other") is None

    with CommandSocket() as worker:
        play(tmp_path, first, worker.port)
        play(tmp_path, second, worker.port)
        assert len(worker.requests) == 1, "a restart executes nothing again"


def test_a_command_and_its_execution_are_part_of_the_requests_trace(tmp_path: Path) -> None:
    spans = KeptSpans()

    async def scene(service: EmbeddedCommands) -> None:
        await service.issue(msgspec.structs.replace(command(), traceparent=TRACEPARENT))
        await service.ended("Clear1")
        found = await service.find("Clear1")
        assert found is not None
        traces.append(found.command.traceparent)

    traces: list[str] = []
    with CommandSocket() as worker:
        play(tmp_path, scene, worker.port, spans.tracer)
    by_name = {one.name: one for one in spans.take()}
    given, executed = by_name["command"], by_name["command.execute"]
    assert (given.trace, given.parent, executed.parent) == (TRACE, ROUTER_SPAN, given.span)
    assert traces == [given.traceparent]


def test_what_had_not_ended_is_ended_by_the_restart_once(tmp_path: Path) -> None:
    log = COMMANDS.opened(tmp_path)
    log.append([encode_command(command())])
    log.close()

    async def scene(service: EmbeddedCommands) -> None:
        found = await service.find("Clear1")
        assert found is not None
        assert (found.state, found.reason) == (CommandState.FAILED, commands_module.RESTARTED)

    assert play(tmp_path, scene).book.ended == {"failed": 1}
    assert play(tmp_path, scene).book.ignored == {}, "it was ended in the log"


def test_a_stop_leaves_nothing_that_waits(tmp_path: Path) -> None:
    async def first(service: EmbeddedCommands) -> None:
        await service.issue(command())

    async def second(service: EmbeddedCommands) -> None:
        assert await state(service) is CommandState.FAILED

    with CommandSocket() as worker:
        worker.answer = lambda request: None
        play(tmp_path, first, worker.port)
        play(tmp_path, second)


def test_a_damaged_log_is_set_aside(tmp_path: Path) -> None:
    log = COMMANDS.opened(tmp_path)
    log.append([encode_command(command())])
    log.close()
    (COMMANDS.path_in(tmp_path) / "CURRENT").write_text("MANIFEST-999999\n")

    async def scene(service: EmbeddedCommands) -> None:
        assert await state(service) is None
        await service.issue(command())
        await service.ended("Clear1")
        assert await state(service) is CommandState.FAILED

    play(tmp_path, scene)
    assert list(tmp_path.glob("commands.damaged*"))


def test_a_record_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    log = COMMANDS.opened(tmp_path)
    result = ResultRecord(command_id="Clear1", worker_id=0, outcome=CommandOutcome.OK, at=1.0)
    log.append([encode_command(command()), b"junk", encode_command(result)])
    log.close()

    async def scene(service: EmbeddedCommands) -> None:
        assert await state(service) is CommandState.DONE

    assert play(tmp_path, scene).book.ignored == {"unreadable": 1}


def test_a_disk_that_refuses_a_command_leaves_it_unexecuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DiskError(action="append to the log", path="commands", detail="no space left")

    async def scene(service: EmbeddedCommands) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(EmbeddedLog, "append", refuse)
            with pytest.raises(StorageError):
                await service.issue(command())
        assert service.issued.waiting == 0
        assert await state(service) is None
        await service.issue(command())
        await service.ended("Clear1")

    with CommandSocket() as worker:
        play(tmp_path, scene, worker.port)
        assert len(worker.requests) == 1


def test_a_disk_that_refuses_a_result_does_not_keep_it_from_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = EmbeddedLog.append
    written: list[object] = []

    def refuse(log: EmbeddedLog, values: Any, *, now: float = 0.0) -> Any:
        written.append(values)
        if len(written) > 1:
            raise DiskError(action="append to the log", path="commands", detail="no space left")
        return append(log, values, now=now)

    async def scene(service: EmbeddedCommands) -> None:
        monkeypatch.setattr(EmbeddedLog, "append", refuse)
        await service.issue(command())
        found = await service.ended("Clear1")
        assert found is not None
        assert found.state is CommandState.DONE
        assert service.book.ignored == {"unwritten": 1}

    with CommandSocket() as worker:
        play(tmp_path, scene, worker.port)


def test_one_whose_execution_fails_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(executor_module.Executor, "execute", fail)

    async def scene(service: EmbeddedCommands) -> None:
        await service.issue(command())
        found = await service.ended("Clear1")
        assert found is not None
        assert (found.state, found.reason) == (CommandState.FAILED, commands_module.UNANSWERED)

    assert play(tmp_path, scene).executor.faults == 1


@pytest.mark.parametrize("bound", ["COMMANDS_WAITING_MAX", "COMMANDS_WAITING_TOKENS_MAX"])
def test_too_many_at_once_are_refused_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(issued_module, bound, 0)

    async def scene(service: EmbeddedCommands) -> None:
        with pytest.raises(RequestError, match="Too many"):
            await service.issue(
                CommandRecord(
                    command_id="Pin1",
                    action=CommandAction.PIN,
                    instance_id="a",
                    location="L",
                    tokens=bytes(4),
                    workers=(CommandWorker(0),),
                    issued_at=time.time(),
                )
            )

    service = play(tmp_path, scene)
    assert (service.issued.refused, len(service.book)) == (1, 0)
