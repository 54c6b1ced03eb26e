"""Answers that other threads give while records are folded: what is kept of them is what the log
says at their positions, although a large record is folded in many turns.
"""

import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from logs.embedded import EmbeddedLog
from query_api.http.audit import AnswerAudit, SteppedAnswer
from query_api.http.requests.queries import Query, answer_query
from schemas.answer_records import encode_answers
from schemas.answer_states import AnswerState
from schemas.events import BlockEvent
from schemas.identities import Offset
from streams.audit.log import ANSWERS
from streams.audit.queue import open_audit_queue
from streams.audit.verification import AnswersVerification
from streams.kernel import Kernel
from streams.kernel.interface import BodyForm
from streams.table.fold import Fold
from tests.building import (
    cleared,
    events_record,
    registered_record,
    registration,
    removed,
    stored,
    u32s,
)
from tests.contract.kernels import BOTH, kernel_of

SEED = 1337
BLOCKS = 3000
RECORDS = 40


@pytest.fixture(params=BOTH)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernel_of(request, SEED)


@pytest.fixture(autouse=True)
def _threads_alternate_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def records_of(blocks: int) -> Iterator[bytes]:
    """A long chain that is stored, shortened from its end, and cleared, again and again."""
    yield registered_record(registration("a"))
    hashes = list(range(1, blocks + 1))
    tokens = list(range(4 * blocks))
    for sequence in range(RECORDS):
        event: list[BlockEvent]
        match sequence % 4:
            case 0:
                event = [stored(sequence, hashes, tokens)]
            case 1:
                event = [removed(sequence, hashes[blocks // 2 :])]
            case 2:
                event = [removed(sequence, hashes[blocks // 4 :])]
            case _:
                event = [cleared(sequence)]
        yield events_record(sequence, sequence, event)


def test_what_is_kept_while_records_are_folded_is_what_the_log_says(
    kernel: Kernel, tmp_path: Path
) -> None:
    blocks = BLOCKS if kernel.name == "rust" else BLOCKS // 20
    queue = open_audit_queue(1.0)
    kernel.audit_into(queue)
    fold = Fold(kernel, when_folded=partial(kernel.note_position, 0))
    log = EmbeddedLog(tmp_path / "log")
    tokens = list(range(4 * blocks))
    body = msgspec.json.encode({"model": "m", "block_size": 4, "token_ids": tokens})
    query = Query("m", 4, u32s(tokens))
    audit = AnswerAudit(queue)
    done = threading.Event()
    asked = [0, 0]
    failures: list[BaseException] = []

    def ask_at_once() -> None:
        plain = kernel.answer(body, BodyForm.JSON, False, b"")
        if plain is not None and plain.audited is not None:
            queue.push(plain.audited, 0.0, "exact")
        asked[0] += plain is not None

    def ask_in_steps() -> None:
        begun = audit.begin(kernel)
        assert begun is not None
        scope, matches = answer_query(kernel, query)
        encoded = audit.end(begun, kernel, SteppedAnswer(False, query, scope, matches))
        if encoded is not None:
            audit.push(encoded, AnswerState.EXACT)
        asked[1] += 1

    def ask() -> None:
        try:
            while not done.is_set():
                ask_at_once()
                ask_in_steps()
        except BaseException as error:  # noqa: BLE001 -- told by the test's own thread
            failures.append(error)

    reader = threading.Thread(target=ask)
    reader.start()
    try:
        for record in records_of(blocks):
            fold.apply(log.append([record]), record)
            wanted = asked[1] + 2  # one of them begins after the record, whatever the machine
            while asked[1] < wanted and reader.is_alive():
                time.sleep(0)
    finally:
        done.set()
        reader.join()
    assert not failures
    answers = ANSWERS.opened(tmp_path)
    chunks = queue.take()
    answers.append([encode_answers(1, SEED, *chunk) for chunk in chunks])
    kept, dropped, unsettled = queue.counts()
    assert kept + dropped + unsettled == sum(asked)
    found = AnswersVerification(answers, log, None).run()
    assert found.shown == []
    assert (found.answers, found.agreed) == (kept, kept)
    assert found.missing <= dropped + unsettled
    assert kept >= RECORDS
    answers.close()
    log.close()
    assert fold.offset == Offset(RECORDS)
