"""What vLLM and SGLang send of blocks that are not plain, and what a query finds of it then."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from bridge.wire import open_source
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.errors import WireError
from schemas.events import encode_events, extra_key
from schemas.identities import PrefixScope, StreamKey
from schemas.registration import KvOffloading, PublisherKind, ReportMode
from streams.kernel import Kernel, array_packer, open_kernel
from streams.kernel.interface import InstanceMatch
from tests.unit.bridge.messages import Captured, captured_messages, registration

BLOCK = 4
STREAM = StreamKey("default", "m", BLOCK, "", "w-1")
TOKENS = list(range(1000, 1012))
HASHES = [11, 12, 13]

VLLM_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
)

Event = dict[str, object]
Shape = Callable[[Event], object]


def as_array(event: Event) -> object:
    """As vLLM sends it up to 0.23."""
    fields: tuple[str, ...] = VLLM_FIELDS
    if event["type"] == "BlockRemoved":
        fields = ("block_hashes", "medium", "group_idx")
    return [event["type"], *(event.get(name) for name in fields)]


def as_map(event: Event) -> object:
    """As it does since 0.24, and SGLang since 0.5.20."""
    return event


@pytest.fixture(params=["python", "kernel"])
def packer(request: pytest.FixtureRequest) -> ArrayPacker:
    return PythonArrayPacker() if request.param == "python" else array_packer()


@pytest.fixture(params=[as_array, as_map])
def shape(request: pytest.FixtureRequest) -> Shape:
    chosen: Shape = request.param
    return chosen


class Index:
    """A kernel behind one publisher's decoder."""

    def __init__(
        self,
        packer: ArrayPacker,
        kind: str = "vLLM",
        dp_rank: int = 0,
        offloading: KvOffloading = "",
        mode: ReportMode = "",
    ) -> None:
        registered = registration(kind=PublisherKind(kind), dp_rank=dp_rank)
        registered = msgspec.structs.replace(
            registered, kv_offloading=offloading, kv_cache_report_mode=mode
        )
        self._source = open_source(registered, packer)
        self._dp_rank = dp_rank
        self._sent = 0
        self.kernel: Kernel = open_kernel(1337)
        self._publisher = self.kernel.open_publisher(STREAM, dp_rank)
        self.kernel.register(self._publisher, "", True)

    def send(self, *events: object) -> None:
        payload = msgspec.msgpack.encode([1.5, events, self._dp_rank])
        batch = self._source.decode([b"", self._sent.to_bytes(8, "big"), payload])
        assert batch.dropped == []
        self.kernel.apply(self._publisher, encode_events(batch.events), -1)
        self._sent += 1

    def match(
        self, tokens: Sequence[int] = TOKENS, *, keys: Sequence[object] = (), lora: str = ""
    ) -> InstanceMatch:
        encoded = b"".join(token.to_bytes(4, "little") for token in tokens)
        scope = PrefixScope("default", "m", lora, BLOCK, "")
        matches = self.kernel.query(scope, encoded, (extra_key(list(keys)),), None)
        return matches[0] if matches else InstanceMatch("", 0, 0, 0, 0, [])

    @property
    def sparse_blocks(self) -> int | None:
        return self.kernel.sparse_blocks(self._publisher)

    @property
    def left_out(self) -> list[tuple[str, int]]:
        return self.kernel.left_out(self._publisher)

    def counted(self, name: str) -> int:
        return self.kernel.counters()[name]


