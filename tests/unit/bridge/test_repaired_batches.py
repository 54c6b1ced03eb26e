"""What records say of batches that had been missing, and what the ledger makes of it."""

from collections.abc import Iterable
from unittest import mock

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.link_numbers import LinkNumber
from bridge.publisher import held_batches
from bridge.publisher.anchor import Anchor
from bridge.sockets.raw_message import RawMessage
from schemas.identities import Offset
from schemas.positions import Cursor
from schemas.records import EventsRecord, GapRecord, Record, encode_record
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.ledger import Account, Incarnation, spans_of
from tests.unit.bridge.messages import frames_of
from tests.unit.bridge.publisher.test_repair import KEY as HELD
from tests.unit.bridge.publisher.test_repair import Scene, message
from tests.unit.bridge.pump_bench import BORN, PLAIN, REPLAYS, TWO, Bench, live, play

Repaired = list[tuple[int, int, str]]


def repaired(records: Iterable[Record]) -> Repaired:
    """The batches that records call so, and why they had been missing."""
    return [
        (one.first_sequence, one.last_sequence, one.repaired)
        for one in records
        if isinstance(one, EventsRecord) and one.repaired is not msgspec.UNSET
    ]


def lost(records: Iterable[Record]) -> Repaired:
    """The batches of gaps, and why they are missing."""
    return [
        (one.first_sequence, one.last_sequence, one.reason)
        for one in records
        if isinstance(one, GapRecord)
    ]


def all_of(count: int) -> dict[int, RawMessage]:
    """What an engine has."""
    return {number: live(number, TWO) for number in range(count)}


def test_a_gap_that_a_replay_fills_was_missed() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.has = all_of(4)
        await bench.receive(live(0, TWO), live(3, TWO), live(4, TWO))

    assert repaired(play(scene).sink.records) == [(1, 1, "missed"), (2, 2, "missed")]


def test_what_was_sent_before_anything_was_known_was_joined_late() -> None:
    async def scene(bench: Bench) -> None:
        bench.engine.has = all_of(2)
        await bench.begin(REPLAYS)
        await bench.receive(live(2, TWO))

    assert repaired(play(scene).sink.records) == [(0, 0, "joined_late"), (1, 1, "joined_late")]


def test_a_first_batch_that_is_not_the_first_was_joined_late() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.has = all_of(1)
        await bench.receive(live(1, TWO))

    assert repaired(play(scene).sink.records) == [(0, 0, "joined_late")]


def test_what_was_sent_while_no_bridge_was_there_was_not_followed() -> None:
    async def scene(bench: Bench) -> None:
        bench.engine.has = all_of(7)
        await bench.begin(REPLAYS, Anchor(Cursor(3, 4), BORN + 4))

    assert repaired(play(scene).sink.records) == [(5, 5, "not_followed"), (6, 6, "not_followed")]


def test_what_was_sent_while_the_link_was_down_is_of_a_reconnect() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        await bench.receive(live(0, TWO))
        bench.engine.has = all_of(2)
        bench.receiver.ups[TWO] += 1
        await bench.settle()
        bench.engine.has = all_of(4)
        await bench.receive(live(2, TWO), live(4, TWO))

    found = repaired(play(scene).sink.records)
    assert found == [(1, 1, "reconnected"), (3, 3, "missed")], "a wait has the cause that began it"


def test_the_first_message_of_another_link_is_of_a_reconnect_too() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        await bench.receive(live(0, TWO)._replace(link=LinkNumber(1)))
        bench.engine.has = all_of(2)
        await bench.receive(live(2, TWO)._replace(link=LinkNumber(2)))

    assert repaired(play(scene).sink.records) == [(1, 1, "reconnected")]


def over(link: int, sequence: int) -> RawMessage:
    """A message over one of the links to a publisher without a replay socket."""
    return live(sequence)._replace(link=LinkNumber(link))


def test_what_cannot_be_asked_for_has_a_cause_too() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN, Anchor(Cursor(3, 4), BORN + 4))
        await bench.receive(over(1, 7), over(1, 9), over(2, 12), over(2, 13), over(2, 15))

    assert lost(play(scene).sink.records) == [
        (5, 6, "not_followed"),
        (8, 8, "missed"),
        (10, 11, "reconnected"),
        (14, 14, "missed"),
    ]


def test_the_first_batches_over_another_link_are_not_missing_where_they_follow_on() -> None:
    """What is lost behind them was lost while the link was up."""

    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN, Anchor(Cursor(3, 4), BORN + 4))
        await bench.receive(over(1, 5), over(1, 7), over(2, 8), over(2, 9), over(2, 11))

    assert lost(play(scene).sink.records) == [(6, 6, "missed"), (10, 10, "missed")]


