"""What is known of a past moment beside what the table held: who was there, and what outcomes said
by then.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from logs.embedded import EmbeddedLog
from query_api.past_answers import PastAnswers
from query_api.ports import AsOf, PastQuestion
from schemas.answer_states import AnswerState, Doubt, Standing
from schemas.identities import Offset
from schemas.limits import STALE_S
from schemas.positions import Position
from streams.history.past_fold import Past
from streams.history.past_tables import PastTables
from streams.history.store import HistoryStore
from streams.kernel import open_kernel
from streams.table.scope_states import Contradiction, Contradictions, scope_of
from tests.building import SCOPE, heartbeat_record, registered_record, registration, report

ONE = registration("a")
HEARD = 1001.0  # of the bridge of the publisher
OTHER = 1010.0  # of another one
RECORDS = [
    registered_record(ONE),
    heartbeat_record("bridge", HEARD - 1000.0, [report(ONE)]),
    heartbeat_record("other", OTHER - 1000.0, []),
]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    opened = EmbeddedLog(tmp_path / "log")
    opened.append(RECORDS)
    yield opened
    opened.close()


MakeAnswers = Callable[[bool], PastAnswers]


@pytest.fixture
def make_answers(tmp_path: Path, log: EmbeddedLog) -> Iterator[MakeAnswers]:
    history = HistoryStore(tmp_path / "history")
    past = Past(history, lambda: log, lambda: open_kernel(1337))

    def make(is_of_one_writer: bool) -> PastAnswers:
        return PastAnswers(
            PastTables([past], lambda: open_kernel(1337)),
            positions_at=lambda seconds: (Position(0, Offset(2 if seconds >= OTHER else 1)),),
            is_of_one_writer=is_of_one_writer,
        )

    yield make
    history.close()


def standing(answers: PastAnswers, as_of: AsOf) -> Standing:
    asked = PastQuestion("default", "m", 4)
    view = asyncio.run(answers.view_as_of(as_of, asked))
    standing = view.instance_standings(SCOPE)["a"]
    assert view.state(SCOPE) is standing.state
    return standing


@pytest.mark.parametrize("is_of_one_writer", [True, False])
def test_a_time_long_after_all_that_was_written_is_not_confirmed(
    make_answers: MakeAnswers, is_of_one_writer: bool
) -> None:
    answers = make_answers(is_of_one_writer)
    assert standing(answers, AsOf(seconds=HEARD + STALE_S - 0.1)).state is AnswerState.EXACT
    late = standing(answers, AsOf(seconds=HEARD + STALE_S))
    assert (late.state, late.reason) == (AnswerState.UNCONFIRMED, Doubt.NO_HEARTBEAT)
    position = AsOf(positions=(Position(0, Offset(1)),))
    assert standing(answers, position).state is AnswerState.EXACT


def test_another_bridge_says_nothing_of_a_publisher_where_each_writes_for_itself(
    make_answers: MakeAnswers,
) -> None:
    asked = AsOf(seconds=OTHER + 1.0)
    assert standing(make_answers(False), asked).reason == Doubt.NO_HEARTBEAT
    assert standing(make_answers(True), asked).state is AnswerState.EXACT


@pytest.mark.parametrize(
    ("since", "as_of", "is_known"),
    [
        (HEARD + 1.0, AsOf(seconds=HEARD + 0.9), False),
        (HEARD + 1.0, AsOf(seconds=HEARD + 1.0), True),
        (OTHER, AsOf(positions=(Position(0, Offset(1)),)), True),  # the log had no more
        (OTHER + 0.1, AsOf(positions=(Position(0, Offset(1)),)), False),
        (OTHER + 0.1, AsOf(positions=(Position(0, Offset(2)),)), True),
    ],
)
def test_what_outcomes_contradict_since_is_contradicted_of_the_past_from_then_on(
    make_answers: MakeAnswers, since: float, as_of: AsOf, is_known: bool
) -> None:
    answers = make_answers(True)
    found = {ONE.publisher: Contradiction(since)}
    scopes = frozenset([scope_of(ONE.stream)])
    answers.contradict(Contradictions(MappingProxyType(found), scopes))
    told = standing(answers, as_of)
    expected = (AnswerState.UNCONFIRMED, Doubt.OUTCOMES_DIFFER) if is_known else ("exact", "")
    assert (told.state, told.reason) == expected
