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
    SAYS_ALL_GONE,
    SHARES,
    Confirmation,
    PublisherState,
    never_taken_back,
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
        self.sequencer[self.key].set_anchor(Anchor.of(self.state))

    def register_again(self, *, continues: bool) -> None:
        """Another registration replaces the one that there is, as the registrar does it."""
        gone = UnregisteredRecord.of(self.key, 1.0, continues=continues)
        for record in (gone, RegisteredRecord.of(self.registration, 1.0)):
            assert self.fold.apply(Offset(self._offset), encode_record(record)) is None
            self._offset += 1
        self._begin()
        if self.key in self.fold.publishers:
            self.sequencer[self.key].set_anchor(Anchor.of(self.state))

    def send_all(self, batches: list[list[Any]], *, together: bool) -> None:
        """Messages that come together, or each to a bridge of its own."""
        if together:
            self.send(*batches)
            return
        for events in batches:
            self.send(events)
            self.restart_bridge()

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
        return self.doubt_of()

    def doubt_of(self, **said: Any) -> str:
        """The same, where its registration says this, too."""
        states = ScopeStates()
        states.register(self.key, True, msgspec.structs.replace(self.registration, **said))
        state = msgspec.structs.replace(self.state, confirmation=Confirmation("bridge"))
        states.put(self.key, state)
        standing = states.standing(self.key, {ConfirmationSource(0, "bridge"): 9.0}, 1.0)
        return standing.reason

    @property
    def never_removes(self) -> bool:
        """Whether its stream has never said that a block is gone from a tier."""
        return never_taken_back(self.state.media)

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.sequencer.counters()[self.key].dropped)

    @property
    def is_held(self) -> bool:
        scope = PrefixScope("default", "m", "", 4, "")
        matches = self.fold.kernel.query(scope, struct.pack("<4I", *TOKENS), (), None)
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
    assert engine.doubt == due
    engine.restart_bridge()
    engine.send([ALL])
    assert engine.doubt == due
    engine.send_payloads(msgspec.msgpack.encode([9.5, [stored()], 0]), at=0)
    assert (engine.state.incarnation, engine.doubt) == (2, due)
    assert Anchor.of(engine.state) == engine.sequencer[engine.key].stream.anchor


def tree(packer: ArrayPacker) -> Engine:
    """A TensorRT-LLM engine that reuses whole blocks alone."""
    of = registration(kind=trtllm.KIND)
    engine = Engine(packer, msgspec.structs.replace(of, kv_partial_reuse="none"))
    engine.fold.apply(Offset(0), encode_record(RegisteredRecord.of(engine.registration, 1.0)))
    engine._offset = 1
    return engine


def of_api(number: int, kind: str, **fields: object) -> bytes:
    tokens = [{"token_id": token} for token in TOKENS]
    said: dict[str, Any] = {"parent_hash": None, "blocks": [{"block_hash": 7, "tokens": tokens}]}
    data = {"type": kind, **(said if kind == "stored" else {"block_hashes": [7]})}
    return json.dumps({"event_id": number, "data": data, **fields}).encode()


def test_a_tree_that_stores_again_what_it_holds_had_dropped_it_without_a_word(
    packer: ArrayPacker,
) -> None:
    """As by `reset_prefix_cache`, which begins another tree."""
    engine = tree(packer)
    number = 0

    def send(*kinds: str) -> None:
        nonlocal number
        for kind in kinds:
            engine.send_payloads(of_api(number, kind))
            number += 1

    send("stored", "removed", "stored")
    assert (engine.doubt, engine.is_held) == ("", True), "evicted and computed again"
    send("stored")
    assert (engine.doubt, engine.is_held) == (Doubt.PARTIAL_REUSE, True)
    engine.restart_bridge()
    send("removed")
    assert (engine.doubt, engine.is_held) == (Doubt.PARTIAL_REUSE, False)
    send("stored", "removed")
    assert (engine.doubt, engine.is_held) == (Doubt.PARTIAL_REUSE, False)
    engine.send_payloads(msgspec.msgpack.encode([9.5, [ALL, stored()], 0]), at=0)
    assert (engine.state.incarnation, engine.doubt, engine.is_held) == (2, "", True)


def test_groups_of_layers_of_one_window_hold_a_block_each(packer: ArrayPacker) -> None:
    engine = tree(packer)
    for number, group in enumerate((0, 1)):
        engine.send_payloads(of_api(number, "stored", layer_group_id=group))
    engine.send_payloads(of_api(2, "removed", layer_group_id=0))
    assert (engine.doubt, engine.is_held) == ("", True)


