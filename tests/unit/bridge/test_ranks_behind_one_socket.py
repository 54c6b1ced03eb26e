"""Several ranks behind one ZMQ socket that number their batches each by itself, as those of vLLM
and SGLang where something forwards them: each publisher follows the numbers of its rank.
"""

import random
import struct
from collections.abc import Sequence

import msgspec
import pytest

from bridge.bounds import BATCH_VALUES_MAX
from bridge.publisher.repair import RepairStep, ReplayRepair
from bridge.sockets.raw_message import RawMessage, RawRun
from bridge.wire import SOURCES
from bridge.wire.drop_reasons import DropReason
from schemas.answer_states import Doubt
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.identities import Offset, PrefixScope, PublisherKey
from schemas.limits import DP_RANK_MAX
from schemas.positions import Cursor
from schemas.records import GapRecord, RegisteredRecord, ResetRecord, SequencedRecord, encode_record
from schemas.registration import PUBLISHER_KINDS, PublisherKind, Registration
from schemas.troubles import NO_TROUBLES, Troubles
from streams.kernel import array_packer, message_run, open_kernel
from streams.table.fold import Fold
from tests.unit.bridge.messages import captured_messages, registration
from tests.unit.bridge.publisher.sequencers import Sequencers
from tests.unit.bridge.pump_bench import Bench as PumpBench
from tests.unit.bridge.pump_bench import play

KINDS = [kind for kind in SOURCES if PUBLISHER_KINDS[kind].counts_by_rank]
VLLM = PublisherKind("vLLM")
RANKS = (0, 1, 2, 3)
SCOPE = PrefixScope("default", "m", "", 4, "")

Sent = tuple[int, int, bytes]
"""Whose, its number, the payload."""


def tokens_of(block: int) -> list[int]:
    return [10 * block + place for place in range(4)]


def batch(rank: int, number: int, *events: object) -> Sent:
    """By default a block is stored that only this batch of this rank names."""
    block = 1000 * rank + number
    stored = ["BlockStored", [block], None, tokens_of(block), 4]
    time = 1.5e9 + number + rank / 10
    return rank, number, msgspec.msgpack.encode([time, list(events) or [stored], rank])


def frames_of(sent: Sent) -> list[bytes]:
    _, number, payload = sent
    return [b"", number.to_bytes(8, "big"), payload]


class Socket:
    """One address, and the publishers of its ranks."""

    def __init__(
        self,
        *ranks: int,
        kind: PublisherKind = VLLM,
        packer: ArrayPacker | None = None,
        repairs: bool = False,
    ) -> None:
        self.sequencer = Sequencers(packer or array_packer())
        self.fold = Fold(open_kernel(1337))
        self.publishers: dict[int, PublisherKey] = {}
        self.records: dict[int, list[SequencedRecord]] = {}
        self._offset = 0
        for rank in ranks:
            one = registration(kind=kind, dp_rank=rank)
            self.sequencer.add(one, repairs=repairs)
            self.publishers[rank] = one.publisher
            self.records[rank] = []
            self._append(
                RegisteredRecord(stream=one.stream, dp_rank=rank, bridge_time=1.0, registration=one)
            )

    def _append(self, record: RegisteredRecord | SequencedRecord) -> None:
        assert self.fold.apply(Offset(self._offset), encode_record(record)) is None
        self._offset += 1

    def send(self, *sent: Sent, in_runs: bool = False) -> None:
        """All of it comes over the link of each publisher."""
        for rank, publisher in self.publishers.items():
            received: list[RawMessage | RawRun]
            received = [RawMessage(publisher, frames_of(one), 0.0) for one in sent]
            if in_runs:
                assert message_run is not None
                received = [RawRun(publisher, message_run(list(map(frames_of, sent))), 0.0)]
            for record in self.sequencer.process(received, 1.0):
                self.records[rank].append(record)
                self._append(record)

    def cursor(self, rank: int) -> Cursor:
        return self.sequencer[self.publishers[rank]].stream.cursor

    def matched(self, block: int) -> dict[int, int]:
        """By rank, how much it holds of the prompt that is this block alone."""
        packed = struct.pack("<4I", *tokens_of(block))
        matches = self.fold.kernel.query(SCOPE, packed, (), None)
        return {one.dp_rank: one.matched for match in matches for one in match.ranks if one.matched}

    def gaps(self, rank: int) -> list[tuple[int, int]]:
        records = self.records[rank]
        return [(r.first_sequence, r.last_sequence) for r in records if isinstance(r, GapRecord)]

    def resets(self, rank: int) -> int:
        return sum(isinstance(record, ResetRecord) for record in self.records[rank])

    def degraded(self) -> set[int]:
        states = self.fold.publishers.items()
        return {key.dp_rank for key, state in states if state.degraded_since is not None}


