"""Whatever a later release adds to an event of today: removals and clears are applied, and it is
known where a clear may have meant less; stores are used or known to be left out, and nothing of it
stays once the engine holds nothing any more.

The events are those of every captured message; what is added is drawn by a seed.
"""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bridge.wire import DecodedBatch, open_source
from schemas.arrays import PythonArrayPacker
from schemas.errors import EventError, LeftOutError, ToleratedError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, encode_events
from streams.kernel import array_packer, open_kernel
from tests.unit.bridge.messages import Captured, captured_messages, frames_of, registration

CAPTURED = [one for one in captured_messages() if one.kind in ("vLLM", "SGLang")]
EMPTY: tuple[Any, ...] = (None, False, "", [], {}, [None], [[], None])
FULL: tuple[Any, ...] = (True, 1, -1, 2.5, "x", [1], ["x"], [[1], None], {"a": None}, b"\1")
ARRAY_FIELDS = {"BlockStored": 11, "BlockRemoved": 3, "AllBlocksCleared": 1}
"""The most that an event as an array has, of either engine."""

TRIES = 6


def decode(captured: Captured, events: Sequence[object], *, packed: bool) -> DecodedBatch:
    registered = registration(kind=captured.kind, dp_rank=captured.rank)
    source = open_source(registered, array_packer() if packed else PythonArrayPacker())
    return source.decode(frames_of([1.5, list(events), captured.rank], sequence=3))


def events_of(captured: Captured) -> list[Any]:
    batch = msgspec.msgpack.decode(captured.frames[-1])
    events: list[Any] = batch["events"] if isinstance(batch, dict) else batch[1]
    return events


def with_more(event: Any, value: object, choose: random.Random) -> Any:
    """The event, with one thing that no release has so far."""
    if isinstance(event, dict):
        added = [*event.items(), (f"later_{choose.randrange(9)}", value)]
        choose.shuffle(added)
        return dict(added)
    missing = 1 + ARRAY_FIELDS[event[0]] - len(event)
    return [*event, *[None] * missing, value]


def told(event: BlockEvent) -> bytes:
    return b"" if isinstance(event, ClearedBlocks) else event.hashes


@pytest.mark.parametrize("captured", CAPTURED, ids=[one.name for one in CAPTURED])
def test_what_is_added_to_an_event_leaves_no_ghosts_and_no_silence(
    captured: Captured, seed: int
) -> None:
    choose = random.Random(seed)
    for event in events_of(captured):
        plain = decode(captured, [event], packed=False)
        for _ in range(TRIES):
            is_empty = choose.random() < 0.5
            value = choose.choice(EMPTY if is_empty else FULL)
            more = with_more(event, value, choose)
            where = f"{captured.name}, seed {seed}: {more}"
            batch = decode(captured, [more], packed=choose.random() < 0.5)
            assert [told(one) for one in batch.events] == [told(one) for one in plain.events], where
            (error, *others) = batch.dropped
            if plain.dropped or (isinstance(batch.events[0], StoredBlocks) and not is_empty):
                assert isinstance(error, LeftOutError | ToleratedError), where
                assert any(isinstance(one, LeftOutError) for one in batch.dropped), where
                assert isinstance(batch.events[0], StoredBlocks), where
                assert batch.events[0].left_out, where
            else:
                assert batch.events == plain.events, where
                may_be_less = isinstance(batch.events[0], ClearedBlocks) and not is_empty
                assert type(error) is (EventError if may_be_less else ToleratedError), where
                assert not others, where


@pytest.mark.parametrize("captured", CAPTURED, ids=[one.name for one in CAPTURED])
def test_an_event_of_a_kind_that_nobody_knows_costs_its_neighbours_nothing(
    captured: Captured, seed: int
) -> None:
    choose = random.Random(seed)
    events = events_of(captured)
    plain = decode(captured, events, packed=False)
    unknown: Any = choose.choice((["BlockPinned", [1]], {"type": "BlockMoved", "hashes": [1]}))
    at = choose.randrange(len(events) + 1)
    batch = decode(captured, [*events[:at], unknown, *events[at:]], packed=True)
    assert batch.events == plain.events, f"{captured.name}, seed {seed}"
    lost = [one for one in batch.dropped if type(one) is EventError]
    assert [one.reason for one in lost] == ["unknown_event"], f"{captured.name}, seed {seed}"


@pytest.mark.parametrize("kernel_name", ["reference", "rust"])
def test_nothing_is_left_of_it_once_all_is_removed(kernel_name: str, seed: int) -> None:
    choose = random.Random(seed)
    kernel = open_kernel(11, name=kernel_name)
    publisher = kernel.open_publisher(registration().publisher.stream, 0)
    held: list[BlockEvent] = []
    for captured in CAPTURED:
        events = [
            with_more(event, choose.choice(EMPTY + FULL), choose) for event in events_of(captured)
        ]
        held += decode(captured, events, packed=True).events
    kernel.apply(publisher, encode_events(held), -1)
    stored = [event for event in held if isinstance(event, StoredBlocks)]
    assert any(event.left_out for event in stored), f"seed {seed}"
    removals: list[BlockEvent] = [
        RemovedBlocks(
            sequence=3,
            hashes=event.hashes,
            medium=event.medium,
            shared=event.shared,
            group=event.group,
            whole=True,
        )
        for event in stored
    ]
    for _ in range(2):  # of what is held and of what is left out under the same name
        kernel.apply(publisher, encode_events(removals), -1)
    assert kernel.left_out(publisher) == [], f"seed {seed}"
    assert kernel.stats()["entries"] == 0, f"seed {seed}"