def test_a_tree_that_moves_its_blocks_between_levels_is_exact(packer: ArrayPacker) -> None:
    engine = tree(packer)
    engine.send_payloads(of_api(0, "stored"))
    for number, (old, new) in enumerate(((0, 1), (1, 0), (0, 1)), 1):
        level = {"old_value": old, "new_value": new}
        data = {"type": "updated", "block_hash": 7, "cache_level": level}
        engine.send_payloads(json.dumps({"event_id": number, "data": data}).encode())
        assert (engine.doubt, engine.is_held) == ("", True)
    engine.send_payloads(of_api(4, "removed"))
    assert (engine.doubt, engine.is_held) == ("", False)


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
    """Connectors of LMCache and Mooncake never say what is gone, nor do vLLM's tiers of files, of
    which a name is enough.
    """
    engine.send([chain(1, 2)], [removed(medium)])
    engine.send([offloaded(1, 2, medium=medium)])
    assert engine.doubt == (Doubt.NEVER_REMOVED if medium == "FS" else "")
    named = chain(1, 2, medium=medium, extra_keys=None)
    engine.send([named])
    assert (engine.doubt, engine.is_degraded) == (Doubt.NEVER_REMOVED, False)
    engine.restart_bridge()
    engine.send([chain(7)], [removed("GPU")])
    assert engine.doubt == Doubt.NEVER_REMOVED
    engine.send([removed(medium)])
    for _ in range(2):
        # Of files others beside may not: all of it is said where its operator says so.
        assert engine.doubt == (Doubt.NEVER_REMOVED if medium == "FS" else "")
        assert engine.doubt_of(kv_offloading="native") == ""
        engine.restart_bridge()
        engine.send([named])
    engine.send_payloads(msgspec.msgpack.encode([9.5, [chain(1, 2), named], 0]), at=0)
    assert engine.never_removes


@pytest.mark.parametrize(
    ("fields", "stored", "is_doubted"),
    [
        ({"kv_offloading": "lmcache"}, {"medium": "cpu"}, True),
        ({"kv_offloading": "native"}, {"medium": "cpu"}, False),
        ({"kind": sglang.KIND}, {"medium": "cpu"}, False),
        ({"kv_offloading": "native"}, {"medium": "FS"}, True),
        ({}, {"medium": "cpu", "locality": "REMOTE"}, True),
        ({}, {"medium": "FS", "extra_keys": [None]}, False),
        ({"kind": sglang.KIND}, {"medium": "FS"}, False),
        ({}, {"medium": None}, False),
    ],
    ids=["lmcache", "native", "sglang", "files", "pool", "keys", "sglang files", "gpu"],
)
def test_who_says_what_is_gone_is_not_doubted(
    packer: ArrayPacker, fields: Any, stored: Any, is_doubted: bool
) -> None:
    of = {"kind": vllm.KIND} | fields
    engine = Engine(packer, msgspec.structs.replace(registration(), **of))
    engine.send([chain(1, 2)], [chain(1, 2, **{"extra_keys": None, **stored})])
    assert engine.never_removes is is_doubted


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("fields", [{}, {"locality": "REMOTE"}], ids=["own", "shared"])
@pytest.mark.parametrize("first", ["CPU", "STORAGE", "OBJ", "EXTERNAL"])
@pytest.mark.parametrize("described", [True, False])
def test_what_goes_from_one_tier_says_nothing_of_another(
    engine: Engine, first: str, fields: Any, described: bool, together: bool
) -> None:
    """vLLM's tiered offloading evicts from its CPU, and never says what its files become."""
    stores = [chain, offloaded][not described]
    batches = [
        [chain(1, 2)],
        [stores(1, 2, medium="CPU"), stores(1, 2, medium=first, **fields)],
        [stores(1, 2, medium="fs", **fields)],
        [removed("CPU"), removed(first, **fields), removed("GPU")],
    ]
    engine.send_all(batches, together=together)
    assert engine.never_removes
    engine.send([stores(1, medium="FS", **fields)], [removed("fs:0", **fields)])
    engine.restart_bridge()
    assert not engine.never_removes
    engine.send([stores(1, medium="DISK")])
    assert engine.never_removes


def test_nor_does_what_vllm_takes_back_of_what_a_connector_beside_it_has_stored(
    engine: Engine,
) -> None:
    """Both are on the CPU; vLLM spells that in capitals."""
    engine.send([chain(1, 2)], [offloaded(1, 2), chain(1, 2, medium="cpu")], [removed("CPU")])
    assert engine.doubt == Doubt.NEVER_REMOVED
    engine.restart_bridge()
    engine.send([chain(1, 2, medium="CPU")], [removed("CPU")])
    assert engine.doubt == Doubt.NEVER_REMOVED
    engine.send([removed("cpu")])
    assert engine.doubt == ""


