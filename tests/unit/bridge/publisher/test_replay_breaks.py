"""Replies that break off at a message above the bound, or that have holes: what is asked for again,
and what becomes a gap. Against ROUTER sockets on the loopback, and without.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from itertools import groupby

import pytest
import zmq

from bridge.publisher import replay_client
from bridge.publisher.anchor import NO_ANCHOR, Anchor
from bridge.publisher.repair import (
    REPLAY_REQUESTS_MAX,
    REPLAY_SKIPS_BARREN_MAX,
    REPLAY_SKIPS_MAX,
    RepairStep,
)
from bridge.publisher.replay_client import _NO_SEQUENCE as PROBE
from bridge.publisher.replay_client import Replayer, ReplaySocket
from schemas.answer_states import Doubt
from schemas.positions import Cursor, Proof
from schemas.records import GapRecord, SequencedRecord
from tests.unit.bridge.publisher import test_replay_client
from tests.unit.bridge.publisher.sequencers import Sequencers
from tests.unit.bridge.publisher.test_repair import KEY, Scene, message
from tests.unit.bridge.publisher.test_replay_client import (
    ANCHOR,
    Engine,
    batches,
    held,
    honest,
    live,
    repair,
    told,
)

BOUND = 1000
TOO_LARGE = "message_too_large"


class LargeEngine(Engine):
    """An honest one, some of whose batches are above the bound."""

    large: frozenset[int] = frozenset()

    def __init__(self, first: int, last: int, *large: int, born: float = 100.0) -> None:
        self.large = frozenset(large)
        super().__init__(honest(first, last, born=born), topic=True)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Engine]]:
    """Engines that are closed at the end."""
    small = test_replay_client.payload
    engines: list[Engine] = []

    def payload(sequence: int, ts: float) -> bytes:
        is_large = any(sequence in one.large for one in engines if isinstance(one, LargeEngine))
        return bytes(BOUND + 1) if is_large else small(sequence, ts)

    monkeypatch.setattr(test_replay_client, "payload", payload)
    monkeypatch.setattr(replay_client, "MESSAGE_BYTES_MAX", BOUND)
    monkeypatch.setattr(replay_client, "REPLAY_BREAK_LOOK_S", 0.02)
    yield engines
    for engine in engines:
        engine.close()


def too_large(incarnation: int, sequence: int) -> tuple[object, ...]:
    return (TOO_LARGE, incarnation, sequence, sequence)


def asked(engine: Engine) -> list[int]:
    """From where; one that a busy machine makes wait asks again."""
    return [number for number, _ in groupby(engine.asked)]


# A message that is too large, over sockets


def test_only_the_batch_that_is_too_large_is_a_gap(made: list[Engine]) -> None:
    made.append(engine := LargeEngine(0, 30, 15))
    records = repair(held(ANCHOR), engine.endpoint)
    assert told(records) == [*batches(3, 11, 14), too_large(3, 15), *batches(3, 16, 30)]
    assert asked(engine) == [10, 14, 16, 30]


def test_it_is_asked_for_no_more_afterwards(made: list[Engine]) -> None:
    made.append(engine := LargeEngine(0, 30, 15))
    sequencer = held(ANCHOR)
    repair(sequencer, engine.endpoint)
    engine.asked.clear()
    sequencer[KEY].hold()
    assert told(repair(sequencer, engine.endpoint)) == []
    assert asked(engine) == [30]


def test_what_waits_behind_it_follows(made: list[Engine]) -> None:
    made.append(engine := LargeEngine(0, 30, 15))
    records = repair(held(ANCHOR, live(16, 116.0), live(17, 117.0)), engine.endpoint)
    assert told(records) == [*batches(3, 11, 14), too_large(3, 15), *batches(3, 16, 17)]
    assert asked(engine) == [10, 14]


def test_one_that_is_the_last_is_a_gap_though_nothing_follows(made: list[Engine]) -> None:
    made.append(engine := LargeEngine(0, 15, 15))
    sequencer = held(ANCHOR)
    records = repair(sequencer, engine.endpoint)
    assert told(records) == [*batches(3, 11, 14), too_large(3, 15)]
    assert asked(engine) == [10, 14, 16]
    assert sequencer.counters()[KEY].dropped == {TOO_LARGE: 1}
    assert sequencer.counters()[KEY].lost_batches == 1


@pytest.mark.parametrize("first", [11, 15])
def test_several_behind_each_other_are_a_gap_each(made: list[Engine], first: int) -> None:
    made.append(engine := LargeEngine(0, 30, first, first + 1, first + 2, 25))
    records = repair(held(ANCHOR), engine.endpoint)
    assert told(records) == [
        *batches(3, 11, first - 1),
        *(too_large(3, first + number) for number in range(3)),
        *batches(3, first + 3, 24),
        too_large(3, 25),
        *batches(3, 26, 30),
    ]


def test_the_first_of_a_new_publisher_may_be_one(made: list[Engine]) -> None:
    made.append(engine := LargeEngine(0, 5, 0))
    assert told(repair(held(NO_ANCHOR), engine.endpoint)) == [too_large(1, 0), *batches(1, 1, 5)]
    assert asked(engine) == [0, PROBE, 0, 1, 5]


def test_the_first_of_a_new_incarnation_may_be_one(made: list[Engine]) -> None:
    made.append(engine := LargeEngine(0, 12, 0, born=500.0))
    records = repair(held(ANCHOR), engine.endpoint)
    assert told(records) == [("restarted", 4, -1, -1), too_large(4, 0), *batches(4, 1, 12)]
    assert asked(engine) == [10, 0, 1, 12]


def ask(sequencer: Sequencers, endpoint: str) -> tuple[Doubt | None, list[SequencedRecord]]:
    records: list[SequencedRecord] = []

    async def emit(more: Sequence[SequencedRecord]) -> None:
        records.extend(more)

    async def run() -> Doubt | None:
        replayer = Replayer(idle_s=0.3)
        try:
            return (await replayer.repair(sequencer[KEY], ReplaySocket(endpoint), emit)).doubt
        finally:
            replayer.close()

    return asyncio.run(run()), records


def test_more_than_a_few_behind_each_other_are_not_waited_for(made: list[Engine]) -> None:
    made.append(engine := LargeEngine(0, 100, *range(11, 100)))
    doubt, records = ask(held(ANCHOR), engine.endpoint)
    assert doubt is Doubt.REPLAY_BROKEN
    assert told(records) == [too_large(3, 11 + number) for number in range(REPLAY_SKIPS_BARREN_MAX)]
    assert len(engine.asked) <= 2 * (REPLAY_SKIPS_BARREN_MAX + 1)


def test_another_kind_of_socket_is_as_good_as_silent() -> None:
    """The engine's live one, say: libzmq gives that up, too, and no batch is to blame."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    try:
        doubt, records = ask(held(ANCHOR), f"tcp://127.0.0.1:{port}")
    finally:
        publisher.close(linger=0)
        context.term()
    assert doubt is Doubt.REPLAY_SILENT
    assert records == []


