"""Several ranks in one stream, as TensorRT-LLM and Dynamo send them: each publisher takes what is
of its rank, whether the engine numbers the events of all of them, or those of each.
"""

import json
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bridge.link_numbers import LinkNumber
from bridge.sockets.raw_message import RawMessage
from bridge.wire import dynamo as dynamo_wire
from bridge.wire import trtllm as trtllm_wire
from bridge.wire.drop_reasons import DropReason
from schemas.answer_states import AnswerState, Doubt
from schemas.errors import RegistrationConflictError
from schemas.identities import Offset, PrefixScope, PublisherKey
from schemas.limits import DP_RANK_MAX
from schemas.records import (
    HeartbeatRecord,
    LogRecord,
    PublisherReport,
    RegisteredRecord,
    encode_record,
)
from schemas.registration import (
    ATOM,
    PUBLISHER_KINDS,
    SGLANG,
    TOKENSPEED,
    VLLM,
    PublisherKind,
    Registration,
    is_new,
)
from streams.kernel import array_packer, open_kernel
from streams.table.fold import Fold
from streams.table.scope_states import ConfirmationSource, FreshUntil
from tests.unit.bridge.messages import map_event, registration
from tests.unit.bridge.publisher.sequencers import Sequencers

KINDS = [trtllm_wire.KIND, dynamo_wire.KIND]
BY_RANK = [VLLM, SGLANG, TOKENSPEED, ATOM]
"""Of these each rank counts: `test_ranks_behind_one_socket`."""
FIRST_IDS = {trtllm_wire.KIND: 0, dynamo_wire.KIND: 1}
TOKENS = [1, 2, 3, 4]


def event(kind: PublisherKind, rank: int, number: int, *, gone: bool = False) -> dict[str, Any]:
    """A block of four tokens is stored, or removed; it is called by the number of its rank."""
    name = 100 + rank
    if kind == trtllm_wire.KIND:
        block = {"block_hash": name, "tokens": [{"token_id": token} for token in TOKENS]}
        stored: dict[str, Any] = {"type": "stored", "parent_hash": None, "blocks": [block]}
        removed = {"type": "removed", "block_hashes": [name]}
        data = removed if gone else stored
        return {"event_id": number, "attention_dp_rank": rank, "data": data}
    local = array_hash(TOKENS)
    blocks = [{"block_hash": name, "tokens_hash": local}]
    data = {"removed": {"block_hashes": [name]}} if gone else {"stored": {"blocks": blocks}}
    return {"worker_id": 7, "event": {"event_id": number, "dp_rank": rank, "data": data}}


def array_hash(tokens: Sequence[int]) -> int:
    scope = PrefixScope("default", "m", "", len(tokens), "")
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return int.from_bytes(open_kernel(1337).prefix_hashes(scope, packed, (), 1), "little")


class Bench:
    """One stream, and the publishers of some of its ranks."""

    def __init__(self, kind: PublisherKind, *ranks: int) -> None:
        self.fresh_until: FreshUntil = {ConfirmationSource(0, "b"): 1.0}
        self.kind = kind
        self.sequencer = Sequencers(array_packer())
        self.fold = Fold(open_kernel(1337))
        self.publishers: list[PublisherKey] = []
        self._numbers: dict[int, int] = {}
        self._offset = 0
        for rank in ranks:
            self.add(rank)

    def add(self, rank: int) -> None:
        one = registration(kind=self.kind, dp_rank=rank)
        one = msgspec.structs.replace(one, kv_partial_reuse="none", kv_cache_groups="one")
        self.sequencer.add(one)
        self.publishers.append(one.publisher)
        self._numbers[rank] = 0

        self._append(
            RegisteredRecord(stream=one.stream, dp_rank=rank, bridge_time=1.0, registration=one)
        )
        report = PublisherReport(one.stream, rank)
        self._append(HeartbeatRecord(bridge="b", uptime=1.0, bridge_time=1.0, reports=(report,)))

    def _append(self, record: LogRecord) -> None:
        assert self.fold.apply(Offset(self._offset), encode_record(record)) is None
        self._offset += 1

    def send(self, *events: dict[str, Any]) -> None:
        self.send_payload(json.dumps(events).encode())

    def send_payload(self, payload: bytes) -> None:
        for publisher in self.publishers:
            number = self._numbers[publisher.dp_rank]
            self._numbers[publisher.dp_rank] += 1
            frames = [b"", number.to_bytes(8, "big"), payload]
            for record in self.sequencer.process([RawMessage(publisher, frames, 0.0)], 1.0):
                self._append(record)

    def held(self) -> dict[int, int]:
        scope = PrefixScope("default", "m", "", 4, "")
        matches = self.fold.kernel.query(scope, struct.pack("<4I", *TOKENS), (), None)
        return {rank.dp_rank: rank.matched for match in matches for rank in match.ranks}

    def degraded(self) -> set[int]:
        states = self.fold.publishers.items()
        return {key.dp_rank for key, state in states if state.degraded_since is not None}

    def dropped(self, rank: int) -> dict[str, int]:
        key = next(one for one in self.publishers if one.dp_rank == rank)
        return dict(self.sequencer.counters()[key].dropped)


def numbered(kind: PublisherKind, ranks: Sequence[int], *, of_each: bool) -> list[dict[str, Any]]:
    """A block is stored on each of these ranks in turn, and the engine numbers its events."""
    counts: dict[int, int] = {}
    events = []
    for place, rank in enumerate(ranks):
        number = counts.get(rank, 0) if of_each else place
        counts[rank] = counts.get(rank, 0) + 1
        events.append(event(kind, rank, FIRST_IDS[kind] + number))
    return events


