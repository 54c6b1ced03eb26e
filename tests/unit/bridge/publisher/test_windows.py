"""Engines whose events name attention windows: the blocks of the largest are prefixes, and stay no
longer than there, whatever came before it was known which that is.
"""

import json
import struct
from typing import Any

import pytest

from bridge.publisher.anchor import Anchor
from bridge.sockets.raw_message import RawMessage
from bridge.wire import trtllm
from bridge.wire.drop_reasons import DropReason
from schemas import limits
from schemas.identities import Offset, PrefixScope
from schemas.positions import PublisherState
from schemas.records import EventsRecord, encode_record
from streams.kernel import array_packer, open_kernel
from streams.table.fold import Fold
from tests.unit.bridge.messages import registration
from tests.unit.bridge.publisher.sequencers import Sequencers

A = (1, 2)
B = (3, 4)
CREATED: dict[str, Any] = {"type": "created", "num_blocks_per_cache_level": [9]}


def stored(*numbers: int, parent: int | None = None) -> dict[str, Any]:
    """Blocks of four tokens; each has its number as hash, and as tokens."""
    blocks = [{"block_hash": one, "tokens": [{"token_id": one}] * 4} for one in numbers]
    return {"type": "stored", "parent_hash": parent, "blocks": blocks}


def removed(*numbers: int) -> dict[str, Any]:
    return {"type": "removed", "block_hashes": list(numbers)}


class Engine:
    """A publisher whose messages are folded, by a bridge that may be started anew."""

    def __init__(self) -> None:
        self.registration = registration(kind=trtllm.KIND)
        self.key = self.registration.publisher
        self.fold = Fold(open_kernel(1337))
        self.sequence = self.event_id = 0
        self._offset = 0
        self.records: list[EventsRecord] = []
        self.begin(Sequencers(array_packer()))

    def begin(self, sequencer: Sequencers) -> None:
        self.sequencer = sequencer
        sequencer.add(self.registration)

    def restart_bridge(self) -> None:
        self.begin(Sequencers(array_packer()))
        self.sequencer[self.key].set_anchor(Anchor.of(self.state))

    def send(self, *events: tuple[int | None, dict[str, Any]], at: int | None = None) -> None:
        """One message; its events with their windows."""
        numbered = []
        for window, data in events:
            numbered.append({"event_id": self.event_id, "window_size": window, "data": data})
            self.event_id += 1
        self.sequence = self.sequence if at is None else at
        frames = [b"", self.sequence.to_bytes(8, "big"), json.dumps(numbered).encode()]
        self.sequence += 1
        for record in self.sequencer.process([RawMessage(self.key, frames, 0.0)], 1.0):
            assert self.fold.apply(Offset(self._offset), encode_record(record)) is None
            self._offset += 1
            if isinstance(record, EventsRecord):
                self.records.append(record)

    @property
    def state(self) -> PublisherState:
        return self.fold.publishers[self.key]

    @property
    def is_degraded(self) -> bool:
        return self.state.degraded_since is not None

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.sequencer.counters()[self.key].dropped)

    def matched(self, numbers: tuple[int, ...]) -> int:
        """How many of the blocks are found."""
        scope = PrefixScope("default", "m", "", 4, "")
        tokens = struct.pack(f"<{4 * len(numbers)}I", *(one for one in numbers for _ in range(4)))
        matches = self.fold.kernel.query(scope, tokens, (), None)
        return max([0, *(rank.matched for match in matches for rank in match.ranks)]) // 4


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_windows_below_the_largest_are_sparse(engine: Engine) -> None:
    engine.send((512, CREATED), (4096, CREATED))
    engine.send((512, stored(*B)), (4096, stored(*A)), (512, stored(*A)))
    assert (engine.matched(A), engine.matched(B)) == (2, 0)
    engine.send((512, removed(*A, *B)))
    assert engine.matched(A) == 2
    moved = {"type": "updated", "block_hash": 1, "cache_level": {"old_value": 0, "new_value": 1}}
    engine.send((512, moved), (4096, removed(2)))
    assert engine.matched(A) == 1
    engine.send((4096, moved), (4096, removed(1)))
    assert engine.matched(A) == 0
    assert (engine.is_degraded, engine.dropped) == (False, {})
    assert engine.state.window == 4096


def test_one_event_in_a_message_is_as_many(engine: Engine) -> None:
    for one in ((4096, CREATED), (512, CREATED), (512, stored(*B)), (4096, stored(*A))):
        engine.send(one)
    assert (engine.matched(A), engine.matched(B), engine.is_degraded) == (2, 0, False)


