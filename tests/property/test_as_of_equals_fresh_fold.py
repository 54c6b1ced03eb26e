"""Whatever a service lived through: what its history says of any past position is what a fold of
the log up to there gives.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.embedded import EmbeddedLog
from schemas.errors import PastError
from schemas.events import BlockEvent
from schemas.identities import (
    COPIES_UNKNOWN,
    GROUPS_DIFFER,
    MEDIA,
    Medium,
    ModelContext,
    Offset,
    StreamKey,
)
from streams.history.explain import EXPLAINED_CHANGES_MAX, Question, explain
from streams.history.past_fold import Blocks, Past
from streams.history.recorder import HistoryRecorder
from streams.history.store import HistoryStore
from streams.kernel.changes import SHARED, answered_tier, decode_changes
from streams.table.driver import recover
from streams.table.fold import Fold
from streams.table.table import Table
from tests.building import (
    SCOPE,
    events_record,
    gap_record,
    prefix_hashes,
    registered_record,
    registration,
    removed,
    stored,
    u64s,
)
from tests.kills import Kill, kills
from tests.property.test_recovery_equals_never_crashing import (
    HARSH,
    MEMORY,
    ODD,
    POOLED,
    Item,
    Service,
    Step,
    histories,
    records_of,
    state,
    straight,
    tokens_of,
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
    live: dict[int, list[object]] | None = None,
) -> Iterator[RecordedService]:
    place = MEMORY if MEMORY.is_dir() else None
    with TemporaryDirectory(dir=place) as directory, kills() as kill:
        service = RecordedService(Path(directory), make_fold, kill, marked=marked)
        for item in history:
            service.live_through(item)
            if live is not None:
                known = copied(state(service.table.fold))
                live.setdefault(service.table.fold.offset, []).append(known)
        yield service
        service.close()


@settings(max_examples=60)
@given(histories(HARSH) | histories(POOLED) | histories(ODD), st.integers(1, 6))
def test_every_position_of_a_whole_log(
    make_fold: Callable[[], Fold], history: list[Item], marked: int
) -> None:
    records = records_of(history)
    with recorded(history, make_fold, marked) as service:
        past = service.past()
        for offset in range(-1, len(records)):
            fold = past.fold_as_of(Offset(offset), everything)
            assert state(fold) == state(straight(records[: offset + 1], make_fold)), offset


@settings(max_examples=60)
@given(histories(KEPT), st.integers(1, 6))
def test_every_position_is_as_it_was_live_or_too_old(
    make_fold: Callable[[], Fold], history: list[Item], marked: int
) -> None:
    live: dict[int, list[object]] = {}
    with recorded(history, make_fold, marked, live) as service:
        past, refused = service.past(), []
        for offset, known in live.items():
            try:
                fold = past.fold_as_of(Offset(offset), everything)
            except PastError as error:
                refused.append((offset, str(error)))
                continue
            # A table that was lost is built again, at one position, from what the log still has.
            assert state(fold) in known, offset
        for offset, text in refused:
            assert f"the next of which is 0:{past.oldest(offset)}, got: 0:{offset}" in text
            assert offset < past.oldest(offset) <= service.log.end_offset
            if (following := past.oldest(offset)) < service.log.end_offset:
                past.fold_as_of(Offset(following), everything)


def test_a_table_built_anew_is_what_positions_behind_it_are_of(
    make_fold: Callable[[], Fold],
) -> None:
    """Its first flush is of the registration, which a log keeps when it forgets what follows."""
    one = registration("a")
    events = [events_record(number, number, [], stream=one.stream) for number in range(7)]
    gap = gap_record(7, 8, stream=one.stream)
    before: list[Item] = [registered_record(one), *events, gap, Step.FLUSH, Step.RETIRE, Step.LOSE]
    after = events_record(9, 9, [], stream=one.stream)
    live: dict[int, list[object]] = {}
    with recorded([*before, after], make_fold, 1, live) as service:
        assert service.log.complete_from > 1, "it has forgotten what came between"
        position = len(before) - 3
        fold = service.past().fold_as_of(Offset(position), everything)
        assert state(fold) in live[position]


@pytest.mark.parametrize("marked", range(1, 7))
def test_a_table_that_was_lost_says_nothing_of_positions_behind_the_one_built_anew(
    make_fold: Callable[[], Fold], marked: int
) -> None:
    """The log is retained behind the last flush that is marked of the one built anew."""
    one = registration("a")
    events = events_record(0, 2, [stored(2, [1], tokens_of(1))])
    before: list[Item] = [registered_record(one), events, gap_record(3, 4), Step.FLUSH, Step.RETIRE]
    lost: list[Item] = [registered_record(one), Step.FLUSH, Step.LOSE]
    after: list[Item] = [gap_record(5, 6), Step.RETIRE, events_record(7, 7, []), Step.RETIRE]
    live: dict[int, list[object]] = {}
    with recorded([*before, *lost, *after], make_fold, marked, live) as service:
        past, position = service.past(), Offset(int(service.log.end_offset) - 1)
        try:
            fold = past.fold_as_of(position, everything)
        except PastError:
            assert past.oldest(int(position)) == service.log.end_offset
        else:
            assert state(fold) in live[position]


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
            fold = past.fold_as_of(Offset(offset), everything)
            assert state(fold) == state(straight(records[: offset + 1], make_fold)), offset


PROMPTS = [
    prefix_hashes([token for block in chain for token in tokens_of(block)])
    for chain in ((1, 2, 3), (2, 3), (4,), (5, 6), (6,))
]
SCOPES = [SCOPE, SCOPE._replace(lora_name="adapter")]


@settings(max_examples=60)
@given(histories(HARSH) | histories(POOLED) | histories(ODD), st.integers(1, 6))
def test_answers_about_a_prompt(
    make_fold: Callable[[], Fold], history: list[Item], marked: int
) -> None:
    records = records_of(history)
    with recorded(history, make_fold, marked) as service:
        past = service.past()
        for offset in range(-1, len(records)):
            truth = straight(records[: offset + 1], make_fold)
            for prompt, scope in product(PROMPTS, SCOPES):
                hashes = b"".join(prefix.to_bytes(8, "little") for prefix in prompt)
                fold = past.fold_as_of(
                    Offset(offset), everything, blocks=Blocks(hashes, scope.lora_name)
                )
                expected = truth.kernel.query_by_hash(scope, hashes, None)
                assert fold.kernel.query_by_hash(scope, hashes, None) == expected, offset
                # The state of an answer depends on far more than the blocks of the prompt.
                assert fold.publishers == truth.publishers, offset


PLAIN = stored(0, [1], tokens_of(1))
AGAIN = msgspec.structs.replace(PLAIN, sequence=1, undecided=True)
SECOND = msgspec.structs.replace(PLAIN, sequence=1, group=1, spec_kind="full_attention")
DOUBTS: dict[str, list[BlockEvent]] = {
    COPIES_UNKNOWN: [PLAIN, AGAIN, removed(2, [1])],
    GROUPS_DIFFER: [PLAIN, SECOND, msgspec.structs.replace(removed(2, [1]), group=1)],
    "unknown_parent": [PLAIN, stored(1, [2], tokens_of(2), parent=7)],
    "unresolved": [PLAIN, stored(1, [8], [], medium=Medium.CPU)],
    "block_size:2": [msgspec.structs.replace(PLAIN, block_size=2)],
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_doubt_outlives_records_of_other_blocks(
    make_fold: Callable[[], Fold], doubt: str
) -> None:
    """Each flush is of all before it, and the records behind it name none of the blocks."""
    events = DOUBTS[doubt]
    begun = [registered_record(registration("a")), events_record(0, len(events) - 1, events)]
    rest = [events_record(n, n, [stored(n, [100 + n], tokens_of(n))]) for n in range(5, 9)]
    with recorded([*begun, Step.FLUSH, *rest], make_fold, 1) as service:
        hashes = u64s(prefix_hashes(tokens_of(1)))
        for offset in range(1, len(begun) + len(rest)):
            fold = service.past().fold_as_of(Offset(offset), everything, blocks=Blocks(hashes, ""))
            truth = straight([*begun, *rest][: offset + 1], make_fold)
            assert fold.publishers == truth.publishers
            assert doubt in fold.publishers[registration("a").publisher].left_out
            told = fold.kernel.query_by_hash(SCOPE, hashes, None)
            assert told == truth.kernel.query_by_hash(SCOPE, hashes, None)


def held_at(fold: Fold, context: ModelContext, prefix: int) -> set[tuple[int, str]]:
    """The ranks and tiers that hold a block."""
    return {
        (change.dp_rank, MEDIA[answered_tier(change.tier) % SHARED].value)
        for body in fold.kernel.dump(context, 4096)
        for change in decode_changes(body)
        if change.prefix == prefix
    }


@settings(max_examples=60)
@given(histories(HARSH) | histories(POOLED), st.integers(1, 6), st.integers(1, 6), st.data())
def test_what_became_of_a_block(
    make_fold: Callable[[], Fold],
    history: list[Item],
    marked: int,
    block: int,
    data: st.DataObject,
) -> None:
    records = records_of(history)
    (prefix,) = prefix_hashes(tokens_of(block))
    question = Question(SCOPE, lambda: u64s([prefix]), registration("a").instance_id)
    truth, fold = [], make_fold()
    before: set[tuple[int, str]] = set()
    for offset, record in enumerate(records):
        fold.apply(Offset(offset), record)
        now = held_at(fold, question.context, prefix)
        truth += [(offset, "stored", *place) for place in sorted(now - before)]
        truth += [(offset, "gone", *place) for place in sorted(before - now)]
        before = now
    position = data.draw(st.integers(0, len(records) - 1))
    with recorded(history, make_fold, marked) as service:
        explained = explain(service.past(), question, Offset(position))
    then = straight(records[: position + 1], make_fold)
    if held_at(then, question.context, prefix):
        assert explained.ended_by is None
        return
    assert explained.ended_by is not None
    told = [
        (change.offset, "stored" if change.what == "stored" else "gone", *change[-3:-1])
        for change in explained.ended_by.changes
    ]
    expected = [change for change in truth if change[0] <= position]
    # What one record stores and removes again, nobody else sees.
    passing = {(offset, *place) for offset, what, *place in told if what == "stored"}
    passing &= {(offset, *place) for offset, what, *place in told if what == "gone"}
    seen = {one for one in told if (one[0], *one[2:]) not in passing or one in expected}
    assert seen <= set(expected)
    assert len(told) >= EXPLAINED_CHANGES_MAX or seen == set(expected)
    later = explained.ended_by.later
    following = [change for change in truth if change[0] > position]
    if following:
        assert later is not None
        assert position < later.offset <= following[0][0]
