"""Media that are one tier: what a clear, or a count, of one of them does where there are others."""

import json
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from xxhash import xxh3_64_intdigest

from bridge.publisher.anchor import Anchor
from bridge.sockets.raw_message import RawMessage
from bridge.wire import dynamo, mooncake, sglang, trtllm, vllm
from bridge.wire.drop_reasons import DropReason
from bridge.wire.fields import MEDIA, TIERS, media_bit, media_of, medium_of
from schemas.answer_states import Doubt
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.identities import Medium, Offset, PrefixScope
from schemas.positions import (
    CPU_CLEARED,
    DISK_CLEARED,
    OUTLIVING,
    POOL_CLEARED,
    REUSES_IN_PART,
    SHARES,
    Confirmation,
    PublisherState,
)
from schemas.records import RegisteredRecord, UnregisteredRecord, encode_record
from schemas.registration import KvPartialReuse, PublisherKind, Registration
from streams.kernel import array_packer, open_kernel
from streams.table.fold import Fold
from streams.table.scope_states import ConfirmationSource, ScopeStates
from tests.unit.bridge.messages import map_event, registration
from tests.unit.bridge.publisher.sequencers import Sequencers

TOKENS = [1, 2, 3, 4]
ALL = map_event("AllBlocksCleared")


def stored(medium: str | None = None, block: int = 7) -> Any:
    fields: Any = {"block_hashes": [block], "token_ids": TOKENS, "block_size": 4}
    return map_event("BlockStored", **fields, medium=medium, extra_keys=[None])


def removed(medium: str, **fields: object) -> Any:
    return map_event("BlockRemoved", block_hashes=[7], medium=medium, **fields)


SETTLING: dict[str, Callable[[str], Any]] = {
    "clear": lambda medium: map_event("AllBlocksCleared", medium=medium),
    "tier": lambda medium: map_event("TierBlocksCleared", medium=medium),
    "counts": lambda medium: removed(medium, remaining_copy_counts=[0]),
}


@pytest.fixture(params=["python", "kernel"])
def packer(request: pytest.FixtureRequest) -> ArrayPacker:
    return PythonArrayPacker() if request.param == "python" else array_packer()


@pytest.fixture(params=SETTLING)
def settling(request: pytest.FixtureRequest) -> Any:
    return SETTLING[request.param]


class Engine:
    """A publisher whose messages are folded, by a bridge that may be started anew."""

    def __init__(self, packer: ArrayPacker, of: Registration | None = None) -> None:
        self.registration = of or registration()
        self.key = self.registration.publisher
        self.packer = packer
        self.fold = Fold(open_kernel(1337))
        self._offset = self._sequence = 0
        self._begin()

    def _begin(self) -> None:
        self.sequencer = Sequencers(self.packer)
        self.sequencer.add(self.registration)

    def restart_bridge(self) -> None:
        self._begin()
        self.sequencer[self.key].place(Anchor.of(self.state))

    def register_again(self, *, continues: bool) -> None:
        """Another registration replaces the one that there is, as the registrar does it."""
        gone = UnregisteredRecord.of(self.key, 1.0, continues=continues)
        for record in (gone, RegisteredRecord.of(self.registration, 1.0)):
            assert self.fold.apply(Offset(self._offset), encode_record(record)) is None
            self._offset += 1
        self._begin()
        if self.key in self.fold.publishers:
            self.sequencer[self.key].place(Anchor.of(self.state))

    def send(self, *batches: list[Any]) -> None:
        """Messages that come together."""
        self.send_payloads(*(msgspec.msgpack.encode([1.5, events, 0]) for events in batches))

    def send_payloads(self, *payloads: bytes, at: int | None = None) -> None:
        self._sequence = self._sequence if at is None else at
        messages = []
        for payload in payloads:
            frames = [b"", self._sequence.to_bytes(8, "big"), payload]
            messages.append(RawMessage(self.key, frames, 0.0))
            self._sequence += 1
        for record in self.sequencer.process(messages, 1.0):
            assert self.fold.apply(Offset(self._offset), encode_record(record)) is None
            self._offset += 1

    @property
    def state(self) -> PublisherState:
        return self.fold.publishers[self.key]

    @property
    def is_degraded(self) -> bool:
        return self.state.degraded_since is not None

    @property
    def doubt(self) -> str:
        """Why it is not confirmed, where its bridge says that it is."""
        states = ScopeStates()
        states.register(self.key, True)
        state = msgspec.structs.replace(self.state, confirmation=Confirmation("bridge"))
        states.put(self.key, state)
        standing = states.standing(self.key, {ConfirmationSource(0, "bridge"): 9.0}, 1.0)
        return standing.reason

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.sequencer.counters()[self.key].dropped)

    @property
    def is_held(self) -> bool:
        scope = PrefixScope("default", "m", "", 4, "")
        matches = self.fold.kernel.query(scope, struct.pack("<4I", *TOKENS), b"", None)
        return any(rank.matched for match in matches for rank in match.ranks)