OWNED = {"ownership": "some-tier"}
KVCR = {"ownership": "kvcr"}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize(
    ("one", "other"),
    [({}, OWNED), (OWNED, {}), (OWNED | {"locality": "LOCAL"}, {"locality": "REMOTE"})],
    ids=["owned beside plain", "plain beside owned", "owned beside shared"],
)
def test_what_one_owner_takes_back_says_nothing_of_another_by_the_same_name(
    engine: Engine, one: Any, other: Any, described: bool, together: bool
) -> None:
    """A list of tiers of vLLM's offloading (0.30 to 0.32): one says what it evicts, files do not,
    and both are STORAGE.
    """
    stores = [chain, offloaded][not described]
    batches = [
        [chain(1, 2), stores(1, medium="STORAGE", **other)],
        [stores(2, medium="STORAGE", **one)],
        [removed("STORAGE", **one), removed("CPU")],
    ]
    engine.send_all(batches, together=together)
    assert engine.never_removes
    engine.send([removed("STORAGE", **other)])
    engine.restart_bridge()
    assert not engine.never_removes


@pytest.mark.parametrize("medium", ["CPU", "STORAGE"])
def test_an_owner_that_takes_back_what_it_has_stored_is_exact(engine: Engine, medium: str) -> None:
    engine.send([chain(1, 2)], [chain(1, 2, medium=medium, **OWNED)], [removed(medium)])
    assert engine.doubt == Doubt.NEVER_REMOVED
    engine.send([removed(medium, ownership=None)], [removed(medium, **OWNED)], [chain(3)])
    assert engine.doubt == ""


@pytest.mark.parametrize("locality", [None, "LOCAL"])
@pytest.mark.parametrize("medium", ["CPU", "STORAGE"])
def test_a_set_is_exact_from_its_first_block_on_and_doubted_behind_a_clear(
    engine: Engine, medium: str, locality: Any
) -> None:
    """KVCR says of each of its blocks that it is gone; but what was lost of them, a clear of its
    engine does not drop.
    """
    alone = {"medium": medium, "locality": locality, **KVCR}
    engine.send([chain(1, 2)], [chain(1, **alone)], [chain(2, **alone)])
    engine.restart_bridge()
    assert engine.doubt == ""
    engine.send([{"type": "AllBlocksCleared"}], [chain(3)])
    assert engine.doubt == Doubt.TIERS_CLEARED
    engine.restart_bridge()
    engine.send([{"type": "TierBlocksCleared", "medium": "CPU"}], [chain(4)])
    assert engine.doubt == Doubt.TIERS_CLEARED


def test_a_set_of_chunks_is_doubted_until_its_engine_restarts(engine: Engine) -> None:
    """vLLM 0.33 forgets what is in them (`OffloadingEventsTracker.reset`), and a reset under load
    shows no clear.
    """
    engine.send([chain(1, 2)], [chain(1, 2, medium="CPU", **KVCR)], [removed("CPU", **KVCR)])
    engine.restart_bridge()
    assert engine.doubt == Doubt.NEVER_REMOVED
    engine.send([{"type": "AllBlocksCleared"}], [chain(3)])
    assert engine.doubt == Doubt.TIERS_CLEARED


@pytest.mark.parametrize("medium", ["CPU", "STORAGE"])
def test_what_goes_from_a_set_says_nothing_of_the_tier_beside_it(
    engine: Engine, medium: str
) -> None:
    engine.send([chain(1, 2)], [chain(1, 2, medium=medium)], [chain(1, 2, medium=medium, **KVCR)])
    engine.send([removed(medium, **KVCR)])
    assert engine.doubt == Doubt.NEVER_REMOVED


@pytest.mark.parametrize("locality", [None, "LOCAL", "REMOTE"])
def test_files_beside_a_disk_that_takes_back_are_doubted(engine: Engine, locality: Any) -> None:
    """SimpleCPUOffloadConnector's disk and vLLM's tier of files name no owner, and both are
    STORAGE, and may both be LOCAL.
    """
    own = {"medium": "STORAGE", "locality": "LOCAL"}
    engine.send([chain(1, 2)], [offloaded(1, medium="STORAGE", locality=locality)])
    engine.send([offloaded(2, **own)], [removed(**own)])
    engine.restart_bridge()
    engine.send([removed(**own)])
    assert engine.doubt == Doubt.NEVER_REMOVED


