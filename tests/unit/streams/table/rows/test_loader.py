import random
from collections.abc import Callable

import pytest

from schemas.events import BlockEvent, encode_events
from schemas.identities import ModelContext
from streams.kernel import Kernel
from streams.kernel.changes import Change, Op, decode_changes
from streams.table.fold import Fold
from streams.table.rows.loader import ContextRow, LoadStep, by_stream, load_rows, net
from tests.building import STREAM, cleared, removed, stored


def test_net_changes_keep_the_last_of_each_entry_and_the_last_clear() -> None:
    changes = [
        Change(1, 10, 0, 0, Op.SET, 1),
        Change(0, 0, 0, 0, Op.CLEAR, 0),
        Change(1, 10, 0, 0, Op.SET, 1),
        Change(2, 20, 1, 0, Op.SET, 1),
        Change(1, 10, 0, 0, Op.SET, 0),
        Change(1, 11, 0, 0, Op.SET, 1),
    ]
    kept = list(decode_changes(net(b"".join(change.encode() for change in changes))))
    assert kept == [changes[1], changes[3], changes[4], changes[5]]


def refused(kernel: Kernel, rows: list[ContextRow]) -> list[ContextRow]:
    """Loads the rows; returns those that the kernel refuses."""
    return [loaded.refused for loaded in load_rows(kernel, rows) if loaded.refused is not None]


def churn(rng: random.Random, sequence: int) -> list[BlockEvent]:
    """Few keys that name now this block, now that one, in one adapter or another."""
    first = rng.randrange(1, 12)
    hashes = range(first, first + rng.randrange(1, 4))
    tokens = range(4 * first, 4 * first + 4 * len(hashes))
    batch: list[BlockEvent] = [
        stored(sequence, hashes, tokens, lora_name=rng.choice(["", "x", "y"])),
        removed(sequence, [rng.randrange(1, 15) for _ in range(3)]),
    ]
    if rng.random() < 0.05:
        batch.append(cleared(sequence))
    return batch


@pytest.mark.parametrize("seed", range(40))
def test_blocks_that_move_between_adapters_load_to_where_they_are(
    make_fold: Callable[[], Fold], seed: int
) -> None:
    rng = random.Random(seed)
    source, beside, afterwards = (make_fold().kernel for _ in range(3))
    publishers = [source.open_publisher(STREAM, rank) for rank in range(2)]
    rows: list[ContextRow] = []
    for sequence in range(200):
        publisher = rng.choice(publishers)
        source.apply(publisher, encode_events(churn(rng, sequence)), -1)
        if rng.random() < 0.1 or sequence == 199:
            flush = [
                ContextRow(sequence, context, sequence, changes)
                for context, changes in source.take_changes()
            ]
            assert refused(beside, flush) == []
            assert beside.contexts() == source.contexts()
            rows += flush
    assert list(by_stream(row.context for row in rows)) == [STREAM]
    assert refused(afterwards, sorted(rows, key=lambda row: row.context)) == []
    assert afterwards.contexts() == source.contexts()


def test_who_loads_has_a_turn_after_each_row_or_what_they_end_in(
    make_fold: Callable[[], Fold],
) -> None:
    one = ModelContext("default", "m", "", 4, "", "a")
    other = one._replace(lora_name="x")
    body = Change(1, 10, 0, 0, Op.SET, 1).encode()
    rows = [ContextRow(covers, one, n, body) for n, covers in enumerate((0, 0, 1))]
    assert list(load_rows(make_fold().kernel, rows)) == [LoadStep(24, None)] * 3
    beside = ContextRow(1, other, 0, body[:20])
    assert list(load_rows(make_fold().kernel, [*rows, beside])) == [
        LoadStep(24, None),
        LoadStep(24, None),
        LoadStep(20, beside),
    ]
