"""The log of answers: what the queue kept is written, and a disk that fails costs nothing else."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logs.declaration import KEPT_LOG_RETRY_S, EmbeddedParts
from logs.embedded import EmbeddedLog
from logs.kept_log import KeptLog
from reprise.embedded.service import EmbeddedService
from reprise.settings import Settings
from schemas.answer_records import encode_answer
from schemas.clock import REAL_CLOCK
from schemas.codec import decode_answers
from schemas.conditions import Conditions, Part
from schemas.errors import ConfigurationError, DiskError
from schemas.identities import Offset
from streams.audit.log import ANSWERS, AnswerLog
from streams.audit.queue import open_audit_queue
from streams.audit.source import AnswersSource
from streams.kernel.interface import AuditQueue

ANSWER = encode_answer(
    [(0, 7)],
    ("default", "m", "", 16, ""),
    None,
    hits_only=False,
    tokens=16,
    hashes=bytes(8),
    instances=(),
)


@pytest.fixture
def conditions() -> Conditions:
    return Conditions(lambda: 0.0)


@pytest.fixture
def queue() -> AuditQueue:
    return open_audit_queue(1.0)


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def audit(
    tmp_path: Path, queue: AuditQueue, conditions: Conditions, now: list[float]
) -> Iterator[AnswerLog]:
    clock = REAL_CLOCK._replace(monotonic=lambda: now[0])
    parts = EmbeddedParts(tmp_path, conditions, clock, 3600.0)
    made = AnswerLog(AnswersSource(queue, seed=1337), KeptLog(ANSWERS, parts), thread="audit")
    made.open()
    yield made
    made.stop()


def kept(path: Path) -> list[int]:
    log = ANSWERS.read_only(path.parent)
    found = [
        given.sequence for entry in log.read(Offset(0)) for given in decode_answers(entry.value)[1]
    ]
    log.close()
    return found


def test_what_the_queue_has_is_written_when_it_stops(tmp_path: Path, audit: AnswerLog) -> None:
    audit.start()
    for _ in range(3):
        audit.source.queue.push(ANSWER, 0.0, "exact")
    audit.stop()
    assert kept(tmp_path / "answers") == [0, 1, 2]
    answers = audit.source
    assert (answers.written, answers.dropped, answers.unsettled) == (3, 0, 0)


def test_it_goes_on_behind_what_an_earlier_run_wrote(
    tmp_path: Path, audit: AnswerLog, conditions: Conditions
) -> None:
    audit.source.queue.push(ANSWER, 0.0, "exact")
    audit.stop()
    parts = EmbeddedParts(tmp_path, conditions, REAL_CLOCK, 3600.0)
    source = AnswersSource(open_audit_queue(1.0), seed=1337)
    again = AnswerLog(source, KeptLog(ANSWERS, parts), thread="audit")
    again.open()
    again.source.queue.push(ANSWER, 0.0, "exact")
    again.stop()
    assert kept(tmp_path / "answers") == [0, 0]


def test_a_full_disk_drops_answers_counts_them_and_ends(
    tmp_path: Path,
    audit: AnswerLog,
    conditions: Conditions,
    now: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = audit.source

    def full(*_: object, **__: object) -> None:
        raise DiskError(action="append to the log", path="answers", detail="no space left")

    with monkeypatch.context() as broken:
        broken.setattr(EmbeddedLog, "append", full)
        audit.source.queue.push(ANSWER, 0.0, "exact")
        audit.write()
    assert (answers.written, answers.dropped) == (0, 1)
    assert conditions.has(Part.AUDIT)
    assert conditions.ready
    audit.source.queue.push(ANSWER, 0.0, "exact")
    audit.write()  # too soon to try again
    assert (answers.written, answers.dropped) == (0, 2)
    now[0] = KEPT_LOG_RETRY_S
    audit.source.queue.push(ANSWER, 0.0, "exact")
    audit.write()
    assert (answers.written, answers.dropped) == (1, 2)
    assert not conditions.has(Part.AUDIT)
    audit.stop()
    assert kept(tmp_path / "answers") == [2]


def test_a_damaged_one_is_set_aside(
    tmp_path: Path, audit: AnswerLog, conditions: Conditions, caplog: pytest.LogCaptureFixture
) -> None:
    audit.stop()
    for manifest in (tmp_path / "answers").glob("MANIFEST-*"):
        manifest.write_bytes(b"\xff" * manifest.stat().st_size)
    parts = EmbeddedParts(tmp_path, conditions, REAL_CLOCK, 3600.0)
    source = AnswersSource(open_audit_queue(1.0), seed=1337)
    again = AnswerLog(source, KeptLog(ANSWERS, parts), thread="audit")
    again.open()
    again.stop()
    assert "the answers begin anew" in caplog.text
    assert len(list(tmp_path.glob("answers.*"))) == 1


def service_of(make: Callable[[], EmbeddedService]) -> EmbeddedService:
    service = make()
    service.stop()
    return service


def test_a_service_keeps_answers_only_where_it_is_told_to(tmp_path: Path) -> None:
    quiet = service_of(lambda: EmbeddedService(Settings(data=tmp_path / "quiet")))
    assert (quiet.audit_queue, quiet.logs[ANSWERS]) == (None, None)
    assert not (tmp_path / "quiet" / "answers").exists()
    told = service_of(lambda: EmbeddedService(Settings(data=tmp_path / "told", audit_rate=0.5)))
    assert told.audit_queue is not None
    assert (tmp_path / "told" / "answers").exists()


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(ConfigurationError, match="share of answers"):
        Settings(audit_rate=rate)
