"""When a partition stands still."""

import asyncio
from types import SimpleNamespace
from typing import cast
from unittest.mock import AsyncMock

import pytest

from brokers.errors import KafkaTimeoutError
from schemas.errors import TableLostError
from schemas.positions import LogBounds
from streams.worker import app, stall_watch
from streams.worker.outcome import AttemptOutcome
from streams.worker.stall_watch import WORKER_STALL_S, StalledWorkerError, StallWatch


def note(watch: StallWatch, now: float, *places: int, begin: int = 0, end: int = 100) -> str:
    """What it says, of partitions that stand there; "" for nothing."""
    found = watch.note(
        dict(enumerate(places)), {n: LogBounds(begin, end) for n in range(len(places))}, now
    )
    assert found is None or isinstance(found, StalledWorkerError)
    return "" if found is None else str(found)


def test_one_that_stands_still_though_its_log_has_more_is_named() -> None:
    watch = StallWatch()
    assert note(watch, 10.0, 5, 40) == ""
    assert note(watch, 10.0 + WORKER_STALL_S - 0.1, 6, 40) == ""
    told = note(watch, 10.0 + WORKER_STALL_S, 7, 40)
    assert told == (
        "Partition 1 has stood still at offset 40 for 60 s, and its log begins at 0 and ends at 100"
    )


@pytest.mark.parametrize("begin", [0, 100], ids=["all is there", "all of it retired"])
def test_one_that_has_read_its_log_may_stand(begin: int) -> None:
    watch = StallWatch()
    for now in (0.0, 2 * WORKER_STALL_S, 4 * WORKER_STALL_S):
        assert note(watch, now, 100, begin=begin) == ""
    assert note(watch, 4 * WORKER_STALL_S + 1, 100, end=200) == "", "it has more since then"
    assert note(watch, 5 * WORKER_STALL_S + 1, 100, end=200)


def test_one_whose_log_has_dropped_all_that_it_was_to_fold_is_named() -> None:
    watch = StallWatch()
    assert note(watch, 0.0, 40, begin=100) == ""
    told = note(watch, WORKER_STALL_S, 40, begin=100)
    assert told == (
        "Partition 0 has stood still at offset 40 for 60 s,"
        " and its log begins at 100 and ends at 100"
    )


def test_one_that_was_taken_away_meanwhile_begins_anew() -> None:
    watch = StallWatch()
    note(watch, 0.0, 40)
    note(watch, 30.0)
    assert note(watch, WORKER_STALL_S, 40) == ""


def test_an_app_that_stands_still_ends_whatever_else_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def log_bounds(*_: object) -> dict[int, LogBounds]:
        asked.append(1)
        if len(asked) < 3:
            raise KafkaTimeoutError
        return {0: LogBounds(0, 100)}

    monkeypatch.setattr(app, "log_bounds", log_bounds)
    monkeypatch.setattr(app, "WORKER_STALL_CHECK_S", 0.0)
    monkeypatch.setattr(stall_watch, "WORKER_STALL_S", 0.01)

    async def scene() -> None:
        attempt = SimpleNamespace(
            outcome=AttemptOutcome(),
            _options=None,
            events_topic="events",
            _places=lambda: {0: 40},
            owner=SimpleNamespace(check=AsyncMock()),
        )
        watching = asyncio.create_task(app.WorkerApp._watch(cast("app.WorkerApp", attempt)))
        async with asyncio.timeout(20):
            with pytest.raises(StalledWorkerError, match="stood still at offset 40"):
                await attempt.outcome.failed
            await watching

    asyncio.run(scene())


def test_an_app_whose_tables_are_lost_ends_though_nothing_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = AsyncMock(side_effect=[KafkaTimeoutError(), None, TableLostError("another topic")])
    monkeypatch.setattr(app, "WORKER_STALL_CHECK_S", 0.0)

    async def scene() -> None:
        attempt = SimpleNamespace(
            outcome=AttemptOutcome(), _places=dict, owner=SimpleNamespace(check=checks)
        )
        watching = asyncio.create_task(app.WorkerApp._watch(cast("app.WorkerApp", attempt)))
        async with asyncio.timeout(20):
            with pytest.raises(TableLostError, match="another topic"):
                await attempt.outcome.failed
            await watching

    asyncio.run(scene())
