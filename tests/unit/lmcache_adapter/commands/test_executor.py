"""A command at its workers: a result of each, in time, whatever a worker does."""

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgpack
import pytest
import zmq

from devtools.broker import free_ports
from lmcache_adapter.commands import exchange as exchange_module
from lmcache_adapter.commands import executor as executor_module
from lmcache_adapter.commands.executor import Executor
from lmcache_adapter.controller.member import WorkerAddress
from schemas.command_records import (
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandWorker,
    ResultRecord,
)
from tests.lmcache_commands import CommandSocket, plain_answer
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, KeptSpans

SHORT_S = 0.3


def command(*ranks: int, number: int = 0, age_s: float = 0.0, **fields: Any) -> CommandRecord:
    named: dict[str, Any] = {
        "command_id": f"Pin{number}",
        "action": CommandAction.PIN,
        "instance_id": "a",
        "location": "L",
        "tokens": bytes(4 * (number + 1)),
        "workers": tuple(map(CommandWorker, ranks or (0,))),
        "issued_at": time.time() - age_s,
    }
    return CommandRecord(**named | fields)


class Bench:
    """An executor over workers at these ports."""

    def __init__(self, *ports: int, is_sole: bool = True) -> None:
        self.found: Mapping[int, WorkerAddress] | None = {
            rank: WorkerAddress(f"tcp://127.0.0.1:{port}", is_linked=True)
            for rank, port in enumerate(ports)
        }
        self.spans = KeptSpans()
        self.executor = Executor(self._locate, is_sole=is_sole, tracer=self.spans.tracer)
        self.results: list[ResultRecord] = []

    async def _locate(self, instance_id: str) -> Mapping[int, WorkerAddress]:
        assert instance_id == "a"
        if self.found is None:
            raise TimeoutError
        return self.found

    def unlink(self, rank: int) -> None:
        assert self.found is not None
        self.found = {**self.found, rank: self.found[rank]._replace(is_linked=False)}

    async def execute(self, *commands: CommandRecord) -> None:
        running = (self.executor.execute(one, self.results.append) for one in commands)
        await asyncio.gather(*running)

    @property
    def outcomes(self) -> dict[int, CommandOutcome]:
        return {one.worker_id: one.outcome for one in self.results}

    def play(self, *commands: CommandRecord) -> None:
        """Executes them at once; every worker of each has one result then."""

        async def run() -> None:
            try:
                await self.execute(*commands)
            finally:
                self.executor.close()

        asyncio.run(run())


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have less time; those of this process need next to none."""
    monkeypatch.setattr(executor_module, "COMMAND_ANSWER_S", SHORT_S)


def test_every_worker_is_asked_and_has_a_result() -> None:
    with CommandSocket() as one, CommandSocket() as other:
        bench = Bench(one.port, other.port)
        bench.play(command(0, 1, number=4))
        assert bench.outcomes == {0: CommandOutcome.OK, 1: CommandOutcome.OK}
        assert [found.tokens for found in bench.results] == [5, 5]
        assert one.requests[0]["worker_event_id"] == "Worker0Pin4"
        assert other.requests[0]["worker_event_id"] == "Worker1Pin4"
        assert bench.executor.replaced == 0


def test_only_the_named_workers_are_asked() -> None:
    with CommandSocket() as one, CommandSocket() as other:
        bench = Bench(one.port, other.port)
        bench.play(command(1))
        assert (len(one.requests), len(other.requests)) == (0, 1)


def test_one_that_is_silent_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)
    with CommandSocket() as silent, CommandSocket() as well:
        silent.answer = lambda request: None
        bench = Bench(silent.port, well.port)
        bench.play(command(0, 1))
        assert bench.outcomes == {0: CommandOutcome.TIMEOUT, 1: CommandOutcome.OK}
        assert [one.worker_id for one in bench.results] == [1, 0]
        assert bench.executor.replaced == 1


def test_one_that_is_away_is_no_end_of_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)
    [port] = free_ports(1)
    bench = Bench(port)
    bench.play(command())
    assert bench.outcomes == {0: CommandOutcome.TIMEOUT}
    assert bench.results[0].ms >= 1000 * SHORT_S * 0.9


def test_after_a_silence_the_next_command_has_a_socket_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the late answer to the old one is not taken for its answer."""
    hasten(monkeypatch)
    released = threading.Event()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["worker_event_id"] == "Worker0Pin0":
            released.wait(10)
        return plain_answer(request)

    with CommandSocket() as worker:
        worker.answer = answer
        bench = Bench(worker.port)

        async def run() -> None:
            await bench.execute(command(number=0))
            released.set()
            await bench.execute(command(number=7))
            bench.executor.close()

        asyncio.run(run())
    assert [one.outcome for one in bench.results] == [CommandOutcome.TIMEOUT, CommandOutcome.OK]
    assert bench.results[1].tokens == 8, "the answer to the first one was 1"