@pytest.fixture
def engine(packer: ArrayPacker) -> Engine:
    return Engine(packer)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("kind", "reuse", "due"),
    [
        (trtllm.KIND, "", Doubt.PARTIAL_REUSE),
        (trtllm.KIND, "none", ""),
        (vllm.KIND, "", ""),
        (sglang.KIND, "", ""),
    ],
)
def test_an_engine_that_may_overwrite_blocks_without_a_word_is_not_confirmed(
    packer: ArrayPacker, kind: PublisherKind, reuse: KvPartialReuse, due: str, together: bool
) -> None:
    registered = msgspec.structs.replace(registration(kind=kind), kv_partial_reuse=reuse)
    engine = Engine(packer, registered)
    more = [[stored(block=8)]] * 3 if together else []
    engine.send([stored()], *more)
    assert engine.is_held
    assert (engine.doubt, bool(engine.state.media & REUSES_IN_PART)) == (due, bool(due))
    engine.restart_bridge()
    engine.send([ALL])
    assert engine.doubt == due
    engine.send_payloads(msgspec.msgpack.encode([9.5, [stored()], 0]), at=0)
    assert (engine.state.incarnation, engine.doubt) == (2, due)
    assert Anchor.of(engine.state) == engine.sequencer[engine.key].stream.anchor


def test_an_engine_that_uses_one_name_of_a_tier_is_as_exact_as_before(
    engine: Engine, settling: Any
) -> None:
    engine.send([stored("FS")], [stored("cpu:0")])
    engine.restart_bridge()
    engine.send([settling("fs")])
    assert engine.is_held, "on the other tier"
    engine.send([settling("CPU")])
    assert (engine.is_held, engine.is_degraded, engine.dropped) == (False, False, {})


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("one", "other"), [("FS", "OBJ"), ("CPU", "cpu_pinned")])
def test_what_it_says_of_one_of_two_names_degrades_it_until_it_clears(
    engine: Engine, settling: Any, one: str, other: str, restarts: bool
) -> None:
    engine.send([stored(one)], [stored(other)], [stored()])
    if restarts:
        engine.restart_bridge()
    engine.send([settling(one)])
    assert engine.is_degraded
    assert engine.dropped == {DropReason.SHARED_TIER: 1}
    engine.send([ALL])
    engine.send([stored(one)], [settling(one)])
    assert (engine.is_held, engine.is_degraded) == (False, False)


def test_what_it_says_of_a_name_that_it_does_not_use_degrades_it_too(
    engine: Engine, settling: Any
) -> None:
    engine.send([stored("FS")], [settling("OBJ")])
    assert engine.is_degraded


def test_within_one_message_likewise(engine: Engine, settling: Any) -> None:
    engine.send([stored("FS"), stored("OBJ"), settling("FS")])
    assert engine.is_degraded


def test_plain_removals_are_counted_by_copies(engine: Engine) -> None:
    engine.send([stored("FS")], [stored("OBJ")], [removed("FS")])
    assert (engine.is_held, engine.is_degraded) == (True, False)
    engine.send([removed("OBJ")])
    assert (engine.is_held, engine.is_degraded, engine.dropped) == (False, False, {})