def stored(
    hashes: Sequence[int] = HASHES, tokens: Sequence[object] = TOKENS, **fields: object
) -> Event:
    event: Event = {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": list(tokens),
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return event | fields


def removed(*hashes: int, **fields: object) -> Event:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"} | fields


def test_of_hybrid_groups_those_that_form_a_prefix_are_found(
    packer: ArrayPacker, shape: Shape
) -> None:
    """The others may have one hash for all their tokens, and the hashes of the first group."""
    index = Index(packer)
    index.send(
        shape(stored(group_idx=0, kv_cache_spec_kind="full_attention")),
        shape(stored([13], group_idx=1, kv_cache_spec_kind="sliding_window")),
        shape(stored([13], group_idx=2, kv_cache_spec_kind="mamba")),
    )
    assert index.match().longest == 12
    assert index.counted("skipped_group") == 2
    index.send(shape(removed(13, group_idx=1)), shape(removed(13, group_idx=2)))
    assert index.match().longest == 12
    index.send(shape(removed(13, group_idx=0)))
    assert index.match().longest == 8


def test_a_group_that_has_cached_nothing_is_told_by_an_event_without_blocks(
    packer: ArrayPacker, shape: Shape
) -> None:
    """As vLLM (0.32) sends of Mamba, with the first blocks of attention: it can reuse none."""
    index = Index(packer)
    index.send(
        shape(stored(group_idx=0, kv_cache_spec_kind="full_attention")),
        shape(stored([], group_idx=1, kv_cache_spec_kind="mamba", extra_keys=[])),
    )
    assert (index.match().longest, index.sparse_blocks) == (0, 0)
    index.send(shape(stored([12], group_idx=1, kv_cache_spec_kind="mamba")))
    assert (index.match().longest, index.sparse_blocks) == (8, 1)


@pytest.mark.parametrize("kind", ["mla_attention", "sink_full_attention"])
def test_other_groups_may_be_the_one_that_forms_a_prefix(
    packer: ArrayPacker, shape: Shape, kind: str
) -> None:
    index = Index(packer)
    index.send(
        shape(stored([13], group_idx=0, kv_cache_spec_kind="mamba")),
        shape(stored(group_idx=3, kv_cache_spec_kind=kind)),
    )
    assert index.match().longest == 12


def test_a_block_in_two_groups_is_held_until_both_have_removed_it(
    packer: ArrayPacker, shape: Shape
) -> None:
    index = Index(packer)
    kind = "full_attention"
    index.send(*(shape(stored(group_idx=one, kv_cache_spec_kind=kind)) for one in (0, 1)))
    index.send(shape(removed(*HASHES, group_idx=0)))
    assert index.match().longest == 12
    index.send(shape(removed(*HASHES, group_idx=1)))
    assert index.match().longest == 0


def test_a_partial_block_is_left_out_and_the_whole_one_found(
    packer: ArrayPacker, shape: Shape
) -> None:
    index = Index(packer)
    index.send(shape(stored(HASHES[:2], TOKENS[:8])))
    index.send(shape(stored([21], TOKENS[8:10], parent_block_hash=12, block_size=2)))
    assert (index.match().longest, index.counted("block_size_mismatch")) == (8, 1)
    index.send(shape(stored([13], TOKENS[8:], parent_block_hash=12)), shape(removed(21)))
    assert index.match().longest == 12


def test_an_offload_placeholder_is_the_block_that_is_held(
    packer: ArrayPacker, shape: Shape
) -> None:
    index = Index(packer)
    index.send(shape(stored()))
    index.send(shape(stored(HASHES[:2], [], block_size=0, medium="CPU")))
    index.send(shape(removed(*HASHES)))
    match = index.match()
    assert (match.longest, match.gpu, match.cpu) == (8, 0, 8)
    index.send(shape(removed(*HASHES, medium="cpu")))
    assert index.match().longest == 0


SCOPES: dict[str, list[object]] = {
    "plain": [None, None, None],
    "salt": [["pepper"], None, None],
    "image": [None, [["image", 3]], None],
}


@pytest.mark.parametrize("has_copy", [True, False], ids=["held", "moved"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("place", [{"medium": "CPU"}, {"medium": "CPU", "locality": "REMOTE"}])
def test_what_offloading_describes_without_its_keys_is_the_block_of_its_name(
    packer: ArrayPacker, scope: str, has_copy: bool, place: dict[str, Any]
) -> None:
    """As vLLM (0.32) does with `self_describing_kv_events`, of salts and images, too: it was taken
    for a plain prompt's block.
    """
    index = Index(packer)
    index.send(stored(extra_keys=SCOPES[scope]))
    gone, offloaded = removed(*HASHES), stored(**place)
    index.send(*((offloaded, gone) if has_copy else (gone, offloaded)))
    assert index.counted("unresolved") == index.counted("hash_conflict") == 0
    plain = {"plain": 12, "salt": 0, "image": 4}[scope]
    assert index.match().longest == plain
    salted = index.match(keys=["pepper"])
    assert salted.longest == (12 if scope == "salt" else 0)


def test_and_left_out_where_its_name_is_not_known(packer: ArrayPacker) -> None:
    index = Index(packer)
    index.send(stored(extra_keys=SCOPES["salt"]))
    index.send(removed(*HASHES))
    index.send(stored(medium="CPU"))
    assert (index.match().longest, index.counted("unresolved")) == (0, 3)
    index.send(removed(*HASHES, medium="CPU"), stored(medium="CPU", extra_keys=SCOPES["plain"]))
    assert index.match().longest == 12, "whose keys are said to be none"


def test_but_by_its_tokens_where_lmcache_is_registered_to_name_it(packer: ArrayPacker) -> None:
    index = Index(packer, offloading="lmcache")
    index.send(stored(medium="CPU"))
    assert (index.match().longest, index.counted("unresolved")) == (12, 0)


def test_what_older_releases_describe_has_the_same_lack(packer: ArrayPacker) -> None:
    """Mooncake's connector within vLLM 0.21 to 0.23 says nothing of a salt."""
    index = Index(packer)
    index.send(as_array(stored(extra_keys=[["pepper"], None, None])), as_array(removed(*HASHES)))
    index.send(as_array(stored(medium="CPU")))
    assert (index.match().longest, index.counted("unresolved")) == (0, 3)
    index = Index(packer)
    index.send(as_array(stored(medium="CPU", extra_keys=[None] * 3)))
    assert index.match().longest == 12


@pytest.mark.parametrize("medium", ["GPU", "CPU_PINNED"])
@pytest.mark.parametrize("shape", [as_map, lambda event: list(event.values())[:7]])
def test_pages_that_sglang_announces_again_may_be_held_once(
    packer: ArrayPacker, shape: Shape, medium: str
) -> None:
    """As with LMCache it does with what comes before pages that it has fetched; and hybrid models
    with HiCache (0.5.20 to 0.5.23) with pages in host memory, of which a window is backed up.
    """
    index = Index(packer, "SGLang")
    on = {"medium": medium}
    first = shape(stored(HASHES[:1], TOKENS[:4], **on))
    second = shape(stored(HASHES[1:2], TOKENS[4:8], parent_block_hash=HASHES[0], **on))
    third = shape(stored(HASHES[2:], TOKENS[8:], parent_block_hash=HASHES[1], **on))
    gone = [_removed(shape, medium, HASHES[2]), _removed(shape, medium, *HASHES[:2])]
    index.send(first, second, third)
    index.send(*gone)
    assert (index.match().longest, index.left_out) == (0, [])
    index.send(first, second, first, second, third)
    assert (index.match().longest, index.left_out) == (12, [])
    index.send(*gone)
    assert index.left_out == [("copies_unknown", 2)]
    index.send(gone[1])
    assert (index.match().longest, index.left_out) == (0, [])


@pytest.mark.parametrize("shape", [as_map, lambda event: list(event.values())[:7]])
def test_a_page_that_sglang_writes_back_before_its_parent_is_found(
    packer: ArrayPacker, shape: Shape
) -> None:
    index = Index(packer, "SGLang")
    host: Event = {"medium": "CPU_PINNED"}
    second = stored(HASHES[1:2], TOKENS[4:8], parent_block_hash=HASHES[0])
    third = stored(HASHES[2:], TOKENS[8:], parent_block_hash=HASHES[1])
    index.send(shape(stored()))
    gone = [_removed(shape, "GPU", one) for one in (HASHES[2], HASHES[1])]
    index.send(*gone, shape(third | host), shape(second | host))
    assert (index.match().longest, index.left_out) == (12, [])
    index.send(shape(second), shape(third))
    index.send(*gone)
    assert (index.match().longest, index.left_out) == (12, [])


def _removed(shape: Shape, medium: str, *hashes: int) -> object:
    event = removed(*hashes, medium=medium)
    return event if shape is as_map else list(event.values())


@pytest.mark.parametrize("mode", ["", "full"])
def test_a_page_that_hicache_backs_up_once_is_not_doubted(
    packer: ArrayPacker, mode: ReportMode
) -> None:
    """Full attention: on the GPU and in host memory, and loaded back from there."""
    index = Index(packer, "SGLang", mode=mode)
    host: Event = {"medium": "CPU_PINNED"}
    index.send(stored(), stored() | host)
    for _ in range(2):
        index.send(removed(*HASHES))
        assert (index.match().longest, index.left_out) == (12, [])
        index.send(stored())
    index.send(removed(*HASHES), removed(*HASHES) | host)
    assert (index.match().longest, index.left_out) == (0, [])
    index.send(stored() | host, stored() | host, removed(*HASHES) | host)
    assert index.left_out == ([] if mode else [("copies_unknown", 3)])
    assert index.match().longest == (0 if mode else 12)


@pytest.mark.parametrize("size", [2 * BLOCK, BLOCK])
def test_a_chunk_of_several_blocks_is_not_the_block_that_it_is_named_by(
    packer: ArrayPacker, shape: Shape, size: int
) -> None:
    """Offloading of vLLM up to 0.23 with a `block_size` of its own names it by its last block."""
    index = Index(packer)
    index.send(shape(stored()))
    index.send(shape(stored(HASHES[:2], [], block_size=size, medium="CPU")))
    index.send(shape(removed(*HASHES)))
    is_block = size == BLOCK
    assert index.match().longest == (8 if is_block else 0)
    assert index.counted("block_size_mismatch") == (0 if is_block else 2)
    assert index.left_out == ([] if is_block else [("chunks_differ", 2)])


def test_a_salt_and_an_image_make_another_prompt(packer: ArrayPacker, shape: Shape) -> None:
    index = Index(packer)
    index.send(shape(stored(extra_keys=[["pepper"], None, None])))
    index.send(shape(stored([31, 32, 33], extra_keys=[[["image", 2]], None, None])))
    assert index.match().longest == 0
    assert index.match(keys=["pepper"]).longest == 12
    assert index.match(keys=[["image", 2]]).longest == 12
    assert index.match(keys=["salt"]).longest == 0


def test_an_adapter_is_a_scope_of_its_own(packer: ArrayPacker, shape: Shape) -> None:
    index = Index(packer)
    index.send(shape(stored(lora_name="ad", extra_keys=[["ad"], ["ad"], ["ad"]])))
    assert index.match().longest == 0
    assert index.match(lora="ad").longest == 12


def test_a_rank_has_its_own_part_of_the_answer(packer: ArrayPacker, shape: Shape) -> None:
    index = Index(packer, dp_rank=3)
    index.send(shape(stored()))
    assert [(one.dp_rank, one.matched) for one in index.match().ranks] == [(3, 12)]


def test_pages_of_pairs_are_found_by_their_tokens(packer: ArrayPacker, shape: Shape) -> None:
    """Of an EAGLE draft model: the second of each pair is the first of the next."""
    pairs = [[token, token + 1] for token in TOKENS]
    event = stored([-11, -12, -13], pairs)
    index = Index(packer, "SGLang")
    index.send(event if shape is as_map else [event["type"], *_first_six(event)])
    assert index.match().longest == 8, "the token behind the last page is not asked for"
    assert index.match([*TOKENS, TOKENS[-1] + 1]).longest == 12
    assert index.match([*TOKENS, TOKENS[-1] + 2]).longest == 8


def test_a_salt_of_sglang_is_a_field(packer: ArrayPacker, shape: Shape) -> None:
    index = Index(packer, "SGLang")
    event = stored()
    salted: object = event | {"cache_salt": "pepper"}
    if shape is as_array:
        salted = [event["type"], *_first_six(event), {"cache_salt": "pepper"}]
    index.send(salted)
    assert (index.match().longest, index.match(keys=["pepper"]).longest) == (0, 12)


def _first_six(event: Event) -> list[object]:
    return [event[name] for name in VLLM_FIELDS[:6]]


def by_release() -> dict[str, list[Captured]]:
    found = defaultdict(list)
    for captured in captured_messages():
        found[captured.name.partition("/")[0]].append(captured)
    return found


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize(("release", "messages"), by_release().items(), ids=by_release())
def test_no_release_removes_from_its_gpu_what_it_has_not_announced(
    release: str, messages: list[Captured], size: int
) -> None:
    """Whether its blocks can be used or are left out."""
    first = messages[0]
    registered = registration(kind=first.kind, dp_rank=first.rank)
    registered = msgspec.structs.replace(registered, block_size=size)
    source, kernel = open_source(registered, PythonArrayPacker()), open_kernel(1337)
    publisher = kernel.open_publisher(*registered.publisher)
    for captured in messages:
        try:
            batch = source.decode(captured.frames)
        except WireError:
            continue
        kernel.apply(publisher, encode_events(batch.events), -1)
        assert not kernel.unheld_removed(publisher), captured.name
