import asyncio
from collections.abc import Iterator

import pytest

from bridge.membership import loop_commands as module
from bridge.membership.loop_commands import Commands
from schemas.errors import NotRegisteredError, StorageError


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def run_for_a_while(loop: asyncio.AbstractEventLoop, commands: Commands[int]) -> None:
    async def run() -> None:
        running = asyncio.create_task(commands.run())
        for _ in range(20):
            await asyncio.sleep(0)
        running.cancel()

    loop.run_until_complete(run())


async def three() -> int:
    return 3


async def absent() -> int:
    raise NotRegisteredError("a")


async def faulty() -> int:
    raise ZeroDivisionError


def test_commands_run_one_after_the_other(loop: asyncio.AbstractEventLoop) -> None:
    commands: Commands[int] = Commands(loop)
    order: list[str] = []

    async def slow() -> int:
        order.append("begin")
        await asyncio.sleep(0)
        order.append("end")
        return len(order)

    futures = [commands.submit(slow) for _ in range(2)]
    run_for_a_while(loop, commands)
    assert [one.result(0) for one in futures] == [2, 4]
    assert order == ["begin", "end"] * 2


def test_an_error_is_the_callers_and_an_unforeseen_one_is_told(
    loop: asyncio.AbstractEventLoop,
) -> None:
    commands: Commands[int] = Commands(loop)
    futures = [commands.submit(one) for one in (absent, faulty, three)]
    run_for_a_while(loop, commands)
    assert isinstance(futures[0].exception(0), NotRegisteredError)
    assert "ZeroDivisionError" in str(futures[1].exception(0))
    assert futures[2].result(0) == 3


def test_commands_above_the_bound_are_refused_and_counted(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMANDS_MAX", 2)
    commands: Commands[int] = Commands(loop)
    futures = [commands.submit(three) for _ in range(3)]
    assert isinstance(futures[2].exception(0), StorageError)
    run_for_a_while(loop, commands)
    assert [one.result(0) for one in futures[:2]] == [3, 3]
    assert commands.refused == 1


def test_what_cannot_be_carried_out_now_is_refused(loop: asyncio.AbstractEventLoop) -> None:
    problem = "the disk is full"
    commands: Commands[int] = Commands(loop, refusal=lambda: problem)
    waiting = commands.submit(three)
    commands.refuse_waiting()
    assert "the disk is full" in str(waiting.exception(0))
    later = commands.submit(three)
    run_for_a_while(loop, commands)
    assert "the disk is full" in str(later.exception(0))
    problem = ""
    last = commands.submit(three)
    run_for_a_while(loop, commands)
    assert last.result(0) == 3
    assert commands.refused == 2


def test_a_command_whose_caller_has_gone_is_not_carried_out(
    loop: asyncio.AbstractEventLoop,
) -> None:
    commands: Commands[int] = Commands(loop)
    carried_out: list[int] = []

    async def note() -> int:
        carried_out.append(1)
        return 1

    assert commands.submit(note).cancel()
    run_for_a_while(loop, commands)
    assert carried_out == []


def test_the_end_refuses_what_waits_what_runs_and_what_comes(
    loop: asyncio.AbstractEventLoop,
) -> None:
    commands: Commands[int] = Commands(loop)

    async def endless() -> int:
        await asyncio.Event().wait()
        return 0

    futures = [commands.submit(endless), commands.submit(three)]
    run_for_a_while(loop, commands)
    loop.run_until_complete(asyncio.sleep(0))
    commands.close()
    futures.append(commands.submit(three))
    assert ["stopping" in str(one.exception(0)) for one in futures] == [True] * 3