def test_another_run_of_the_engine_has_used_no_name(engine: Engine) -> None:
    engine.send([stored("FS")], [stored("OBJ")])
    assert engine.state.media == media_bit("FS") | media_bit("OBJ")
    cleared = msgspec.msgpack.encode([9.5, [stored("FS"), SETTLING["clear"]("FS")], 0])
    engine.send_payloads(cleared, at=0)
    assert (engine.state.incarnation, engine.state.media) == (2, media_bit("FS"))
    assert not engine.is_degraded


def test_blocks_that_are_left_out_are_of_their_medium(engine: Engine) -> None:
    engine.send([stored("FS")], [dict(stored("OBJ", block=9), later=1)])
    assert engine.state.media == media_bit("FS") | media_bit("OBJ")


REMOTE = {"locality": "REMOTE", "medium": "CPU"}


@pytest.mark.parametrize(
    ("clear", "is_told"),
    [(ALL, True), (SETTLING["clear"]("CPU"), True), (SETTLING["clear"]("GPU"), False)],
    ids=["all", "of its tier", "of another tier"],
)
def test_what_it_has_stored_for_all_instances_is_not_known_behind_its_clear(
    engine: Engine, clear: Any, is_told: bool
) -> None:
    engine.send([stored()], [dict(stored(), **REMOTE)])
    assert engine.state.media & (SHARES | POOL_CLEARED) == SHARES
    engine.restart_bridge()
    engine.send([clear])
    assert bool(engine.state.media & POOL_CLEARED) is is_told
    engine.restart_bridge()
    engine.send([dict(stored(), **REMOTE)])
    assert bool(engine.state.media & POOL_CLEARED) is is_told, "others are missing yet"


def test_nor_is_it_behind_its_end(engine: Engine) -> None:
    engine.send([stored()], [dict(stored(), **REMOTE)])
    engine.send_payloads(msgspec.msgpack.encode([9.5, [stored()], 0]), at=0)
    assert engine.state.incarnation == 2
    assert engine.state.media == SHARES | POOL_CLEARED
    assert Anchor.of(engine.state) == engine.sequencer[engine.key].stream.anchor


def test_an_engine_that_stores_for_itself_may_clear(engine: Engine) -> None:
    engine.send([stored("CPU")], [ALL], [stored()], [SETTLING["tier"]("CPU")])
    assert not engine.state.media & (SHARES | POOL_CLEARED)


TIERS_CLEARED = {"CPU": CPU_CLEARED, "cpu_pinned": CPU_CLEARED, "STORAGE": DISK_CLEARED}


@pytest.mark.parametrize("medium", TIERS_CLEARED)
def test_what_it_had_beside_its_gpu_may_be_there_behind_a_clear(
    engine: Engine, medium: str
) -> None:
    engine.send([stored()], [stored(medium)])
    engine.restart_bridge()
    engine.send([ALL])
    engine.send([stored()])
    engine.restart_bridge()
    engine.send([SETTLING["tier"]("GPU")], [stored(medium)])
    assert (engine.doubt, engine.is_degraded) == (Doubt.TIERS_CLEARED, False)
    assert engine.state.media & (CPU_CLEARED | DISK_CLEARED) == TIERS_CLEARED[medium]
    engine.send([SETTLING["tier"](medium)])
    assert engine.doubt == ""


