"""How far the workers are is asked for while somebody waits, and a failure holds nobody back."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import pytest

from bridge.delivery import lag_watch, partition_lag
from bridge.delivery.lag_watch import LagWatch
from bridge.delivery.outbox import Outbox
from bridge.delivery.partition_lag import LAG_BYTES_FIRST, LAG_S, PartitionLag
from brokers.errors import KafkaError
from brokers.group_offsets import GroupOffset, GroupOffsets
from schemas.folded_work import FoldedWork, encode_work
from schemas.identities import PublisherKey
from tests.fakes import registration

ONE, TWO = (registration(name).publisher for name in ("a", "b"))


class FakeOffsets:
    def __init__(self) -> None:
        self.committed: dict[int, int] = {}
        self.said: dict[int, str] = {}
        self.asked: list[list[int]] = []
        self.failure: Exception | None = None
        self.closed = 0

    async def fetch(self, partitions: Iterable[int]) -> Mapping[int, GroupOffset]:
        self.asked.append(list(partitions))
        if self.failure is not None:
            raise self.failure
        return {
            one: GroupOffset(self.committed[one], self.said.get(one, ""))
            for one in self.asked[-1]
            if one in self.committed
        }

    async def close(self) -> None:
        self.closed += 1


class Bench:
    def __init__(self) -> None:
        self.lags = [PartitionLag(number) for number in range(3)]
        self.offsets = FakeOffsets()
        self.released: list[PublisherKey] = []
        self.watch = LagWatch(
            self.lags, cast(GroupOffsets, self.offsets), on_released=self._release
        )

    def _release(self, publishers: Sequence[PublisherKey]) -> None:
        self.released += publishers

    def hold(self, partition: int, publisher: PublisherKey) -> None:
        lag, outbox = self.lags[partition], Outbox(publisher, b"", partition)
        for offset in range(8):
            lag.add(outbox, LAG_BYTES_FIRST)
            lag.written(outbox, LAG_BYTES_FIRST, offset)
        assert lag.holds_back(outbox, asyncio.get_running_loop().time())

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():  # noqa: ASYNC110 -- it has no event
                await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_watch, "LAG_LOOK_S", 0.001)
    monkeypatch.setattr(lag_watch, "LAG_SILENT_S", 0.001)
    monkeypatch.setattr(partition_lag, "LAG_SILENT_S", 0.5)


def play(scenario: Callable[[Bench], "asyncio.Future[None] | object"]) -> Bench:
    async def run() -> Bench:
        bench = Bench()
        running = asyncio.create_task(bench.watch.run())
        try:
            await scenario(bench)  # type: ignore[misc]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return bench

    return asyncio.run(run())


def test_it_is_looked_less_often_while_workers_do_not_get_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def scenario(bench: Bench) -> None:
        bench.offsets.committed = {0: 0}
        bench.hold(0, ONE)
        monkeypatch.setattr(asyncio, "sleep", note)
        await bench.until(lambda: len(bench.offsets.asked) == 5)
        bench.offsets.committed = {0: 1}
        await bench.until(lambda: len(bench.offsets.asked) == 6)
        monkeypatch.setattr(asyncio, "sleep", sleep)

    monkeypatch.setattr(lag_watch, "LAG_LOOK_S", 0.003)
    monkeypatch.setattr(lag_watch, "LAG_LOOK_MAX_S", 0.01)
    monkeypatch.setattr(partition_lag, "LAG_SILENT_S", 3600.0)
    play(scenario)
    assert [one for one in pauses if one > 0.001][:6] == [0.003, 0.006, 0.01, 0.01, 0.01, 0.003]


def test_only_partitions_in_which_somebody_waits_are_asked_for_until_that_ends() -> None:
    async def scenario(bench: Bench) -> None:
        await asyncio.sleep(0.02)
        assert not bench.offsets.asked
        bench.hold(1, ONE)
        bench.offsets.committed = {0: 5, 1: 8}
        await bench.until(lambda: bench.released == [ONE])
        count = len(bench.offsets.asked)
        await asyncio.sleep(0.02)
        assert len(bench.offsets.asked) == count

    bench = play(scenario)
    assert set(map(tuple, bench.offsets.asked)) == {(1,)}
    assert bench.offsets.closed == 1


def test_what_workers_say_beside_their_offset_is_how_much_may_be_before_them() -> None:
    async def scenario(bench: Bench) -> None:
        bench.offsets.committed = {0: 4, 1: 4}
        work = FoldedWork(4, 4 * LAG_BYTES_FIRST, LAG_S)
        bench.offsets.said = {0: encode_work(work), 1: "of another version"}
        bench.hold(0, ONE)
        bench.hold(1, TWO)
        await bench.until(lambda: len(bench.offsets.asked) > 1)

    lags = play(scenario).lags
    assert [lag._pace.amount for lag in lags[:2]] == [
        pytest.approx(4 * LAG_BYTES_FIRST, rel=0.01),
        LAG_BYTES_FIRST,
    ]


@pytest.mark.parametrize("failure", [KafkaError("no"), OSError("away"), TimeoutError()])
def test_where_it_cannot_be_asked_for_nobody_waits_and_that_is_said_once(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(bench: Bench) -> None:
        bench.offsets.failure = failure
        bench.hold(0, ONE)
        bench.hold(2, TWO)
        await bench.until(lambda: set(bench.released) == {ONE, TWO})
        assert len(bench.offsets.asked) > 1
        bench.offsets.failure = None
        bench.offsets.committed = {0: 8, 2: 1}
        await bench.until(lambda: not bench.lags[0].size_bytes)
        bench.hold(2, TWO)

    play(scenario)
    told = [one for one in caplog.records if "how far the workers have folded" in one.message]
    assert len(told) == 1