def test_a_worker_that_came_back_at_its_address_is_asked_by_the_same_socket() -> None:
    [port] = free_ports(1)
    bench = Bench(port)

    async def run() -> None:
        for number in range(3):
            with CommandSocket(port) as worker:
                await bench.execute(command(number=number))
                assert len(worker.requests) == 1
        bench.executor.close()

    asyncio.run(run())
    assert [one.outcome for one in bench.results] == [CommandOutcome.OK] * 3
    assert bench.executor.replaced == 0


def test_commands_wait_for_their_turn_in_order_and_one_that_had_none_was_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hasten(monkeypatch)
    with CommandSocket() as worker:
        bench = Bench(worker.port)
        bench.play(*(command(number=number) for number in range(20)))
        names = [one["worker_event_id"] for one in worker.requests]
        assert names == [f"Worker0Pin{number}" for number in range(20)]
        worker.answer = lambda request: None
        silent = Bench(worker.port)
        silent.play(*(command(number=number) for number in range(100, 103)))
        assert len(worker.requests) == 21, "two have never had their turn"
    details = [one.detail for one in silent.results]
    assert sum("was not sent" in one for one in details) == 2
    assert {one.outcome for one in silent.results} == {CommandOutcome.TIMEOUT}


def test_too_many_for_one_worker_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)
    monkeypatch.setattr(exchange_module, "LMCACHE_WORKER_WAITING_MAX", 2)
    with CommandSocket() as worker:
        worker.answer = lambda request: None
        bench = Bench(worker.port)
        bench.play(*(command(number=number) for number in range(5)))
    assert [one.outcome for one in bench.results].count(CommandOutcome.REFUSED) == 3
    assert bench.executor.refused == {"worker_busy": 3}


@pytest.mark.parametrize("bound", ["LMCACHE_COMMANDS_MAX", "LMCACHE_COMMAND_TOKENS_MAX"])
def test_too_many_at_once_are_refused(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(executor_module, bound, 2)
    with CommandSocket() as worker:
        bench = Bench(worker.port)
        bench.play(*(command(number=number, tokens=bytes(4)) for number in range(4)))
        assert len(worker.requests) == 2
    assert bench.executor.refused == {"too_many_commands": 2}
    assert bench.executor.under_way == 0


def test_one_that_comes_too_late_is_not_executed() -> None:
    with CommandSocket() as worker:
        bench = Bench(worker.port)
        bench.play(command(age_s=60.0))
        assert not worker.requests
    assert bench.outcomes == {0: CommandOutcome.REFUSED}
    assert bench.executor.refused == {"late": 1}


def test_a_clock_that_is_ahead_gives_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)
    with CommandSocket() as worker:
        worker.answer = lambda request: None
        bench = Bench(worker.port)
        bench.play(command(age_s=-3600.0))
    assert bench.outcomes == {0: CommandOutcome.TIMEOUT}
    assert bench.results[0].ms < 3_000


def test_a_worker_without_a_link_or_a_registration_is_refused_at_once() -> None:
    with CommandSocket() as worker:
        bench = Bench(worker.port)
        bench.unlink(0)
        bench.play(command(0, 5))
        assert not worker.requests
    assert bench.outcomes == {0: CommandOutcome.REFUSED, 5: CommandOutcome.REFUSED}
    assert bench.executor.refused == {"link_down": 1, "not_registered": 1}


def test_of_workers_that_others_may_have_nothing_is_said() -> None:
    with CommandSocket() as one, CommandSocket() as other:
        bench = Bench(one.port, other.port, is_sole=False)
        bench.unlink(0)
        bench.play(command(0, 1, 5))
        assert not one.requests
    assert bench.outcomes == {1: CommandOutcome.OK}


def test_where_nobody_knows_in_time_where_workers_are_it_is_refused() -> None:
    bench = Bench(1)
    bench.found = None
    bench.play(command())
    assert bench.executor.refused == {"not_located": 1}
    silent = Bench(1, is_sole=False)
    silent.found = None
    silent.play(command())
    assert silent.results == []


def test_what_lmcache_cannot_do_is_asked_of_nobody() -> None:
    with CommandSocket() as worker:
        bench = Bench(worker.port)
        bench.play(command(action=CommandAction.COMPRESS, method="zip"))
        assert not worker.requests
    assert bench.outcomes == {0: CommandOutcome.UNSUPPORTED}