def test_what_goes_from_its_own_storage_says_nothing_of_that_of_all_instances(
    engine: Engine,
) -> None:
    """Both are STORAGE: a disk of SimpleCPUOffloadConnector beside files on a volume."""
    shared = {"medium": "STORAGE", "locality": "REMOTE"}
    engine.send([chain(1, 2)], [offloaded(1, **shared), offloaded(2, medium="STORAGE")])
    engine.send([removed("STORAGE")])
    engine.restart_bridge()
    assert engine.never_removes
    engine.send([removed(**shared)])
    assert not engine.never_removes


def test_what_vllm_evicts_from_its_cpu_says_nothing_of_lmcaches_there(packer: ArrayPacker) -> None:
    """LMCache's MP connector spells it as vLLM's own offloading does, which names no size."""
    of = msgspec.structs.replace(registration(), kv_offloading="lmcache")
    engine, alone = Engine(packer, of), Engine(packer, of)
    for one in (engine, alone):
        one.send([chain(1, 2)])
        assert one.doubt == Doubt.NEVER_REMOVED, "its server may have what others stored there"
        one.send([chain(8, 9, medium="CPU")])
        assert one.doubt == Doubt.NEVER_REMOVED
    engine.send([offloaded(1, 2)], [removed("CPU")], [chain(3)])
    engine.restart_bridge()
    engine.send([removed("CPU")])
    assert engine.doubt == Doubt.NEVER_REMOVED
    alone.send([removed("CPU")])
    assert alone.doubt == Doubt.NEVER_REMOVED, "it withdraws what it no longer follows"


def test_vllms_own_offloading_to_its_cpu_is_exact(packer: ArrayPacker) -> None:
    for fields, stores in (({"kv_offloading": "native"}, chain), ({}, offloaded)):
        engine = Engine(packer, msgspec.structs.replace(registration(), **fields))
        engine.send([chain(1, 2)], [stores(1, 2, medium="CPU")])
        assert engine.doubt == ""
        engine.send([removed("CPU")], [chain(3)])
        assert engine.doubt == ""


def test_a_state_of_an_older_version_goes_on_as_it_was(engine: Engine) -> None:
    """Which knows one bit for all tiers."""
    assert never_taken_back(1 << 4 | 1 << 14)
    assert not never_taken_back(1 << 4 | 1 << 14 | 1 << 15)
    assert not never_taken_back(1 << 4)


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
    of = registration(kind=mooncake.KIND)
    pool = Engine(packer, msgspec.structs.replace(of, kv_offloading="native"))
    event = {"event_id": 1, "tenant_id": "default", "backend_id": "b", "medium": "disk"}
    stored = {**event, "event_type": "stored", "object_key": "17"}
    cleared = {"event_type": "cleared", "event_id": 2, "tenant_id": "default"}
    for number, time_ms in ((1, 1000), (1, 2000)):
        pool.send_payloads(msgspec.msgpack.encode([time_ms, [stored], 0]), at=number)
        assert pool.state.media == 0
    pool.send_payloads(msgspec.msgpack.encode([3000, [cleared], 0]), at=2)
    assert (pool.state.incarnation, pool.doubt) == (2, "")
    of_conductor = {**stored, "event_id": 3, "connector_block_hash": "00" * 7 + "17"}
    later = {**of_conductor, "event_id": 5, "later": 1}
    for number, events in ((3, [of_conductor]), (4, [{**cleared, "event_id": 4}]), (5, [later])):
        pool.send_payloads(msgspec.msgpack.encode([3000, events, 0]), at=number)
        assert pool.state.media == SAYS_ALL_GONE


def test_names_of_storage_are_known_by_their_bits() -> None:
    assert TIERS[1] == OUTLIVING
    assert not (CPU_CLEARED | DISK_CLEARED | SHARES | POOL_CLEARED) & ((1 << len(MEDIA)) - 1)


@pytest.mark.parametrize("field", [{"locality": "REMOTE"}, {"group_idx": 1}])
def test_a_clear_that_may_have_meant_less_degrades(engine: Engine, field: dict[str, Any]) -> None:
    engine.send([stored()], [{**SETTLING["clear"]("GPU"), **field}])
    assert (engine.is_held, engine.is_degraded) == (False, True)
    engine.send([ALL])
    assert not engine.is_degraded


WORKER = msgspec.structs.replace(
    registration(kind=dynamo.KIND), kv_cache_groups="one", kv_partial_reuse="none"
)
"""Of Dynamo, in front of an engine that hides nothing."""


