"""Long replays of engines that behave as their releases do, without sockets.

Source: measured on vLLM 0.9 to 0.33 and SGLang 0.4.10 to 0.5.23, of 9,000 batches that a slow
reader asked for: a ROUTER socket drops what its queue has no room for, and says nothing.
"""

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from bridge.publisher.anchor import NO_ANCHOR
from bridge.publisher.repair import REPLAY_BARREN_MAX, RepairStep, ReplayRepair
from bridge.publisher.replay_client import REPLAY_CHUNK_BATCHES
from bridge.sockets.raw_message import RawMessage
from schemas.records import EventsRecord, GapRecord, ResetRecord, SequencedRecord
from tests.unit.bridge.messages import frames_of, registration
from tests.unit.bridge.publisher.sequencers import Sequencers

ONE = registration()
KEY = ONE.publisher
BATCHES = 9_000
QUEUE = 1_000  # of a ROUTER, by default
TAKEN = 2_000  # what the sockets in between take before that fills

Reply = tuple[Sequence[int], bool]
"""The numbers that arrive of one reply, and whether its end marker does."""

Engine = Callable[[int], Reply]
"""From which number on it is asked."""


def batch(number: int) -> RawMessage:
    return RawMessage(KEY, frames_of([100.0 + number, [], 0], number), 0.0)


def vllm_to_0_32(start: int) -> Reply:
    """All behind the full queue is dropped, the end marker with it."""
    end = min(start + TAKEN + QUEUE, BATCHES)
    return range(start, end), end == BATCHES


def sglang_0_5_23(start: int) -> Reply:
    """The reader goes on while it is sent: what comes then has room again."""
    numbers = [*range(start, min(start + 2_500, BATCHES)), *range(start + 6_000, BATCHES)]
    return numbers, start + 6_000 < BATCHES


def vllm_0_32_unbounded(start: int) -> Reply:
    """Of a reader without a bound of its own: nine holes, and an end marker."""
    holes = {number for hole in range(9) for number in range(900 * hole + 450, 900 * hole + 520)}
    # Where less is asked for, less is dropped.
    holes = {number for number in holes if number >= start + 300}
    return [number for number in range(start, BATCHES) if number not in holes], True


def vllm_0_33(start: int) -> Reply:
    """Its queue has room for all that is buffered."""
    return range(start, BATCHES), True


ENGINES: list[Engine] = [vllm_to_0_32, sglang_0_5_23, vllm_0_32_unbounded, vllm_0_33]


def later_than_asked(first: int) -> Callable[[Engine], Engine]:
    """One whose buffer no longer has what was before."""
    return lambda engine: lambda start: engine(max(start, first))


def never_ending(engine: Engine) -> Engine:
    """One whose end marker never arrives."""
    return lambda start: (engine(start)[0], False)


def without(engine: Engine, *missing: int) -> Engine:
    """One that has lost these, as by an error while it encoded them."""
    return lambda start: (
        [number for number in engine(start)[0] if number not in missing],
        engine(start)[1],
    )


class Scene:
    """A publisher of which the log has nothing; some of its live batches may wait."""

    def __init__(self, *waiting: int) -> None:
        self.sequencer = Sequencers()
        self.sequencer.add(ONE, repairs=True)
        self.sequencer[KEY].set_anchor(NO_ANCHOR)
        self.sequencer[KEY].hold()
        assert self.sequencer.process(list(map(batch, waiting)), 1.0) == []
        self.records: list[SequencedRecord] = []
        self.requests = 0

    def replays(self, engine: Engine) -> ReplayRepair:
        repair = ReplayRepair(self.sequencer[KEY])
        while repair.begin():
            if self._ask(repair, *engine(repair.start)) is RepairStep.DONE:
                break
        self.requests = repair.requests
        self.records += self.sequencer[KEY].resume(1.0)
        return repair

    def _ask(self, repair: ReplayRepair, numbers: Sequence[int], has_end: bool) -> RepairStep:
        for chunk in _chunks(numbers):
            for records in repair.feed(map(batch, chunk), 1.0):
                self.records += records
            if repair.answer is not RepairStep.MORE:
                return repair.answer
        return repair.end(complete=has_end)

    @property
    def last(self) -> list[SequencedRecord]:
        """Of the last incarnation: where a reply of little more than nothing has lost its end again
        and again, a restart is believed, and all of it is asked for anew.
        """
        incarnation = self.sequencer[KEY].stream.cursor.incarnation
        last = [record for record in self.records if record.incarnation == incarnation]
        return [record for record in last if not isinstance(record, ResetRecord)]

    @property
    def taken(self) -> list[int]:
        return [number for record in self.last for number in _numbers(record, EventsRecord)]

    @property
    def lost(self) -> list[int]:
        return [number for record in self.last for number in _numbers(record, GapRecord)]

    @property
    def is_in_order(self) -> bool:
        every = [
            number
            for record in self.last
            for number in _numbers(record, EventsRecord) or _numbers(record, GapRecord)
        ]
        return every == list(range(len(every)))


