"""Whatever a service lived through: what its history says of any past position is what a fold of
the log up to there gives.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import PastError
from schemas.identities import Offset, StreamKey
from streams.history.past import Past
from streams.history.recorder import HistoryRecorder
from streams.history.store import HistoryStore
from streams.log.embedded import EmbeddedLog
from streams.table.driver import recover
from streams.table.fold import Fold
from streams.table.table import Table
from tests.kills import Kill, kills
from tests.property.test_recovery_equals_never_crashing import (
    HARSH,
    MEMORY,
    Item,
    Service,
    histories,
    records_of,
    state,
    straight,
)

pytestmark = pytest.mark.timeout(600)

KEPT = [*HARSH, "retire", "retire", "retire"]


def copied(known: object) -> object:
    """It goes on changing."""
    return copy.copy(known) if not isinstance(known, tuple) else tuple(map(copied, known))


def everything(stream: StreamKey) -> bool:
    return True


class RecordedService(Service):
    """With a history; of `marked` flushes one is marked."""

    def __init__(
        self, directory: Path, make_fold: Callable[[], Fold], kill: Kill, *, marked: int
    ) -> None:
        self.marked = marked
        super().__init__(directory, make_fold, kill)

    def open(self) -> None:
        self.ticks = 0

        def clock() -> float:
            self.ticks += 1
            return self.ticks / (4 * self.marked)

        self.log = EmbeddedLog(self.directory / "log", segment_bytes=1)
        self.history = HistoryStore(self.directory / "history")
        self.table = Table(
            self.directory / "table",
            self.make_fold,
            log=self.log,
            generation_min_bytes=0,
            history=HistoryRecorder(self.history, seed=self.make_fold().kernel.seed, clock=clock),
        )
        recover(self.table, self.log, flush_changes_max=0)

    def close(self) -> None:
        super().close()
        self.history.close()

    def past(self) -> Past:
        return Past(self.history, lambda: self.log, lambda: self.make_fold().kernel)


@contextmanager
def recorded(
    history: list[Item],
    make_fold: Callable[[], Fold],
    marked: int,
    live: dict[int, object] | None = None,
) -> Iterator[RecordedService]:
    place = MEMORY if MEMORY.is_dir() else None
    with TemporaryDirectory(dir=place) as directory, kills() as kill:
        service = RecordedService(Path(directory), make_fold, kill, marked=marked)
        for item in history:
            service.live_through(item)
            if live is not None:
                live[service.table.fold.offset] = copied(state(service.table.fold))
        yield service
        service.close()


@settings(max_examples=60)
@given(histories(HARSH), st.integers(1, 6))
def test_every_position_of_a_whole_log(
    make_fold: Callable[[], Fold], history: list[Item], marked: int
) -> None:
    records = records_of(history)
    with recorded(history, make_fold, marked) as service:
        past = service.past()
        for offset in range(-1, len(records)):
            fold = past.fold_as_of(Offset(offset), everything, name="all")
            assert state(fold) == state(straight(records[: offset + 1], make_fold)), offset


@settings(max_examples=60)
@given(histories(KEPT), st.integers(1, 6))
def test_every_position_is_as_it_was_live_or_too_old(
    make_fold: Callable[[], Fold], history: list[Item], marked: int
) -> None:
    live: dict[int, object] = {}
    with recorded(history, make_fold, marked, live) as service:
        past = service.past()
        oldest = past.oldest()
        assert oldest <= service.log.end_offset
        for offset, known in live.items():
            if offset < oldest:
                with pytest.raises(PastError, match=f"from 0:{oldest} on"):
                    past.fold_as_of(Offset(offset), everything, name="all")
                continue
            assert state(past.fold_as_of(Offset(offset), everything, name="all")) == known, offset


@settings(max_examples=60)
@given(histories(HARSH), st.integers(1, 6), st.data())
def test_what_is_left_after_retention(
    make_fold: Callable[[], Fold], history: list[Item], marked: int, data: st.DataObject
) -> None:
    records = records_of(history)
    with recorded(history, make_fold, marked) as service:
        floor = data.draw(st.integers(0, len(records) - 1))
        service.history.drop_before(floor)
        past = service.past()
        for offset in range(floor, len(records)):
            fold = past.fold_as_of(Offset(offset), everything, name="all")
            assert state(fold) == state(straight(records[: offset + 1], make_fold)), offset