@pytest.mark.parametrize(
    ("medium", "clears", "is_told"),
    [
        ("CPU", True, False),
        ("CPU", False, False),
        ("DISK", False, True),
        ("DISK", True, True),
        ("STORAGE", False, True),
        ("fs", False, True),
        ("OBJ:0", False, True),
        ("EXTERNAL", False, True),
    ],
)
@pytest.mark.parametrize("kind", [vllm.KIND, sglang.KIND])
def test_what_is_in_storage_may_outlive_the_process(
    packer: ArrayPacker, kind: PublisherKind, medium: str, clears: bool, is_told: bool
) -> None:
    engine = Engine(packer, registration(kind=kind))
    engine.send([stored()], [stored(medium)], *([[ALL]] * clears))
    for at in (9.5, 10.5):
        engine.send_payloads(msgspec.msgpack.encode([at, [stored()], 0]), at=0)
        assert (engine.doubt == Doubt.TIERS_CLEARED) is is_told
    assert engine.state.incarnation == 3
    assert Anchor.of(engine.state) == engine.sequencer[engine.key].stream.anchor


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize(
    ("sent", "due"),
    [
        ([[stored("CPU")], [ALL]], CPU_CLEARED),
        ([[stored("STORAGE")], [ALL]], DISK_CLEARED),
        ([[{**stored("STORAGE"), "locality": "REMOTE"}], [ALL]], POOL_CLEARED),
        ([[{**stored("STORAGE"), "locality": "REMOTE"}]], POOL_CLEARED),
        ([[{**removed("STORAGE"), "locality": "REMOTE"}]], POOL_CLEARED),
    ],
    ids=["CPU", "DISK", "pool", "stored in a pool", "removed from a pool"],
)
def test_a_registration_that_replaces_one_of_the_same_engine_ends_no_doubt(
    engine: Engine, sent: list[list[Any]], due: int, continues: bool
) -> None:
    engine.fold.apply(Offset(0), encode_record(RegisteredRecord.of(engine.registration, 1.0)))
    engine._offset = 1
    engine.send([stored()], *sent)
    engine.register_again(continues=continues)
    for _ in range(2):
        engine.send([ALL], [stored()])
        assert bool(engine.state.media & due) is continues
        assert engine.fold.kernel.contexts() != []
        engine.restart_bridge()


@pytest.mark.parametrize("continues", [True, False])
def test_nor_is_a_hybrid_model_another_one(engine: Engine, continues: bool) -> None:
    engine.send([{**stored(), "group_idx": 1, "kv_cache_spec_kind": "mamba"}])
    engine.register_again(continues=continues)
    engine.send([stored()], [ALL])
    assert engine.state.sparse_blocks == (0 if continues else None)


def chain(*hashes: int, **fields: object) -> Any:
    """A prompt, on the GPU."""
    of = {"block_hashes": hashes, "parent_block_hash": None, "token_ids": TOKENS * len(hashes)}
    return map_event("BlockStored", **(of | {"block_size": 4} | fields))


def offloaded(*hashes: int, **fields: object) -> Any:
    """As vLLM names what it has offloaded, with nothing else."""
    of: dict[str, object] = {"block_hashes": hashes, "parent_block_hash": None, "token_ids": []}
    return map_event("BlockStored", **(of | {"medium": "CPU", "block_size": 0} | fields))


def test_what_is_offloaded_may_be_chunks_until_one_is_the_first_of_a_prompt(engine: Engine) -> None:
    engine.send([chain(1, 2, 3, 4)])
    assert engine.doubt == ""
    engine.send([offloaded(2, 4)])
    assert (engine.doubt, engine.is_degraded) == (Doubt.CHUNKS_UNKNOWN, False)
    engine.restart_bridge()
    engine.send([chain(5, 6)], [offloaded(4)], [removed("CPU")])
    assert engine.doubt == Doubt.CHUNKS_UNKNOWN
    engine.send([offloaded(6, 5)])
    assert engine.doubt == ""
    engine.restart_bridge()
    engine.send([offloaded(4)], [ALL], [SETTLING["tier"]("CPU")], [chain(1, 2)], [offloaded(2)])
    assert engine.doubt == ""
    engine.send_payloads(msgspec.msgpack.encode([9.5, [chain(1, 2)], 0]), at=0)
    engine.send([offloaded(2)])
    assert (engine.state.incarnation, engine.doubt) == (2, Doubt.CHUNKS_UNKNOWN)


@pytest.mark.parametrize("together", [True, False])
def test_who_offloads_single_blocks_is_never_taken_for_one_of_chunks(
    engine: Engine, together: bool
) -> None:
    batches = [[chain(1, 2)], [offloaded(1)], [offloaded(2)]]
    if together:
        engine.send(*batches)
    else:
        for events in batches:
            engine.send(events)
    assert engine.doubt == ""
    other = Engine(engine.packer)
    other.send([chain(1, 2), offloaded(1)])
    assert other.doubt == ""


