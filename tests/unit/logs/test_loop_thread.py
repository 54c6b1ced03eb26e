"""A thread runs its work and what is handed in, and closes both at its end."""

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from logs.loop_thread import LoopThread
from schemas.errors import StorageError

TOLD: list[str] = []


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    TOLD.clear()
    made = LoopThread("t", unended="It did not stop", when_ended=lambda: TOLD.append("ended"))
    yield made
    made.stop()


async def answer() -> str:
    return threading.current_thread().name


def test_what_is_handed_in_runs_beside_its_work_and_after_it(thread: LoopThread) -> None:
    async def work() -> None:
        TOLD.append("worked")

    thread.start(work())
    assert thread.run(answer()).result(10) == "t"
    assert asyncio.run(thread.call(answer(), 10.0, "no answer")) == "t"
    assert (thread.is_running, TOLD) == (True, ["worked"])


def test_its_end_cancels_what_runs_and_closes_what_it_was_given(thread: LoopThread) -> None:
    async def close() -> None:
        TOLD.append("closed")

    thread.close_with(close)
    thread.start(forever())
    waiting = thread.run(forever())
    assert thread.stop()
    assert waiting.cancelled()
    assert (thread.is_running, TOLD) == (False, ["closed"]), "and it was asked to"


def test_one_that_ends_unasked_says_so(thread: LoopThread) -> None:
    async def end() -> None:
        raise asyncio.CancelledError

    thread.start(end())
    thread._thread.join(10)
    assert TOLD == ["ended"]


def test_no_answer_in_time_is_an_error_with_the_callers_words(thread: LoopThread) -> None:
    thread.start(forever())
    with pytest.raises(StorageError, match="no answer"):
        asyncio.run(thread.call(forever(), 0.01, "no answer"))


def test_one_that_does_not_run_answers_nothing(thread: LoopThread) -> None:
    with pytest.raises(StorageError, match="not there"):
        asyncio.run(thread.call(answer(), 1.0, "not there"))
    thread.start(forever())
    thread.stop()
    with pytest.raises(StorageError, match="not there"):
        asyncio.run(thread.call(answer(), 1.0, "not there"))
    assert thread.stop(), "twice does nothing"


def test_one_that_does_not_stop_in_time_is_left(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("logs.loop_thread.SHUTDOWN_S", 0.05)
    held = threading.Event()

    async def hold() -> None:
        held.wait(10)

    thread.start(hold())
    with caplog.at_level(logging.ERROR):
        assert not thread.stop()
    assert "It did not stop within 0 s" in caplog.text
    held.set()
