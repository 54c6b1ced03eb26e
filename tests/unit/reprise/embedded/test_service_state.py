"""Which conditions of the embedded service make its answers stale, and which make it unready."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reprise.embedded.service import EmbeddedService
from reprise.settings import Settings
from schemas.answer_states import AnswerState
from schemas.conditions import Part
from tests.building import SCOPE


@pytest.fixture
def service(tmp_path: Path) -> Iterator[EmbeddedService]:
    """Not started: the test sets its conditions."""
    service = EmbeddedService(Settings(data=tmp_path, kernel="reference"))
    service.conditions.clear(Part.RECOVERY)
    yield service
    service.stop()


def test_a_service_that_recovers_is_not_ready(tmp_path: Path, service: EmbeddedService) -> None:
    other = EmbeddedService(Settings(data=tmp_path / "other", kernel="reference"))
    assert (other.view.ready, other.view.health().ready) == (False, False)
    assert other.view.health().conditions[0].reason == "recovering"
    assert (service.view.ready, service.view.health().conditions) == (True, ())
    other.stop()


@pytest.mark.parametrize(
    ("part", "state"),
    [
        (Part.LOG, AnswerState.STALE),
        (Part.INTERNAL, AnswerState.STALE),
        (Part.LOG_SYNC, AnswerState.EXACT),
        (Part.TABLE, AnswerState.EXACT),
        (Part.RETENTION, AnswerState.EXACT),
    ],
)
def test_answers_are_stale_only_where_the_table_is_behind_the_log(
    service: EmbeddedService, part: Part, state: AnswerState
) -> None:
    assert service.view.state(SCOPE) is AnswerState.EXACT
    service.conditions.set(part, "disk", "no space left")
    assert service.view.state(SCOPE) is state
    assert service.view.ready
    service.conditions.clear(part)
    assert service.view.state(SCOPE) is AnswerState.EXACT


def test_no_history_is_kept_where_it_may_take_no_room(
    tmp_path: Path, service: EmbeddedService
) -> None:
    other = EmbeddedService(Settings(data=tmp_path / "other", history_bytes=0))
    assert service.data.history is not None
    assert (tmp_path / "history").exists()
    assert other.data.history is None
    assert not (tmp_path / "other" / "history").exists()
    other.stop()