# The same without sockets


def breaks(scene: Scene) -> RepairStep:
    scene.records += scene.repair.break_off(1.0)
    return scene.repair.answer


def test_a_reply_that_breaks_off_once_costs_nothing() -> None:
    scene = Scene()
    assert scene.replays(9, 10) is RepairStep.MORE
    assert breaks(scene) is RepairStep.ASK
    assert scene.repair.doubt is Doubt.REPLAY_BROKEN
    assert scene.repair.start == 10
    assert scene.replays(10, 11) is RepairStep.MORE
    assert breaks(scene) is RepairStep.ASK, "at another place"
    assert scene.replays(11, 12) is RepairStep.MORE
    assert scene.ends() is RepairStep.ASK
    assert scene.replays(12) is RepairStep.MORE
    assert scene.ends() is RepairStep.DONE
    assert scene.repair.doubt is None
    assert not any(isinstance(record, GapRecord) for record in scene.records)


def test_what_breaks_off_behind_all_that_is_missing_is_taken_for_whole() -> None:
    scene = Scene(11)
    assert scene.replays(9, 10) is RepairStep.MORE
    assert breaks(scene) is RepairStep.DONE
    assert scene.repair.doubt is None


def test_one_that_waits_is_never_a_gap() -> None:
    scene = Scene(10)
    for answer in (RepairStep.ASK, RepairStep.DONE):
        assert scene.repair.begin()
        assert breaks(scene) is answer
    assert scene.records == []
    assert scene.repair.doubt is Doubt.REPLAY_BROKEN