@pytest.mark.parametrize(
    "stores",
    [
        chain(1, kv_cache_spec_kind="sliding_window"),  # has some blocks of a prompt
        chain(1, parent_block_hash=9),
        chain(1, medium="CPU", extra_keys=[None]),
        chain(1, block_size=8),
    ],
)
def test_what_may_not_begin_a_prompt_shows_nothing(engine: Engine, stores: Any) -> None:
    engine.send([chain(9, 8)], [stores], [offloaded(1)])
    assert engine.state.may_have_chunks


@pytest.mark.parametrize(
    "named",
    [
        offloaded(2, block_size=4),
        offloaded(2, medium=None),
        offloaded(2, locality="REMOTE"),
        offloaded(2, kv_cache_spec_kind="mamba"),
    ],
)
def test_what_says_its_size_or_is_on_no_tier_of_its_own_is_no_chunk(
    engine: Engine, named: Any
) -> None:
    engine.send([chain(1, 2)], [named])
    assert not engine.state.may_have_chunks


def test_chunks_are_of_vllm(packer: ArrayPacker) -> None:
    engine = Engine(packer, registration(kind=sglang.KIND))
    engine.send([chain(1, 2)], [offloaded(2)])
    assert not engine.state.may_have_chunks


@pytest.mark.parametrize("medium", ["cpu", "FS"])
def test_what_is_stored_elsewhere_by_its_tokens_may_be_gone_unless_some_is_seen_to_go(
    engine: Engine, medium: str
) -> None:
    """Connectors of LMCache and Mooncake never say what is gone."""
    engine.send([chain(1, 2)], [removed(medium)], [offloaded(1, 2, medium=medium)])
    assert engine.doubt == ""
    named = chain(1, 2, medium=medium, extra_keys=None)
    engine.send([named])
    assert (engine.doubt, engine.is_degraded) == (Doubt.NEVER_REMOVED, False)
    engine.restart_bridge()
    engine.send([chain(7)], [removed("GPU")])
    assert engine.doubt == Doubt.NEVER_REMOVED
    engine.send([removed(medium)])
    assert engine.doubt == ""
    engine.restart_bridge()
    engine.send([named])
    assert engine.doubt == ""
    engine.send_payloads(msgspec.msgpack.encode([9.5, [chain(1, 2), named], 0]), at=0)
    assert engine.state.never_removes


@pytest.mark.parametrize(
    ("fields", "stored", "is_doubted"),
    [
        ({"kv_offloading": "lmcache"}, {"medium": "cpu"}, True),
        ({"kv_offloading": "native"}, {"medium": "cpu"}, False),
        ({"kind": sglang.KIND}, {"medium": "cpu"}, False),
        ({}, {"medium": "cpu", "locality": "REMOTE"}, False),
        ({}, {"medium": None}, False),
    ],
    ids=["lmcache", "native", "sglang", "pool", "gpu"],
)
def test_who_says_what_is_gone_is_not_doubted(
    packer: ArrayPacker, fields: Any, stored: Any, is_doubted: bool
) -> None:
    of = {"kind": vllm.KIND} | fields
    engine = Engine(packer, msgspec.structs.replace(registration(), **of))
    engine.send([chain(1, 2)], [chain(1, 2, extra_keys=None, **stored)])
    assert engine.state.never_removes is is_doubted


def test_an_engine_that_has_used_its_gpu_alone_has_cleared_all(engine: Engine) -> None:
    engine.send([stored("GPU")], [ALL], [stored("CPU")])
    assert (engine.doubt, engine.state.media) == ("", media_bit("CPU"))


def test_other_engines_clear_their_cpu_with_all_else(packer: ArrayPacker) -> None:
    engine = Engine(packer, registration(kind=sglang.KIND))
    engine.send([stored("CPU")], [ALL])
    assert (engine.doubt, engine.state.media) == ("", 0)


