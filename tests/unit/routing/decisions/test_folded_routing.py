"""Short questions are answered while all of the state is read, and nothing changes meanwhile."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from routing.decisions.live_load import LiveLoad
from routing.fold.fold import RoutingFold
from schemas.routing_records import DecisionsRecord
from tests.routing import routing_log
from tests.unit.routing.sample_decisions import decision

WAIT_S = 10.0


def record(number: int, **fields: Any) -> DecisionsRecord:
    """One decision."""
    return DecisionsRecord(run=1, time=100.0, decisions=(decision(number, **fields),))


def test_what_is_applied_waits_for_a_long_question_and_short_ones_do_not() -> None:
    live = LiveLoad()
    folded = live.folded
    live.follow(0, record(0), 100.0)
    begun, may_end, applied = threading.Event(), threading.Event(), threading.Event()
    seen: list[tuple[int, int]] = []

    def question(fold: RoutingFold) -> None:
        before = len(fold.bookings)
        begun.set()
        may_end.wait(WAIT_S)
        seen.append((before, len(fold.bookings)))

    def apply() -> None:
        live.follow(1, record(1), 100.0)
        applied.set()

    reading = threading.Thread(target=lambda: folded.read_all(question))
    reading.start()
    assert begun.wait(WAIT_S)
    applying = threading.Thread(target=apply)
    applying.start()
    assert folded.read(lambda fold: len(fold.bookings)) == 1  # would wait for ever
    assert not folded.begin()
    assert not applied.is_set()
    may_end.set()
    reading.join(WAIT_S)
    applying.join(WAIT_S)
    assert (seen, folded.offset) == ([(1, 1)], 1)
    assert folded.begin()
    folded.end()


def test_a_checkpoint_is_written_while_decisions_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = routing_log(tmp_path)
    log.queue.push_decision(1, decision(0))
    log.writer.write()
    asked = []
    pieces = RoutingFold.pieces

    def asking(fold: RoutingFold) -> Iterator[bytes]:
        for piece in pieces(fold):
            thread = threading.Thread(
                target=lambda: asked.append(log.folded.read(lambda one: len(one.bookings)))
            )
            thread.start()
            thread.join(WAIT_S)
            yield piece

    monkeypatch.setattr(RoutingFold, "pieces", asking)
    log._checkpoints.keep(is_last=False)
    monkeypatch.undo()
    assert asked
    assert set(asked) == {1}
    log.stop()
    again = routing_log(tmp_path)
    assert again.folded.read(lambda fold: (fold.offset, len(fold.bookings))) == (0, 1)
    again.stop()