def _chunks(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), REPLAY_CHUNK_BATCHES):
        yield numbers[first : first + REPLAY_CHUNK_BATCHES]


def _numbers(record: SequencedRecord, kind: type[SequencedRecord]) -> range:
    is_kind = isinstance(record, kind)
    return range(record.first_sequence, record.last_sequence + 1) if is_kind else range(0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("waiting", [(), (BATCHES,)], ids=["late", "gap"])
def test_it_ends_complete(engine: Engine, waiting: tuple[int, ...]) -> None:
    scene = Scene(*waiting)
    scene.replays(engine)
    assert scene.taken == [*range(BATCHES), *waiting]
    assert scene.lost == []
    assert scene.is_in_order
    assert scene.sequencer[KEY].stream.cursor.incarnation == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_where_its_end_marker_never_arrives_it_is_complete_all_the_same(engine: Engine) -> None:
    scene = Scene(BATCHES)
    scene.replays(never_ending(engine))
    assert scene.taken == [*range(BATCHES + 1)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("first", [1, 4_321])
def test_what_is_before_the_first_batch_that_it_still_has_is_lost_and_nothing_else(
    engine: Engine, first: int
) -> None:
    scene = Scene(BATCHES)
    scene.replays(later_than_asked(first)(engine))
    assert scene.lost == [*range(first)]
    assert scene.taken == [*range(first, BATCHES + 1)]
    assert scene.is_in_order


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("missing", [(0,), (5, 2_999, 3_000, 3_001, 8_998, 8_999)])
def test_what_it_does_not_have_is_lost_and_nothing_else(
    engine: Engine, missing: tuple[int, ...]
) -> None:
    scene = Scene(BATCHES)
    scene.replays(without(engine, *missing))
    assert scene.lost == list(missing)
    assert scene.taken == [number for number in range(BATCHES + 1) if number not in missing]
    assert scene.is_in_order


@pytest.mark.parametrize("case", range(30))
def test_whatever_is_dropped_each_batch_is_taken_or_lost_once_and_in_order(
    case: int, seed: int
) -> None:
    """Replies of which anything is missing, differently each time."""
    rng = random.Random(1000 * seed + case)
    rate, ends = rng.choice((0.001, 0.05, 0.5)), rng.random()

    def lossy(start: int) -> Reply:
        kept = [number for number in range(start, 600) if rng.random() >= rate]
        return kept[: rng.randint(0, len(kept))], rng.random() < ends

    scene = Scene(600)
    repair = scene.replays(lossy)
    assert scene.is_in_order, f"seed {seed}"
    assert sorted([*scene.taken, *scene.lost]) == list(range(601)), f"seed {seed}"
    assert scene.lost == [] or repair.doubt is not None, f"seed {seed}"


def test_an_engine_that_never_sends_more_than_it_did_is_asked_no_more_than_is_bounded() -> None:
    scene = Scene(BATCHES)
    scene.replays(lambda start: (range(start, min(start + 2, 40)), False))
    assert scene.lost == [*range(40, BATCHES)]
    assert scene.requests <= 40 + REPLAY_BARREN_MAX
