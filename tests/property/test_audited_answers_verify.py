"""Whatever a service lived through, and whenever it was asked: each answer that was kept is what
its log gives again; and one number that is changed is found.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.embedded import EmbeddedLog
from query_api.http.audit import AnswerAudit, SteppedAnswer
from query_api.http.requests.block_keys import NO_KEYS, BlockKeys
from query_api.http.requests.queries import Query, answer_hash_query, answer_query
from schemas.answer_records import encode_answers
from schemas.answer_states import AnswerState
from schemas.codec import decode_answers
from schemas.identities import Offset
from schemas.media import MediaItem
from streams.audit.log import ANSWERS
from streams.audit.queue import open_audit_queue
from streams.audit.verification import AnswersVerification, VerificationResult
from streams.kernel.interface import AuditQueue, BodyForm, Kernel
from streams.table.fold import Fold
from tests.building import prefix_hashes, u32s, u64s
from tests.kills import kills
from tests.property.test_as_of_equals_fresh_fold import KEPT, RecordedService
from tests.property.test_recovery_equals_never_crashing import (
    HARSH,
    MEMORY,
    POOLED,
    Item,
    histories,
    tokens_of,
)

pytestmark = pytest.mark.timeout(600)

SEED = 1337
IMAGE = BlockKeys(media=[MediaItem("a3f1", 5, 2)])


@st.composite
def queries(draw: st.DrawFn) -> Query:
    blocks = draw(st.lists(st.integers(1, 6), max_size=4))
    tokens = [token for block in blocks for token in tokens_of(block)]
    return Query(
        draw(st.sampled_from(["m", "m", "m", "unknown"])),
        4,
        u32s([*tokens, 1]),
        lora_name=draw(st.sampled_from(["", "", "adapter"])),
        cache_salt=draw(st.sampled_from(["", "", "salt"])),
        instance_id=draw(st.sampled_from([None, None, "a", "nobody"])),
        keys=draw(st.sampled_from([NO_KEYS, NO_KEYS, IMAGE])),
    )


class Asker:
    """Asks a kernel in every way, and keeps all answers."""

    def __init__(self, queue: AuditQueue, asked: list[Query]) -> None:
        self.queue = queue
        self.given = 0
        self._asked = asked
        self._turn = 0

    def ask(self, kernel: Kernel) -> None:
        query = self._asked[self._turn % len(self._asked)]
        self._turn += 1
        fields = {"model": query.model, "block_size": 4, "tenant_id": "default"}
        fields |= {"lora_name": query.lora_name, "cache_salt": query.cache_salt}
        if query.instance_id is not None:
            fields["instance_id"] = query.instance_id
        tokens = [
            int.from_bytes(query.content[i : i + 4], "little")
            for i in range(0, len(query.content), 4)
        ]
        body = msgspec.json.encode(fields | {"token_ids": tokens})
        for options in (b"", b"hits_only=1"):
            plain = kernel.answer(body, BodyForm.JSON, False, options)
            if plain is not None:
                self.given += 1
                if plain.audited is not None:
                    self.queue.push(plain.audited, 0.0, "exact")
        self._step_by_step(kernel, query, by_hash=False)
        self._step_by_step(
            kernel, query._replace(content=u64s(prefix_hashes(tokens))), by_hash=True
        )

    def _step_by_step(self, kernel: Kernel, query: Query, *, by_hash: bool) -> None:
        audit = AnswerAudit(self.queue)
        begun = audit.begin(kernel)
        assert begun is not None
        scope, matches = (answer_hash_query if by_hash else answer_query)(kernel, query)
        self.given += 1
        encoded = audit.end(begun, kernel, SteppedAnswer(by_hash, query, scope, matches))
        if encoded is not None:
            audit.push(encoded, AnswerState.EXACT)


class Probed:
    """A kernel that is asked after each write, before the record's end."""

    def __init__(self, kernel: Kernel, asker: Asker) -> None:
        self._kernel = kernel
        self._asker = asker

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._kernel, name)
        if name not in {"apply", "clear", "register", "unregister", "load"}:
            return found

        def write(*arguments: object) -> object:
            done = found(*arguments)
            self._asker.ask(self._kernel)
            return done

        return write