@pytest.mark.parametrize("endpoint", ["tcp://*:1", "tcp://x:99999", "", "tcp://:0", "udp://a"])
def test_an_address_that_is_none_is_refused(endpoint: str) -> None:
    bench = Bench(1)
    bench.found = {0: WorkerAddress(endpoint, is_linked=True)}
    bench.play(command())
    assert bench.outcomes == {0: CommandOutcome.REFUSED}


@pytest.mark.parametrize(
    "answer", [b"", b"junk", msgpack.packb({"type": "ErrorMsg", "error": "no room"})]
)
def test_an_answer_that_is_no_result_is_refused_and_the_next_one_is_asked(answer: bytes) -> None:
    with CommandSocket() as worker:
        worker.answer = lambda request: answer
        bench = Bench(worker.port)

        async def run() -> None:
            await bench.execute(command())
            worker.answer = plain_answer
            await bench.execute(command(number=1))
            bench.executor.close()

        asyncio.run(run())
    assert [one.outcome for one in bench.results] == [CommandOutcome.REFUSED, CommandOutcome.OK]


def test_an_answer_of_several_frames_is_none() -> None:
    """A REP socket may send them, and they must not be left for the next command."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    replying = context.socket(zmq.REP)
    port = replying.bind_to_random_port("tcp://127.0.0.1")

    def serve() -> None:
        replying.recv()
        replying.send_multipart([b"a", b"b"])
        replying.recv()
        replying.send(msgpack.packb({"type": "PinWorkerRetMsg", "num_tokens": 2}))

    thread = threading.Thread(target=serve)
    thread.start()
    bench = Bench(port)

    async def run() -> None:
        await bench.execute(command())
        await bench.execute(command(number=1))
        bench.executor.close()

    asyncio.run(run())
    thread.join()
    context.destroy(linger=0)
    assert [one.outcome for one in bench.results] == [CommandOutcome.REFUSED, CommandOutcome.OK]


def test_too_many_workers_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "LMCACHE_LINKS_USED_MAX", 2)
    hasten(monkeypatch)
    with CommandSocket() as one, CommandSocket() as other, CommandSocket() as third:
        for worker in (one, other, third):
            worker.answer = lambda request: None
        bench = Bench(one.port, other.port, third.port)
        bench.play(command(0, 1, 2))
    assert sorted(bench.outcomes.values()) == [
        CommandOutcome.REFUSED,
        CommandOutcome.TIMEOUT,
        CommandOutcome.TIMEOUT,
    ]
    assert bench.executor.refused == {"too_many_asked": 1}


def test_as_many_workers_as_an_instance_may_have_are_asked_at_once() -> None:
    """Each has a socket of its own, and libzmq has room for them."""
    count = 300
    with CommandSocket(host="0.0.0.0") as worker:  # one process, by as many addresses
        bench = Bench()
        bench.found = {
            rank: WorkerAddress(
                f"tcp://127.{1 + rank // 250}.0.{1 + rank % 250}:{worker.port}", True
            )
            for rank in range(count)
        }
        bench.play(command(*range(count)))
        assert len(worker.requests) == count
    assert set(bench.outcomes.values()) == {CommandOutcome.OK}


def test_links_that_are_not_used_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "LMCACHE_LINKS_KEPT_MAX", 1)
    with CommandSocket() as one, CommandSocket() as other:
        bench = Bench(one.port, other.port)

        async def run() -> None:
            for rank in (0, 1, 0, 1):
                await bench.execute(command(rank))
            bench.executor.close()

        asyncio.run(run())
    assert [found.outcome for found in bench.results] == [CommandOutcome.OK] * 4


def test_who_executes_a_command_has_a_span_of_it() -> None:
    with CommandSocket() as one:
        bench = Bench(one.port)
        bench.play(command(0, 1, number=4, traceparent=TRACEPARENT))
    (kept,) = bench.spans.take()
    assert (kept.name, kept.trace, kept.parent) == ("command.execute", TRACE, ROUTER_SPAN)
    assert kept.attributes == {
        "reprise.command.action": "pin",
        "reprise.command.id": "Pin4",
        "reprise.command.results.ok": 1,
        "reprise.command.results.refused": 1,
        "reprise.command.workers": 2,
        "reprise.instance": "a",
    }


def test_who_has_none_of_the_workers_has_no_span() -> None:
    bench = Bench(is_sole=False)
    bench.play(command(0, traceparent=TRACEPARENT))
    assert bench.results == []
    assert bench.spans.take() == []
