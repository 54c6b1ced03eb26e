"""Whatever is left out between an engine's socket and an answer is known to the engine's state:
every reason for which the bridge drops, and every counter of what the kernel leaves out.

A reason that is added without a case here, or without a reason why it needs none, fails.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bridge.bounds import BATCH_VALUES_MAX
from bridge.sockets.raw_message import RawMessage
from bridge.wire.drop_reasons import DropReason
from schemas.identities import Offset
from schemas.limits import BATCH_EVENTS_MAX, LORA_NAMES_MAX, MESSAGE_BYTES_MAX, NAME_BYTES_MAX
from schemas.positions import PublisherState
from schemas.records import encode_record
from schemas.registration import PublisherKind
from streams.kernel import array_packer, native_available, open_kernel
from streams.kernel.interface import COUNTERS
from streams.table.fold import Fold
from tests.unit.bridge.messages import map_event, registration
from tests.unit.bridge.publisher.sequencers import Sequencers

TOKENS = [1, 2, 3, 4]
GOOD = ["BlockStored", [1], None, TOKENS, 4]
VLLM = PublisherKind("vLLM")


def batch(*events: object, ts: object = 1.5, rank: object = 0) -> bytes:
    return msgspec.msgpack.encode([ts, list(events), rank])


def store(**fields: object) -> object:
    plain = {"block_hashes": [7], "token_ids": TOKENS, "block_size": 4}
    return map_event("BlockStored", **plain | fields)


PAYLOADS: dict[DropReason, bytes] = {
    DropReason.MESSAGE_TOO_LARGE: b"\xc0" * (MESSAGE_BYTES_MAX + 1),
    DropReason.UNDECODABLE: b"\xc1",
    DropReason.BAD_TIMESTAMP: batch(ts="now"),
    DropReason.RANK_MISMATCH: batch(rank="3"),
    DropReason.TOO_MANY_EVENTS: batch(*[["AllBlocksCleared"]] * (BATCH_EVENTS_MAX + 1)),
    DropReason.TOO_MANY_VALUES: batch(["BlockRemoved", [0] * (BATCH_VALUES_MAX + 1)]),
    DropReason.UNKNOWN_EVENT: batch(["BlockPinned", [1]]),
    DropReason.UNKNOWN_FIELD: batch(store(later=1)),
    DropReason.LOOKAHEAD: batch(store(lookahead_token_ids=[[5]])),
    DropReason.MALFORMED_EVENT: batch(["BlockRemoved"]),
    DropReason.UNKNOWN_MEDIUM: batch(store(medium="tape")),
    DropReason.BAD_HASHES: batch(store(block_hashes=["x"])),
    DropReason.BAD_PARENT: batch(store(parent_block_hash=b"short")),
    DropReason.BAD_TOKENS: batch(store(token_ids=["x"])),
    DropReason.BAD_BLOCK_SIZE: batch(store(block_size=-1)),
    DropReason.BAD_GROUP: batch(store(group_idx=-1)),
    DropReason.BAD_EXTRA_KEYS: batch(store(extra_keys=5)),
    DropReason.BAD_COPY_COUNTS: batch(
        map_event("BlockRemoved", block_hashes=[1], remaining_copy_counts="x")
    ),
    DropReason.SHARED_TIER: batch(
        store(block_hashes=[8], medium="FS"),
        store(block_hashes=[9], medium="OBJ"),
        map_event("TierBlocksCleared", medium="FS"),
    ),
    DropReason.NAME_TOO_LONG: batch(store(lora_name="x" * (NAME_BYTES_MAX + 1))),
    DropReason.TOO_MANY_LORA_NAMES: batch(
        *[store(lora_name=f"l{number}") for number in range(LORA_NAMES_MAX + 1)]
    ),
}
"""A batch of vLLM's for each."""

ELSEWHERE: dict[DropReason, str] = {
    # The message has no number that counts, or is not taken: the next one shows a gap, or that it
    # is missing, or `unreadable`.
    DropReason.FRAME_COUNT: "tests/unit/bridge/test_followed.py: unplaced",
    DropReason.SEQUENCE_LENGTH: "likewise",
    DropReason.SEQUENCE_RANGE: "tests/unit/bridge/publisher/test_sequencer.py: out_of_range",
    DropReason.INBOX_FULL: "tests/unit/bridge/sockets/test_inbox.py",
    DropReason.HELD_FULL: "tests/unit/bridge/publisher: overflowed",
    DropReason.TOO_MANY_BLOCKS: "of JSON; else a batch of so many values is undecodable",
    DropReason.BATCH_TOO_LARGE: "tests/unit/bridge/wire/test_batch.py: a batch as any other",
    DropReason.INTERNAL_ERROR: "tests/unit/bridge/publisher: a window is rolled back, and lost",
    DropReason.REPLAY_DIFFERS: "tests/unit/bridge/publisher/test_pairing.py",
    DropReason.EVENTS_MISSING: "tests/unit/bridge/publisher/test_event_numbers.py",
    DropReason.LARGER_WINDOW: "tests/unit/bridge/publisher/test_windows.py",
    DropReason.UNKNOWN_WINDOW: "likewise",
    DropReason.OTHER_WORKER: "tests/unit/bridge/wire/test_dynamo.py",
    DropReason.UNKNOWN_KIND: "no source of that kind: the registration is refused",
    # Nothing is missing without it.
    DropReason.EARLIER_INCARNATION: "its blocks are gone",
    DropReason.OTHER_STREAM: "it is none of the publisher's",
    DropReason.OTHER_GROUP: "likewise",
    DropReason.OTHER_RANK: "likewise; unconfirmed, tests/unit/bridge/test_ranks_of_one_stream.py"
    " and test_ranks_behind_one_socket.py",
    DropReason.NO_BLOCK: "likewise",
}