@pytest.mark.parametrize("small", [512, None])
def test_a_larger_window_that_nothing_has_named_ends_what_was_there(
    engine: Engine, small: int | None
) -> None:
    """Blocks of the smaller one stayed for good: their removals were taken for others'."""
    engine.send((small, stored(*B)))
    assert engine.matched(B) == 2
    engine.send((4096, stored(*A)))
    assert (engine.matched(A), engine.matched(B)) == (2, 0)
    assert engine.is_degraded
    assert engine.dropped == {DropReason.LARGER_WINDOW: 1}
    engine.send((small, removed(*A, *B)), (small, stored(*B)))
    assert (engine.matched(A), engine.matched(B)) == (2, 0)
    engine.send((4096, CREATED), (512, CREATED))
    assert (engine.matched(A), engine.is_degraded) == (0, False)


def test_within_one_message_what_comes_behind_it_counts(engine: Engine) -> None:
    engine.send((512, stored(*B)), (512, stored(*A)), (4096, stored(*A)), (512, removed(*A)))
    assert (engine.matched(A), engine.matched(B), engine.is_degraded) == (2, 0, True)


def test_a_bridge_that_starts_anew_knows_the_largest(engine: Engine) -> None:
    engine.send((4096, CREATED), (512, CREATED))
    engine.send((4096, stored(*A)), (512, stored(*A)))
    engine.restart_bridge()
    engine.send((512, stored(*B)))
    engine.send((512, removed(*A)))
    assert (engine.matched(A), engine.matched(B)) == (2, 0)
    engine.restart_bridge()
    engine.send((4096, removed(*A)))
    assert (engine.matched(A), engine.is_degraded, engine.dropped) == (0, False, {})


@pytest.mark.parametrize("window", [4096, 512])
def test_a_log_that_does_not_say_which_is_the_largest_is_not_taken_for_whole(
    engine: Engine, window: int
) -> None:
    engine.send((4096, CREATED), (512, CREATED), (4096, stored(*A)))
    engine.restart_bridge()
    before = engine.sequencer[engine.key].stream.anchor
    engine.sequencer[engine.key].set_anchor(before._replace(window=None))
    engine.send((window, stored(*B)))
    assert engine.is_degraded
    assert engine.dropped == {DropReason.UNKNOWN_WINDOW: 1}
    engine.send((window, stored(5)))
    assert engine.dropped == {DropReason.UNKNOWN_WINDOW: 1}, "once"
    engine.send((512, CREATED))
    assert not engine.is_degraded


def test_another_cache_has_other_windows(engine: Engine) -> None:
    """Its numbers begin again, or the forwarder's do."""
    engine.send((4096, CREATED), (512, CREATED), (4096, stored(*A)))
    engine.event_id = 0
    engine.send((2048, CREATED), (512, CREATED))
    engine.send((2048, stored(*B)), (512, stored(*A)))
    assert (engine.matched(A), engine.matched(B), engine.state.window) == (0, 2, 2048)
    engine.event_id = 0
    engine.send((512, CREATED), at=0)
    assert (engine.state.incarnation, engine.state.window) == (2, 512)
    engine.send((512, stored(*A)))
    assert (engine.matched(A), engine.matched(B), engine.is_degraded) == (2, 0, False)


def test_an_engine_that_begins_again_at_once_is_another_cache(engine: Engine) -> None:
    engine.send((4096, CREATED))
    engine.event_id = 0
    engine.send((2048, CREATED), (2048, stored(*A)))
    assert (engine.matched(A), engine.state.window) == (2, 2048)


def test_parts_of_a_large_batch_say_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.wire.batch.RECORD_BYTES_MAX", 200)
    assert limits.RECORD_BYTES_MAX > 200
    engine.send((512, CREATED))
    many = tuple(range(10, 40))
    engine.send((512, stored(*many)), (4096, stored(*many)), (512, removed(*many)))
    assert (engine.matched(many), engine.state.window) == (30, 4096)
    (*others, last) = [one for one in engine.records if one.last_sequence == 1]
    assert others
    assert {one.part.total for one in (*others, last) if isinstance(one.part, tuple)} == {
        sum(one.part.end - one.part.first for one in (*others, last) if isinstance(one.part, tuple))
    }
    assert [one.window_after(512) for one in others] == [512] * len(others)
    assert last.window_after(512) == 4096


def test_events_that_name_no_window_are_of_one(engine: Engine) -> None:
    engine.send((None, CREATED), (None, stored(*A)))
    engine.restart_bridge()
    engine.send((None, stored(*B)), (None, removed(2)))
    assert (engine.matched(A), engine.matched(B)) == (1, 2)
    assert (engine.is_degraded, engine.state.window) == (False, 0)
