"""A service whose tables and outcomes are what a test says."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import pytest

from doctor.doctor import doctor_document
from doctor.document import DoctorDocument, Finding
from doctor.examination import NOTHING_UNSAID, examine
from query_api.unknown_scopes import UnknownScopes
from schemas.answer_states import AnswerState, Standing
from schemas.positions import PublisherState
from schemas.registration import Registration
from schemas.routing_records import CandidateRecord, DecidedScope, OutcomeEvent, PrefixMark
from tests.fakes import FakeTable, registration
from tests.unit.routing.http.conftest import Service
from tests.unit.routing.observed.records import RUN, a_decision, an_outcome
from tokens.engine_questions import UnansweredModel

NOW = 10_000.0
"""When all is asked, Unix seconds."""


class Clinic:
    """See the module."""

    def __init__(self, table: FakeTable) -> None:
        self.table = table
        self.service = Service(table)
        self.unknown = UnknownScopes(table, monotonic=lambda: next(self._looks), clock=lambda: NOW)
        self._looks = itertools.count(0.0, 10.0)  # what is known is never old
        self._number = 0
        self.minute = 0

    def register(self, instance_id: str = "a", **fields: object) -> Registration:
        one = registration(instance_id, **fields)  # type: ignore[arg-type]
        self.table.add(one)
        self.has(one, PublisherState(incarnation=1, sequence=3))
        return one

    def has(self, one: Registration, state: PublisherState) -> None:
        """What is folded of it."""
        self.table.states[one.publisher] = state

    def doubts(self, instance_id: str, reason: str, since: float = 1.0) -> None:
        self.table.standings[instance_id] = Standing(AnswerState.UNCONFIRMED, reason, since)

    def serves(
        self,
        times: int,
        *,
        promised: int,
        cached: int,
        predicted: int = 0,
        prompt: int = 1600,
        counted: int = 1600,
        marks: tuple[PrefixMark, ...] = (),
    ) -> None:
        """So many requests went to `a`, in the last minutes: `minute` says in which."""
        at = NOW - 120.0 + 60.0 * self.minute
        totals = self.service.folded.read(lambda fold: fold.observations)
        for _ in range(times):
            self._number += 1
            decision = a_decision(
                self._number,
                prompt=prompt,
                candidates=[
                    CandidateRecord("a", 0, cached=promised, prefix=promised, predicted=predicted)
                ],
                held=promised,
                marks=marks,
                time=at,
                scope=DecidedScope("default", "m", "", 4, ""),
            )
            totals.advance(at)
            totals.decided(RUN, decision)
            outcome = an_outcome(
                self._number,
                OutcomeEvent.COMPLETED,
                cached_tokens=cached,
                prompt_tokens=counted,
            )
            totals.reported(RUN, outcome)

    def document(
        self,
        admits: Callable[[str], bool] = lambda tenant_id: True,
        *,
        sees_all: bool = True,
        unsaid: Mapping[str, int] = NOTHING_UNSAID,
        unanswered: Sequence[UnansweredModel] = (),
    ) -> DoctorDocument:
        examined = examine(
            self.table, self.service.router, NOW, admits, self.unknown, unsaid, unanswered
        )
        return doctor_document(examined, sees_all=sees_all)

    def findings(self) -> list[Finding]:
        return self.document().findings

    def codes(self) -> list[str]:
        return [one.code for one in self.findings()]


@pytest.fixture
def clinic(table: FakeTable) -> Clinic:
    return Clinic(table)
