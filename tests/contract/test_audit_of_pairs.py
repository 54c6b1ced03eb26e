"""The proof of answers about blocks of pairs, which each need the token behind them."""

from functools import partial
from pathlib import Path

import msgspec
import pytest

from logs.embedded import EmbeddedLog
from query_api.http.audit import AnswerAudit, SteppedAnswer
from query_api.http.requests.queries import Query, answer_query
from schemas.answer_records import encode_answers
from schemas.answer_states import AnswerState
from schemas.events import paired_key
from streams.audit.log import ANSWERS
from streams.audit.queue import open_audit_queue
from streams.audit.verification import AnswersVerification, VerificationResult
from streams.kernel import Kernel
from streams.kernel.interface import AuditQueue, BodyForm
from streams.table.fold import Fold
from tests.building import STREAM, events_record, registered_record, registration, stored, u32s
from tests.contract.kernels import BOTH, kernel_of

SEED = 1337
TOKENS = list(range(20))
PAIRED = msgspec.structs.replace(
    stored(0, [1, 2, 3], TOKENS[:12]),
    extra_keys=tuple(paired_key(b"", u32s([TOKENS[behind]])) for behind in (4, 8, 12)),
)
LENGTHS = (3, 4, 5, 8, 9, 12, 13, 16, 20)


@pytest.fixture(params=BOTH)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernel_of(request, SEED)


@pytest.fixture
def queue(kernel: Kernel) -> AuditQueue:
    made = open_audit_queue(1.0)
    kernel.audit_into(made)
    return made


@pytest.fixture
def fold(kernel: Kernel, log: EmbeddedLog, queue: AuditQueue) -> Fold:
    fold = Fold(kernel, when_folded=partial(kernel.note_position, 0))
    folded(log, fold, registered_record(registration("a")), events_record(0, 0, [PAIRED]))
    return fold


def folded(log: EmbeddedLog, fold: Fold, *records: bytes) -> None:
    for record in records:
        fold.apply(log.append([record]), record)


def ask(kernel: Kernel, queue: AuditQueue, tokens: list[int]) -> list[int]:
    """In one call, where the kernel has one, and in steps; what each instance holds."""
    body = msgspec.json.encode({"model": "m", "block_size": 4, "token_ids": tokens})
    plain = kernel.answer(body, BodyForm.JSON, False, b"")
    if plain is not None and plain.audited is not None:
        queue.push(plain.audited, 0.0, "exact")
    audit, query = AnswerAudit(queue), Query("m", 4, u32s(tokens))
    begun = audit.begin(kernel)
    assert begun is not None
    scope, matches = answer_query(kernel, query)
    encoded = audit.end(begun, kernel, SteppedAnswer(False, query, scope, matches))
    if encoded is not None:
        audit.push(encoded, AnswerState.EXACT)
    return [one.longest for one in matches]


def verified(queue: AuditQueue, log: EmbeddedLog, directory: Path) -> VerificationResult:
    answers = ANSWERS.opened(directory)
    answers.append([encode_answers(1, SEED, *chunk) for chunk in queue.take()])
    found = AnswersVerification(answers, log, None).run()
    answers.close()
    return found


def test_right_answers_agree(
    kernel: Kernel, queue: AuditQueue, log: EmbeddedLog, fold: Fold, tmp_path: Path
) -> None:
    held = [ask(kernel, queue, TOKENS[:length]) for length in LENGTHS]
    assert held == [[0], [0], [4], [4], [8], [8], [12], [12], [12]]
    found = verified(queue, log, tmp_path)
    assert found.shown == []
    assert found.agreed == found.answers >= len(LENGTHS)


def test_what_no_list_of_hashes_gives_is_not_kept(
    kernel: Kernel, queue: AuditQueue, log: EmbeddedLog, fold: Fold, tmp_path: Path
) -> None:
    plain = stored(0, [1], TOKENS[:4])
    of_b = STREAM._replace(instance_id="b")
    folded(
        log, fold, registered_record(registration("b")), events_record(0, 0, [plain], stream=of_b)
    )
    assert ask(kernel, queue, TOKENS[:13]) == [12, 4]
    kept, _, unsettled = queue.counts()
    assert kept == 0
    assert unsettled > 0
    assert ask(kernel, queue, TOKENS[:4]) == [0, 4]
    found = verified(queue, log, tmp_path)
    assert (found.shown, found.agreed) == ([], queue.counts()[0])
    assert found.agreed > 0