class Followed:
    """A publisher whose messages are folded."""

    def __init__(self) -> None:
        self.registration = registration(kind=VLLM)
        self.sequencer = Sequencers(array_packer())
        self.sequencer.add(self.registration)
        self.fold = Fold(open_kernel(1337))
        self._offset = self._number = 0

    def send(self, payload: bytes) -> None:
        frames = [b"", self._number.to_bytes(8, "big"), payload]
        self._number += 1
        message: Any = RawMessage(self.registration.publisher, frames, 0.0)
        for record in self.sequencer.process([message], 0.0):
            assert self.fold.apply(Offset(self._offset), encode_record(record)) is None
            self._offset += 1

    @property
    def state(self) -> PublisherState:
        return self.fold.publishers[self.registration.publisher]

    @property
    def is_known_to_miss(self) -> bool:
        return self.state.degraded_since is not None or bool(self.state.left_out)

    def dropped(self) -> Sequence[str]:
        counters = self.sequencer.counters()[self.registration.publisher]
        return [reason for reason, count in counters.dropped.items() if count]


@pytest.mark.parametrize("counts", [[], [None], False])
def test_counts_that_are_empty_are_no_counts(counts: object) -> None:
    followed = Followed()
    followed.send(batch(GOOD))
    followed.send(batch(map_event("BlockRemoved", block_hashes=[1], remaining_copy_counts=counts)))
    assert followed.dropped() == [DropReason.BAD_COPY_COUNTS]
    assert followed.is_known_to_miss


@pytest.mark.parametrize("reason", PAYLOADS)
def test_what_the_bridge_drops_is_in_the_state_until_a_clear(reason: DropReason) -> None:
    followed = Followed()
    followed.send(batch(GOOD))
    assert not followed.is_known_to_miss
    followed.send(PAYLOADS[reason])
    assert followed.dropped() == [reason]
    assert followed.is_known_to_miss
    followed.send(batch(GOOD))
    assert followed.is_known_to_miss, "a batch that follows on proves nothing of it"
    followed.send(batch(["AllBlocksCleared"]))
    assert not followed.is_known_to_miss


def test_every_reason_of_the_bridge_has_its_case() -> None:
    assert PAYLOADS.keys() | ELSEWHERE.keys() == set(DropReason)
    assert not PAYLOADS.keys() & ELSEWHERE.keys()


LEFT_OUT: dict[str, list[object]] = {
    "unknown_parent": [store(parent_block_hash=404)],
    "unresolved": [map_event("BlockStored", block_hashes=[7], medium="CPU")],
    "block_size_mismatch": [store(block_size=2, token_ids=[1, 2])],
    "token_count_mismatch": [store(token_ids=[1, 2])],
    "extra_keys_mismatch": [store(extra_keys=[["a"], ["b"]])],
    "hash_conflict": [store(block_hashes=[1], token_ids=[9] * 4)],
    "unusable": [store(later=1)],
}
"""Events of vLLM's behind `GOOD`."""

NOT_OF_VLLM = {
    "seed_mismatch": "tests/contract/test_kernel_left_out.py",
    "waiting": "tests/contract/test_kernel_objects.py: `objects_wait` until it is joined",
    "waiting_overflow": "tests/contract/test_kernel_counters.py: likewise, of a pool",
    "hold_count_overflow": "tests/contract/test_kernel_contract.py, after 65,535 announcements",
    "left_out_overflow": "tests/contract/test_kernel_left_out.py: `overflow` until a clear",
}
NOTHING_MISSING = {
    *("stored", "removed", "cleared", "repeated", "reported", "joined"),
    "skipped_group",  # it forms no prefix
    "unknown_removed",  # it is not held either way
    "left_out_removed",  # it ends what was left out
}


@pytest.mark.parametrize("kernel", ["reference", "rust"])
@pytest.mark.parametrize("counter", LEFT_OUT)
def test_what_the_kernel_leaves_out_is_in_the_state_until_it_is_gone(
    counter: str, kernel: str
) -> None:
    if kernel == "rust" and not native_available():
        pytest.skip("the Rust kernel is not built")
    followed = Followed()
    followed.fold = Fold(open_kernel(1337, name=kernel))
    followed.send(batch(GOOD))
    followed.send(batch(*LEFT_OUT[counter]))
    assert followed.fold.kernel.counters()[counter] == 1
    assert followed.is_known_to_miss
    assert followed.state.degraded_since is None
    for medium in ("GPU", "CPU"):
        gone = [["BlockRemoved", [1], medium]] * 2
        followed.send(batch(["BlockRemoved", [7], medium], *gone))
    assert not followed.is_known_to_miss


def test_every_counter_of_the_kernel_has_its_case() -> None:
    assert LEFT_OUT.keys() | NOT_OF_VLLM.keys() | NOTHING_MISSING == set(COUNTERS)