@contextmanager
def audited(
    history: list[Item], make_fold: Callable[[], Fold], asked: list[Query]
) -> Iterator[tuple[RecordedService, Asker, EmbeddedLog]]:
    place = MEMORY if MEMORY.is_dir() else None
    asker = Asker(open_audit_queue(1.0), asked)

    def make_audited() -> Fold:
        kernel = make_fold().kernel
        kernel.audit_into(asker.queue)
        probed: Any = Probed(kernel, asker)
        return Fold(probed, when_folded=partial(kernel.note_position, 0))

    with TemporaryDirectory(dir=place) as directory, kills() as kill:
        service = RecordedService(Path(directory), make_audited, kill, marked=2)
        for item in history:
            service.live_through(item)
            asker.ask(service.table.fold.kernel)
        service.make_fold = make_fold
        answers = ANSWERS.opened(Path(directory))
        chunks = asker.queue.take()
        answers.append([encode_answers(1, SEED, *chunk) for chunk in chunks])
        yield service, asker, answers
        answers.close()
        service.close()


def verified(service: RecordedService, answers: EmbeddedLog) -> VerificationResult:
    return AnswersVerification(answers, service.log, service.history).run()


ASKED = st.lists(queries(), min_size=1, max_size=5)


@settings(max_examples=60)
@given(histories(HARSH) | histories(POOLED), ASKED)
def test_every_answer_that_was_kept_is_what_the_whole_log_gives(
    make_fold: Callable[[], Fold], history: list[Item], asked: list[Query]
) -> None:
    with audited(history, make_fold, asked) as (service, asker, answers):
        kept, dropped, unsettled = asker.queue.counts()
        assert (kept + unsettled, dropped) == (asker.given, 0)
        found = verified(service, answers)
        assert found.shown == []
        assert (found.answers, found.agreed, found.disagreed) == (kept, kept, 0)
        assert kept > 0, "the last answer was given at a position"


@settings(max_examples=60)
@given(histories(KEPT), ASKED)
def test_what_retention_left_agrees_or_is_beyond(
    make_fold: Callable[[], Fold], history: list[Item], asked: list[Query]
) -> None:
    with audited(history, make_fold, asked) as (service, asker, answers):
        found = verified(service, answers)
        assert found.shown == []
        assert found.agreed + found.beyond == found.answers == asker.queue.counts()[0]
        assert bool(found.beyond) == bool(found.beyond_reason)


@settings(max_examples=60)
@given(histories(HARSH), ASKED, st.data())
def test_a_number_that_was_changed_is_found_and_named(
    make_fold: Callable[[], Fold], history: list[Item], asked: list[Query], data: st.DataObject
) -> None:
    with audited(history, make_fold, asked) as (service, _, answers):
        kept = [
            (given.sequence, number, place)
            for entry in answers.read(Offset(0))
            for given in decode_answers(entry.value)[1]
            for number in range(len(given.instances))
            for place in range(1, 5)
        ]
        if not kept:
            return
        sequence, number, place = data.draw(st.sampled_from(kept))
        change = data.draw(st.integers(1, 100))
        changed = EmbeddedLog(answers.path.with_name("changed"), preset=ANSWERS.preset)
        for entry in answers.read(Offset(0)):
            record = msgspec.msgpack.decode(entry.value)
            for fields in record["answers"]:
                if fields[-1] == sequence:
                    fields[6][number][place] += change
                    instance_id = fields[6][number][0]
            changed.append([msgspec.msgpack.encode(record)])
        found = verified(service, changed)
        changed.close()
        assert found.disagreed == 1
        assert not found.is_proven
        (shown,) = found.shown
        assert (shown.answer.sequence, shown.instance_id) == (sequence, instance_id)
        assert shown.said is not None
        assert shown.found is not None
        said, found_now = list(shown.said), list(shown.found)
        found_now[place] = int(str(found_now[place])) + change
        assert said == found_now