ORDERS = [[0, 1, 0, 1, 0], [0, 0, 0, 1, 1, 0, 1], [1, 1, 1, 0, 0, 1, 0, 2, 0], [0, 2, 2, 1, 0]]


@pytest.mark.parametrize("in_one", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("of_each", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_has_its_own_and_misses_nothing(
    kind: PublisherKind, of_each: bool, order: list[int], in_one: bool
) -> None:
    bench = Bench(kind, 0, 1)
    events = numbered(kind, order, of_each=of_each)
    for batch in [events] if in_one else [[one] for one in events]:
        bench.send(*batch)
    assert bench.held() == {0: 4, 1: 4}
    assert (bench.degraded(), bench.dropped(0), bench.dropped(1)) == (set(), {}, {})


@pytest.mark.parametrize("lost", [0, 1, 3, 4])
@pytest.mark.parametrize("of_each", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_engine_drops_of_a_rank_degrades_it(
    kind: PublisherKind, of_each: bool, lost: int
) -> None:
    bench = Bench(kind, 0, 1)
    order = [0, 1] * 8
    for place, one in enumerate(numbered(kind, order, of_each=of_each)):
        if place != lost:
            bench.send(one)
    whose = order[lost]
    assert whose in bench.degraded()
    assert bench.dropped(whose) == {DropReason.EVENTS_MISSING: 1}
    if of_each:
        assert bench.degraded() == {whose}, "the other's numbers follow on"


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_a_rank_that_go_back_are_of_a_cache_that_began_again(
    kind: PublisherKind,
) -> None:
    bench = Bench(kind, 0, 1)
    for one in numbered(kind, [0, 1, 0, 1], of_each=True):
        bench.send(one)
    bench.send(event(kind, 0, FIRST_IDS[kind], gone=True))
    assert bench.held()[1] == 4
    assert 0 not in bench.degraded()
    assert bench.held().get(0, 0) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_not_registered_is_known_until_it_is(kind: PublisherKind) -> None:
    bench = Bench(kind, 0)
    (zero,) = bench.publishers
    bench.send(event(kind, 0, FIRST_IDS[kind]))
    assert bench.fold.publishers[zero].other_ranks == ()
    bench.send(event(kind, 1, FIRST_IDS[kind] + 1))
    assert bench.fold.publishers[zero].other_ranks == (1,)
    assert bench.fold.states.standing(zero, bench.fresh_until, 0.0).reason == Doubt.RANK_MISSING
    assert bench.sequencer.counters()[zero].passed_over == {DropReason.OTHER_RANK: 1}
    assert bench.degraded() == set()
    bench.add(1)
    assert bench.fold.states.standing(zero, bench.fresh_until, 0.0).state is AnswerState.EXACT


@pytest.mark.parametrize("rank", [-1, 2**31, 2**40])
def test_a_rank_that_cannot_be_registered_is_missing(rank: int) -> None:
    bench = Bench(trtllm_wire.KIND, 0)
    bench.send_payload(msgspec.msgpack.encode([1.5, [], rank]))
    assert bench.fold.publishers[bench.publishers[0]].other_ranks == (DP_RANK_MAX,)


def test_a_batch_in_msgpack_of_another_rank_is_passed_over() -> None:
    bench = Bench(trtllm_wire.KIND, 0, 1)
    for rank in (0, 1, 1, 0):
        stored = map_event("BlockStored", block_hashes=[100 + rank], token_ids=TOKENS, block_size=4)
        bench.send_payload(msgspec.msgpack.encode([1.5, [stored], rank]))
    assert bench.held() == {0: 4, 1: 4}
    assert (bench.degraded(), bench.dropped(0), bench.dropped(1)) == (set(), {}, {})


def test_another_ranks_number_that_goes_back_over_a_link_is_doubted() -> None:
    """It may be a restart behind something that forwards, or that rank counts for itself."""
    bench = Bench(trtllm_wire.KIND, 0)
    (zero,) = bench.publishers
    stored = map_event("BlockStored", block_hashes=[100], token_ids=TOKENS, block_size=4)
    for number, rank in ((0, 0), (1, 0), (0, 1)):
        payload = msgspec.msgpack.encode([1.5e9 + 10 * rank + number, [stored], rank])
        frames = [b"", number.to_bytes(8, "big"), payload]
        bench.sequencer.process([RawMessage(zero, frames, 0.0, LinkNumber(1))], 1.0)
        assert bench.sequencer[zero].stream.is_doubted == (rank == 1)


@pytest.mark.parametrize("kind", [*KINDS, *BY_RANK])
def test_ranks_share_an_endpoint_and_others_do_not(kind: PublisherKind) -> None:
    zero = registration(kind=kind)
    known = {zero.publisher: zero}
    one = registration(kind=kind, dp_rank=1)
    assert is_new(one, known)

    def refused(other: Registration) -> None:
        with pytest.raises(RegistrationConflictError):
            is_new(other, known)

    refused(registration(kind=kind, dp_rank=1, instance_id="another"))
    other = next(one for one in (*KINDS, *BY_RANK) if one != kind)
    refused(registration(kind=other, dp_rank=1))


def test_each_kind_counts_its_ranks_in_one_way() -> None:
    facts = PUBLISHER_KINDS.items()
    assert {kind for kind, one in facts if one.has_many_ranks} == set(KINDS)
    assert {kind for kind, one in facts if one.counts_by_rank} == set(BY_RANK)
