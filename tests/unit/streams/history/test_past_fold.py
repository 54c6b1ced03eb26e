"""The past, while retention drops what it is read from."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logs.embedded import EmbeddedLog
from logs.interface import LogEntry
from schemas.answer_states import Doubt
from schemas.errors import PastError
from schemas.identities import Offset
from schemas.positions import Position
from streams.history.past_fold import Past
from streams.history.past_tables import PastTables
from streams.history.store import HistoryStore
from streams.kernel import open_kernel
from streams.table.scope_states import ConfirmationSource
from tests.building import (
    events_record,
    heartbeat_record,
    registered_record,
    registration,
    report,
    stored,
)

RECORDS = [
    registered_record(registration("a")),
    *(events_record(n, n, [stored(n, [n + 1], [n] * 4)]) for n in range(6)),
]


class Retired(EmbeddedLog):
    """A log of which everything but the last records is dropped, at a moment of `read`."""

    moment = ""

    def drop(self, moment: str) -> None:
        if moment == self.moment:
            self.retain(bytes_max=0, age_max_s=0.0, now=1.0, floor=Offset(5), exempt=[0])

    def read(self, start: Offset) -> Iterator[LogEntry]:
        self.drop("before")
        for entry in super().read(start):
            self.drop("within")
            yield entry


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Retired]:
    opened = Retired(tmp_path / "log", segment_bytes=1)
    opened.append(RECORDS)
    yield opened
    opened.close()


@pytest.fixture
def past(tmp_path: Path, log: Retired) -> Iterator[Past]:
    history = HistoryStore(tmp_path / "history")
    yield Past(history, lambda: log, lambda: open_kernel(1337))
    history.close()


def fold(past: Past) -> object:
    return past.fold_as_of(Offset(6), lambda stream: True)


def explained(past: Past) -> object:
    _, entries = past.fold_through(Offset(6), lambda stream: True)
    return list(entries)


@pytest.mark.parametrize("ask", [fold, explained])
@pytest.mark.parametrize("moment", ["before", "while the records are looked for", "within"])
def test_what_retention_drops_meanwhile_is_refused_and_never_left_out(
    past: Past,
    log: Retired,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[Past], object],
    moment: str,
) -> None:
    ask(past)
    log.moment = moment
    if moment.startswith("while"):
        scan = log._db.scan

        def scanning(start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
            log.drop(moment)
            return scan(start, prefix)

        monkeypatch.setattr(log._db, "scan", scanning)
    with pytest.raises(PastError, match=r"the next of which is 0:7, got: 0:6") as raised:
        ask(past)
    assert raised.value.reason == "as_of_too_old"


@pytest.mark.parametrize(("kind", "due"), [("vLLM", ""), ("Dynamo", Doubt.GROUPS_UNKNOWN)])
def test_what_a_kind_does_without_an_event_is_doubted_of_the_past_too(
    past: Past, log: Retired, kind: str, due: str
) -> None:
    one = registration("b", port=7001, kind=kind)
    log.append([registered_record(one), heartbeat_record("bridge", 1.0, [report(one)])])
    tables = PastTables([past], lambda: open_kernel(1337))
    table = tables.as_of([Position(0, len(RECORDS) + 1)], lambda stream: True, name="all")
    fresh = {ConfirmationSource(0, "bridge"): 9.0}
    assert table.states.standing(one.publisher, fresh, 0.0).reason == due