def tiered(kind: str, tier: str, number: int) -> bytes:
    tokens = xxh3_64_intdigest(struct.pack("<4I", *TOKENS), seed=1337)
    blocks = [{"block_hash": 7, "tokens_hash": tokens}]
    said: dict[str, Any] = {"blocks": blocks} if kind == "stored" else {"block_hashes": [7]}
    data: Any = "cleared" if kind == "cleared" else {kind: said}
    data = {"stored": {"parent_hash": None, "blocks": []}} if kind == "empty" else data
    event = {"event_id": number, "dp_rank": 0, "data": data}
    return json.dumps([{"worker_id": 42, "storage_tier": tier, "event": event}]).encode()


@pytest.mark.parametrize("tier", ["disk", "external", "host_pinned", "device"])
def test_a_worker_of_dynamo_that_uses_one_name_of_a_tier_is_exact(tier: str) -> None:
    engine = Engine(PythonArrayPacker(), WORKER)
    engine.send_payloads(tiered("stored", tier, 1), tiered("stored", tier, 2))
    engine.restart_bridge()
    engine.send_payloads(tiered("removed", tier, 3))
    assert (engine.is_held, engine.is_degraded, engine.dropped) == (False, False, {})


@pytest.mark.parametrize(
    ("tier", "due"),
    [("host_pinned", CPU_CLEARED), ("disk", DISK_CLEARED), ("external", DISK_CLEARED), ("", 0)],
)
def test_a_clear_that_dynamo_passes_on_may_be_of_the_gpu_alone(tier: str, due: int) -> None:
    """vLLM's is; and the worker does not say which engine it is of."""
    engine = Engine(PythonArrayPacker(), WORKER)
    engine.send_payloads(tiered("stored", "device", 1), tiered("stored", tier or "device", 2))
    engine.restart_bridge()
    engine.send_payloads(tiered("cleared", "device", 3), tiered("stored", "device", 4))
    assert engine.doubt == (Doubt.TIERS_CLEARED if due else "")
    assert engine.state.media & (CPU_CLEARED | DISK_CLEARED) == due


@pytest.mark.parametrize("tier", ["host_pinned", "disk", "external"])
def test_what_an_engine_behind_dynamo_never_takes_back_may_be_gone(tier: str) -> None:
    engine = Engine(PythonArrayPacker(), WORKER)
    engine.send_payloads(tiered("stored", "device", 1), tiered("removed", "device", 2))
    assert engine.doubt == ""
    other = "disk" if tier == "host_pinned" else "host_pinned"
    engine.send_payloads(tiered("stored", tier, 3), tiered("stored", other, 4))
    engine.send_payloads(tiered("removed", other, 5))
    assert engine.doubt == Doubt.NEVER_REMOVED
    engine.send_payloads(tiered("removed", tier, 6), tiered("stored", tier, 7))
    engine.restart_bridge()
    engine.send_payloads(tiered("stored", "device", 8), tiered("stored", "device", 9))
    # It may be LMCache's connector, or files beside what takes back.
    assert (engine.doubt, engine.is_held) == (Doubt.NEVER_REMOVED, True)
    assert engine.doubt_of(kv_offloading="native") == ""


@pytest.mark.parametrize("tier", ["host_pinned", "disk", "external"])
@pytest.mark.parametrize("is_named", [True, False], ids=["empty store", "removal alone"])
def test_a_tier_of_which_dynamo_keeps_the_blocks_back_is_not_told(
    tier: str, is_named: bool
) -> None:
    """vLLM offloads by names alone, which are published as a store without blocks."""
    engine = Engine(PythonArrayPacker(), WORKER)
    engine.send_payloads(tiered("stored", "device", 1), tiered("empty", "device", 2))
    assert engine.doubt == ""
    first = "empty" if is_named else "removed"
    engine.send_payloads(tiered(first, tier, 3))
    engine.restart_bridge()
    assert engine.doubt == Doubt.CHUNKS_UNKNOWN
    engine.send_payloads(tiered("removed", tier, 4), tiered("removed", "device", 5))
    assert (engine.doubt, engine.is_held) == (Doubt.CHUNKS_UNKNOWN, False)
    engine.send_payloads(tiered("stored", "device", 6), tiered("cleared", "device", 7))
    assert engine.doubt == Doubt.CHUNKS_UNKNOWN


def test_a_removal_of_dynamo_from_one_of_two_names_is_not_taken_for_all() -> None:
    engine = Engine(PythonArrayPacker(), WORKER)
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