def test_where_no_batch_came_it_is_the_next_one_that_is_missing() -> None:
    """The log's last one has been received: what stands at its number is of another process, or
    the engine's buffer begins behind it. Either way its answers must not be `exact`.
    """
    scene = Scene()
    for _ in range(2):
        assert scene.repair.begin()
        assert scene.repair.start == 9
        assert breaks(scene) is RepairStep.ASK
    assert scene.cursor == Cursor(1, 10)
    assert scene.repair.start == 11


def test_a_break_before_the_logs_last_batch_is_gone_round() -> None:
    """It was a gap before; the engine is asked from further back, for what was doubted since."""
    scene = Scene(anchor=Anchor(Cursor(1, 40), 40.0, heard=Proof(40, 40.0)))
    assert scene.replays(message(40, 50.0)) is RepairStep.ASK
    assert scene.replays(message(0, 1.0)) is RepairStep.ASK
    start = scene.repair.start
    assert scene.replays(start, start + 1) is RepairStep.MORE
    assert breaks(scene) is RepairStep.ASK
    assert scene.repair.start == 41
    assert scene.records == []


def test_one_repair_goes_round_only_so_many() -> None:
    scene = Scene()
    answer, sequence = RepairStep.ASK, 9
    while answer is RepairStep.ASK:
        for _ in range(2):
            assert scene.replays(*([sequence] if sequence == 9 else [])) is RepairStep.MORE
            answer = breaks(scene)
        if answer is RepairStep.ASK:
            sequence += 2
            assert scene.repair.start == sequence
            assert scene.replays(sequence) is RepairStep.MORE
            answer = breaks(scene)
            assert scene.repair.start == sequence
            assert scene.replays(sequence) is RepairStep.MORE
            answer = breaks(scene)
            sequence += 1
    assert answer is RepairStep.DONE
    gaps = [record for record in scene.records if isinstance(record, GapRecord)]
    assert len(gaps) <= REPLAY_SKIPS_MAX
    assert scene.repair.requests <= REPLAY_REQUESTS_MAX


# Holes


class Narrow(Engine):
    """One whose socket drops what the other side does not take at once."""

    QUEUE = 4


def test_a_long_replay_of_which_the_socket_drops_much_ends_complete() -> None:
    engine = Narrow(honest(0, 400), topic=True)
    try:
        waiting = [live(sequence, 100.0 + sequence) for sequence in range(300, 410)]
        records = repair(held(ANCHOR, *waiting), engine.endpoint)
    finally:
        engine.close()
    assert told(records) == batches(3, 11, 409)


def test_an_engine_that_is_still_at_the_reply_before_is_waited_for() -> None:
    """It has lost something of that one, and does not know that nobody reads the rest."""
    is_busy = threading.Event()

    def answer(start: int) -> list[tuple[int, float] | None]:
        every = honest(0, 30)(start)
        if start == 10:
            return [one for one in every if one is None or one[0] != 15]
        is_busy.wait(1.0)  # longer than anybody waits for an engine that has not answered yet
        return every

    engine = Engine(answer, topic=False)
    try:
        records = repair(held(ANCHOR, live(31, 131.0)), engine.endpoint)
    finally:
        is_busy.set()
        engine.close()
    assert told(records) == batches(3, 11, 31)
    assert asked(engine) == [10, 14]