def interleaved(seed: int, ranks: Sequence[int], batches: int) -> list[Sent]:
    """Each rank's batches from 0 on, in some order of ranks."""
    chance = random.Random(seed)
    left = [rank for rank in ranks for _ in range(chance.randint(1, batches))]
    chance.shuffle(left)
    numbers = dict.fromkeys(ranks, 0)
    sent = []
    for rank in left:
        sent.append(batch(rank, numbers[rank]))
        numbers[rank] += 1
    return sent


@pytest.mark.parametrize("packer", [array_packer(), PythonArrayPacker()], ids=["kernel", "python"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_follows_its_own_numbers(kind: PublisherKind, packer: ArrayPacker) -> None:
    for seed in range(10):
        socket = Socket(*RANKS, kind=kind, packer=packer)
        sent = interleaved(seed, RANKS, 12)
        socket.send(*sent)
        for rank, number, _ in sent:
            assert socket.matched(1000 * rank + number) == {rank: 4}
        for rank in RANKS:
            counters = socket.sequencer.counters()[socket.publishers[rank]]
            own = sum(one[0] == rank for one in sent)
            assert socket.cursor(rank) == Cursor(1, own - 1)
            assert (socket.gaps(rank), socket.resets(rank), counters.dropped) == ([], 0, {})
            assert (counters.batches, counters.messages) == (own, len(sent))
            assert counters.passed_over == {DropReason.OTHER_RANK: len(sent) - own}
        assert socket.degraded() == set()


@pytest.mark.skipif(message_run is None, reason="the Rust kernel is not built")
def test_what_comes_in_runs_is_the_same() -> None:
    for seed in range(10):
        alone, together = Socket(*RANKS), Socket(*RANKS)
        sent = interleaved(seed, RANKS, 12)
        alone.send(*sent)
        together.send(*sent, in_runs=True)
        for rank in RANKS:
            assert together.cursor(rank) == alone.cursor(rank)
            assert together.records[rank] == alone.records[rank]


def test_a_gap_is_of_its_rank_alone() -> None:
    socket = Socket(0, 1)
    socket.send(batch(0, 0), batch(1, 0), batch(0, 1), batch(1, 4), batch(0, 2), batch(1, 5))
    assert (socket.gaps(0), socket.gaps(1)) == ([], [(1, 3)])
    assert socket.degraded() == {1}
    assert socket.matched(2) == {0: 4}
    assert socket.matched(1005) == {1: 4}


def test_a_rank_that_restarts_loses_its_own_blocks_and_no_other() -> None:
    socket = Socket(0, 1)
    socket.send(batch(0, 0), batch(1, 0), batch(1, 1), batch(0, 1))
    anew = msgspec.msgpack.encode([2e9, [["BlockStored", [9], None, tokens_of(9), 4]], 1])
    socket.send((1, 0, anew), batch(0, 2))
    assert (socket.resets(0), socket.resets(1)) == (0, 1)
    assert (socket.cursor(0), socket.cursor(1)) == (Cursor(1, 2), Cursor(2, 0))
    assert (socket.matched(1), socket.matched(1001), socket.matched(9)) == ({0: 4}, {}, {1: 4})
    assert socket.degraded() == set()


def test_what_comes_twice_counts_once() -> None:
    socket = Socket(0, 1)
    sent = [batch(0, 0), batch(1, 0), batch(0, 1), batch(1, 1)]
    socket.send(*sent, *sent)
    assert [socket.cursor(rank) for rank in (0, 1)] == [Cursor(1, 1)] * 2
    assert (socket.resets(0), socket.resets(1), socket.degraded()) == (0, 0, set())
    counters = socket.sequencer.counters()
    assert [counters[socket.publishers[rank]].duplicates for rank in (0, 1)] == [2, 2]


def test_ranks_that_count_as_one_under_such_a_type_are_degraded() -> None:
    socket = Socket(0, 1)
    socket.send(batch(0, 0), batch(1, 1), batch(0, 2), batch(1, 3))
    assert socket.degraded() == {0, 1}
    assert (socket.gaps(0), socket.gaps(1)) == ([(1, 1)], [(0, 0), (2, 2)])


@pytest.mark.parametrize(
    "payload",
    [b"\xc1", msgspec.msgpack.encode([1.5, [["BlockRemoved", [0] * (BATCH_VALUES_MAX + 1)]], 0])],
)
def test_a_batch_that_cannot_be_read_is_nobodys_until_a_number_is_missing(payload: bytes) -> None:
    socket = Socket(0, 1)
    socket.send(batch(0, 0), batch(1, 0), batch(0, 1))
    socket.send((0, 2, payload))
    for publisher in socket.publishers.values():
        stream = socket.sequencer[publisher].stream
        assert stream.unplaced == stream.counters.messages, "`unreadable`"
    assert [socket.cursor(rank) for rank in (0, 1)] == [Cursor(1, 1), Cursor(1, 0)]
    socket.send(batch(1, 1), batch(0, 3))
    assert (socket.gaps(0), socket.gaps(1)) == ([(2, 2)], [])
    assert (socket.degraded(), socket.resets(0), socket.resets(1)) == ({0}, 0, 0)
    assert socket.sequencer[socket.publishers[1]].stream.unplaced == 0


def test_other_ranks_are_known_until_the_link_before_a_restart() -> None:
    socket = Socket(0)
    stream = socket.sequencer[socket.publishers[0]].stream
    socket.send(batch(0, 0), batch(1, 7), batch(3, 2))
    assert set(stream.other_ranks) == {1, 3}
    stream.begin_link(stream.links.last + 1)  # type: ignore[arg-type]
    socket.send(batch(3, 3))
    assert set(stream.other_ranks) == {1, 3}


# What a replay socket has of several ranks


def replayed(publisher: PublisherKey, *sent: Sent) -> list[RawMessage]:
    return [RawMessage(publisher, frames_of(one), 0.0) for one in sent]


def test_a_gap_is_repaired_by_the_batches_of_its_rank() -> None:
    socket = Socket(0, 1, repairs=True)
    socket.send(batch(0, 0), batch(1, 0), batch(0, 3), batch(1, 1))
    assert socket.sequencer.take_gaps() == [socket.publishers[0]]
    sequencer = socket.sequencer[socket.publishers[0]]
    repair = ReplayRepair(sequencer)
    assert repair.begin()
    others = [batch(1, number) for number in range(4)]
    answer = [batch(0, 0), *others, batch(0, 1), batch(1, 4), batch(0, 2), batch(0, 3)]
    records = list(repair.feed(replayed(socket.publishers[0], *answer), 1.0))
    assert repair.answer is RepairStep.DONE
    assert repair.repaired.doubt is None
    for record in [*records[0], *sequencer.resume(1.0)]:
        socket._append(record)
        assert not isinstance(record, GapRecord | ResetRecord)
    assert [socket.matched(number) for number in range(4)] == [{0: 4}] * 4
    assert (socket.degraded(), repair.replayed) == (set(), 2)


@pytest.mark.parametrize("others", [0, 3])
def test_a_rank_of_which_nothing_was_heard_may_publish_elsewhere(others: int) -> None:
    socket = Socket(0, 1, repairs=True)
    repair = ReplayRepair(socket.sequencer[socket.publishers[1]])
    assert repair.begin()
    answer = replayed(socket.publishers[1], *[batch(0, number) for number in range(others)])
    assert list(repair.feed(answer, 1.0)) == []
    repair.end(complete=True)
    assert repair.doubt is Doubt.REPLAY_UNMATCHED


# Which ranks are registered


def received(one: Registration, *sent: Sent) -> list[RawMessage]:
    return [RawMessage(one.publisher, frames_of(each), 0.0) for each in sent]


def test_the_table_is_told_of_other_ranks_at_the_address() -> None:
    """It knows which are registered: another bridge may follow them."""
    zero = registration()

    async def scene(bench: PumpBench) -> None:
        await bench.begin(zero)
        followed = bench.pump.followed[zero.publisher]
        await bench.receive(*received(zero, batch(0, 0)))
        bench.pump.follower.watch()
        assert followed.statement.troubles is NO_TROUBLES
        await bench.receive(*received(zero, batch(3, 0), batch(1, 4), batch(-1, 0)))
        bench.pump.follower.watch()
        told = Troubles(other_ranks=(1, 3, DP_RANK_MAX))
        assert followed.statement.troubles == told
        assert told.kind != NO_TROUBLES.kind, "worth a record"
        await bench.receive(*received(zero, batch(3, 1), batch(1, 5)))
        bench.pump.follower.watch()
        assert followed.statement.troubles == told

    assert play(scene).pump.faults == 0


def test_what_had_no_room_may_have_been_of_any_rank() -> None:
    zero = registration()

    async def scene(bench: PumpBench) -> None:
        await bench.begin(zero)
        await bench.receive(*received(zero, batch(0, 0), batch(1, 0)))
        stream = bench.pump.followed[zero.publisher].sequencer.stream
        bench.pump.follower.ask_for(zero.publisher, 70)
        await bench.settle()
        assert stream.cursor == Cursor(1, 0), "none of its own is known to be lost"
        assert stream.unplaced == stream.counters.messages
        await bench.receive(*received(zero, batch(0, 1)))
        assert (stream.cursor, stream.unplaced) == (Cursor(1, 1), 0)
        assert not stream.degraded

    assert play(scene).pump.faults == 0


def test_where_two_are_followed_a_batch_that_names_no_rank_is_nobodys() -> None:
    zero, one = registration(), registration(dp_rank=1)
    nameless = msgspec.msgpack.encode([1.5e9, [["AllBlocksCleared"]], None])

    async def scene(bench: PumpBench) -> None:
        await bench.begin(zero)
        stream = bench.pump.followed[zero.publisher].sequencer.stream
        await bench.receive(*received(zero, (0, 0, nameless)))
        assert (stream.cursor, stream.unplaced) == (Cursor(1, 0), 0), "it is of the only one"
        await bench.begin(one)
        await bench.receive(*received(zero, (0, 1, nameless)), *received(one, (0, 1, nameless)))
        for publisher in bench.pump.followed.values():
            told = publisher.sequencer.stream
            assert told.unplaced == told.counters.messages
            assert told.counters.dropped == {DropReason.RANK_MISMATCH: 1}
        assert stream.cursor == Cursor(1, 0)
        await bench.receive(*received(zero, batch(0, 1)))
        assert (stream.cursor, stream.unplaced) == (Cursor(1, 1), 0)

    assert play(scene).pump.faults == 0


# What released publishers have sent


def test_frames_of_released_publishers_of_two_ranks_are_followed_each_by_its_numbers() -> None:
    captured = list(captured_messages())
    by_rank = {
        rank: [one for one in captured if one.name.startswith(f"{name}/")]
        for rank, name in ((0, "vllm-0.33.0"), (3, "vllm-0.33.0-dp3-emptytopic"))
    }
    assert all(one.rank == rank for rank, of_rank in by_rank.items() for one in of_rank)
    socket = Socket(*by_rank)
    alone = {rank: Socket(rank) for rank in by_rank}
    for place in range(max(map(len, by_rank.values()))):
        for rank, of_rank in by_rank.items():
            for one in of_rank[place : place + 1]:
                number = int.from_bytes(one.frames[1], "big")
                socket.send((rank, number, one.frames[2]))
                alone[rank].send((rank, number, one.frames[2]))
    for rank, of_rank in by_rank.items():
        assert socket.cursor(rank) == Cursor(1, len(of_rank) - 1)
        assert socket.records[rank] == alone[rank].records[rank]