@pytest.mark.parametrize("medium", ["DISK", "EXTERNAL"])
def test_a_flush_of_sglang_leaves_its_storage(packer: ArrayPacker, medium: str) -> None:
    engine = Engine(packer, registration(kind=sglang.KIND))
    engine.send([stored()], [stored("CPU")], [stored(medium)], [ALL])
    assert (engine.doubt, engine.state.media) == (Doubt.TIERS_CLEARED, DISK_CLEARED)
    engine.send([SETTLING["tier"](medium)])
    assert engine.doubt == ""


def test_a_pool_that_clears_or_ends_has_nothing_left(packer: ArrayPacker) -> None:
    pool = Engine(packer, registration(kind=mooncake.KIND))
    event = {"event_id": 1, "tenant_id": "default", "backend_id": "b", "medium": "disk"}
    stored = {**event, "event_type": "stored", "object_key": "17"}
    cleared = {"event_type": "cleared", "event_id": 2, "tenant_id": "default"}
    for number, time_ms in ((1, 1000), (1, 2000)):
        pool.send_payloads(msgspec.msgpack.encode([time_ms, [stored], 0]), at=number)
        assert pool.state.media == 0
    pool.send_payloads(msgspec.msgpack.encode([3000, [cleared], 0]), at=2)
    assert (pool.state.incarnation, pool.doubt) == (2, "")


def test_names_of_storage_are_known_by_their_bits() -> None:
    assert TIERS[1] == OUTLIVING
    assert not (CPU_CLEARED | DISK_CLEARED | SHARES | POOL_CLEARED) & ((1 << len(MEDIA)) - 1)


@pytest.mark.parametrize("field", [{"locality": "REMOTE"}, {"group_idx": 1}])
def test_a_clear_that_may_have_meant_less_degrades(engine: Engine, field: dict[str, Any]) -> None:
    engine.send([stored()], [{**SETTLING["clear"]("GPU"), **field}])
    assert (engine.is_held, engine.is_degraded) == (False, True)
    engine.send([ALL])
    assert not engine.is_degraded


def tiered(kind: str, tier: str, number: int) -> bytes:
    tokens = xxh3_64_intdigest(struct.pack("<4I", *TOKENS), seed=1337)
    blocks = [{"block_hash": 7, "tokens_hash": tokens}]
    said: dict[str, Any] = {"blocks": blocks} if kind == "stored" else {"block_hashes": [7]}
    event = {"event_id": number, "dp_rank": 0, "data": {kind: said}}
    return json.dumps([{"worker_id": 42, "storage_tier": tier, "event": event}]).encode()


@pytest.mark.parametrize("tier", ["disk", "external", "host_pinned", "device"])
def test_a_worker_of_dynamo_that_uses_one_name_of_a_tier_is_exact(tier: str) -> None:
    engine = Engine(PythonArrayPacker(), registration(kind=dynamo.KIND))
    engine.send_payloads(tiered("stored", tier, 1), tiered("stored", tier, 2))
    engine.restart_bridge()
    engine.send_payloads(tiered("removed", tier, 3))
    assert (engine.is_held, engine.is_degraded, engine.dropped) == (False, False, {})


def test_a_removal_of_dynamo_from_one_of_two_names_is_not_taken_for_all() -> None:
    engine = Engine(PythonArrayPacker(), registration(kind=dynamo.KIND))
    engine.send_payloads(tiered("stored", "disk", 1), tiered("stored", "external", 2))
    assert (engine.is_held, engine.is_degraded) == (True, False)
    engine.send_payloads(tiered("removed", "disk", 3))
    assert engine.is_degraded
    assert engine.dropped == {DropReason.SHARED_TIER: 1}


def test_every_name_of_a_tier_that_has_several_has_a_bit_of_its_own() -> None:
    bits = [media_bit(name) for name in MEDIA]
    assert bits == [1 << place for place in range(len(MEDIA))]
    assert media_bit(None) == media_bit("GPU") == media_bit("tape") == 0
    for name in MEDIA:
        (tier,) = [one for one in TIERS if one & media_bit(name)]
        assert all(medium_of(one) is medium_of(name) for one in media_of(tier).split(", "))
        assert medium_of(name) is not Medium.GPU