def test_what_an_engine_no_longer_has_is_missing_for_the_cause_of_the_question() -> None:
    async def scene(bench: Bench) -> None:
        bench.engine.has = {number: live(number, TWO) for number in range(8, 10)}
        await bench.begin(REPLAYS, Anchor(Cursor(3, 4), BORN + 4))
        bench.engine.has = {}
        await bench.receive(live(12, TWO))

    records = play(scene).sink.records
    assert lost(records) == [(5, 7, "not_followed"), (10, 11, "missed")]
    assert repaired(records) == [(8, 8, "not_followed"), (9, 9, "not_followed")]


def test_what_a_check_brings_was_missed() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        await bench.receive(live(0, TWO))
        bench.engine.has = all_of(2)
        bench.pump.follower.repair(bench.pump.followed[TWO], is_check=True)
        await bench.settle()

    assert repaired(play(scene).sink.records) == [(1, 1, "missed")]


def test_what_the_inbox_had_no_room_for_says_so() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.has = all_of(4)
        bench.pump.inbox._messages_max = 4
        await bench.receive(*all_of(4).values())

    assert repaired(play(scene).sink.records) == [(2, 2, "inbox_full"), (3, 3, "inbox_full")]


def test_what_had_no_room_while_it_waited_says_so() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.answers.clear()
        await bench.receive(live(0, TWO), *(live(number, TWO) for number in range(2, 6)))
        bench.engine.has = all_of(6)
        bench.engine.answers.set()
        await bench.settle()

    with mock.patch.object(held_batches, "HELD_BATCHES_MAX", 2):
        found = repaired(play(scene).sink.records)
    assert found == [(1, 1, "missed"), (4, 4, "held_full"), (5, 5, "held_full")]


def test_a_further_gap_among_what_waited_was_missed() -> None:
    async def scene(bench: Bench) -> None:
        bench.engine.has = all_of(4)
        bench.engine.answers.clear()
        await bench.begin(REPLAYS, Anchor(Cursor(1, 0), BORN))
        await bench.receive(live(2, TWO), live(4, TWO))
        bench.engine.answers.set()
        await bench.settle()

    assert repaired(play(scene).sink.records) == [(1, 1, "not_followed"), (3, 3, "missed")]


def test_what_an_incarnation_had_sent_unheard_is_of_a_restart() -> None:
    scene = Scene(message(3, 53.0))
    scene.replays(message(9, 51.0))
    scene.replays(message(0, 50.0), message(1, 51.0), message(2, 52.0), message(3, 53.0))
    assert repaired(scene.records) == [(0, 2, "restarted")]
    assert scene.sequencer[HELD].resume(2.0)
    assert repaired(scene.sequencer.process([message(4), message(5)], 3.0)) == []


# Number for number

TOTAL = 12
"""Batches; the last one always comes, and shows what was lost before."""


def _garbled(number: int) -> RawMessage:
    return RawMessage(TWO, [b"", number.to_bytes(8, "big"), b"\xc1"], 0.0)


def _with_bad_event(number: int) -> RawMessage:
    batch = [BORN + number, [["BlockRemoved", [number]], ["BlockRemoved", "none"]], 0]
    return RawMessage(TWO, frames_of(batch, number), 0.0)


Numbers = st.sets(st.integers(0, TOTAL - 2))


@settings(max_examples=60)
@given(dropped=Numbers, gone=Numbers, garbled=Numbers, bad=Numbers, can_replay=st.booleans())
def test_injected_loss_is_what_the_ledger_says(
    dropped: set[int], gone: set[int], garbled: set[int], bad: set[int], can_replay: bool
) -> None:
    """Live messages are dropped, some of them are no longer in the replay buffer, and of what the
    engine has sent something cannot be read.
    """
    bad = bad - garbled
    sent = {number: live(number, TWO) for number in range(TOTAL)}
    sent |= {number: _garbled(number) for number in garbled}
    sent |= {number: _with_bad_event(number) for number in bad}
    registration = REPLAYS if can_replay else msgspec.structs.replace(REPLAYS, replay_endpoint="")

    async def scene(bench: Bench) -> None:
        await bench.begin(registration)
        for number in range(TOTAL):
            if number not in gone:
                bench.engine.has[number] = sent[number]
            if number not in dropped:
                await bench.receive(sent[number])

    records = play(scene).sink.records
    incarnation = _ledger(records)
    never_came = dropped & gone if can_replay else dropped
    assert _numbers(incarnation.lost) == never_came | garbled
    replayed = dropped - gone - garbled if can_replay else set()
    assert _numbers(incarnation.repaired) == replayed
    assert _numbers(incarnation.incomplete) == bad - never_came
    spans = spans_of(incarnation, None)
    assert spans.first == 0


def _ledger(records: Iterable[Record]) -> Incarnation:
    fold = Fold(open_kernel(1337, name="reference"))
    for record in records:
        assert fold.apply(Offset(fold.offset + 1), encode_record(record)) is None
    assert not fold.counters["log_holes"]
    assert fold.publishers[TWO].sequence == TOTAL - 1
    [incarnation] = fold.ledgers.current[TWO].incarnations
    return incarnation


def _numbers(account: Account) -> set[int]:
    return {at for one in account.intervals for at in range(one.first, one.last + 1)}
