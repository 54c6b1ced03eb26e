"""Damage below the rows: bytes of RocksDB's own files changed behind its back."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import DiskError
from schemas.identities import Offset
from streams.log.embedded import EmbeddedLog
from streams.table.fold import Fold
from streams.table.recovery import Action, fresh_fold, recover
from streams.table.store import TableStore
from tests.building import events_record, stored


def flip_a_byte(directory: Path, seed: int) -> None:
    """In the middle of the largest data file."""
    file = max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    place = random.Random(seed).randrange(len(content) // 4, len(content) // 2)
    content[place] ^= 0xFF
    file.write_bytes(content)


def write_history(path: Path, make_fold: Callable[[], Fold]) -> Fold:
    """A log and a table, each with most of it in a data file."""
    log, store = EmbeddedLog(path / "log"), TableStore(path / "table")
    fold = recover(store, log, make_fold).fold
    numbers = random.Random(1)
    for sequence in range(200):
        hashes = [numbers.getrandbits(64) for _ in range(20)]
        tokens = [numbers.getrandbits(31) for _ in range(80)]
        record = events_record(sequence, sequence, [stored(sequence, hashes, tokens)])
        fold.apply(log.append([record]), record)
        if sequence % 10 == 9:
            store.flush(fold, fold.take_changes())
    for owner in (log, store):
        owner._db.flush()
    log.close()
    store.close()
    return fold


@pytest.mark.parametrize("seed", range(4))
def test_a_data_file_of_the_table_that_is_damaged_is_noticed_and_the_table_rebuilt(
    tmp_path: Path, make_fold: Callable[[], Fold], seed: int
) -> None:
    before = write_history(tmp_path, make_fold)
    flip_a_byte(tmp_path / "table", seed)
    log, store = EmbeddedLog(tmp_path / "log"), TableStore(tmp_path / "table")
    recovered = recover(store, log, make_fold)
    assert recovered.plan.action is Action.REBUILD, f"seed {seed}"
    assert recovered.fold.kernel.contexts() == before.kernel.contexts()
    assert (tmp_path / "table.corrupt").is_dir()
    log.close()
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_data_file_of_the_log_that_is_damaged_never_looks_like_its_end(
    tmp_path: Path, make_fold: Callable[[], Fold], seed: int
) -> None:
    write_history(tmp_path, make_fold)
    flip_a_byte(tmp_path / "log", seed)
    with pytest.raises(DiskError):
        fresh_fold(make_fold(), EmbeddedLog(tmp_path / "log"))


def test_a_flush_that_is_tried_again_later_rewrites_no_generation(
    tmp_path: Path, make_fold: Callable[[], Fold]
) -> None:
    store = TableStore(tmp_path / "table", generation_min_bytes=0)
    fold = make_fold()
    fold.apply(Offset(0), events_record(0, 0, [stored(0, [1], range(4))] * 9))
    failed = fold.take_changes()
    fold.apply(Offset(1), events_record(1, 1, [stored(1, [1], range(4))]))
    store.flush(fold, failed)
    assert store.generations == 0
    store.close()
    reopened = TableStore(tmp_path / "table")
    recovered = make_fold()
    reopened.load_into(recovered)
    recovered.apply(Offset(1), events_record(1, 1, [stored(1, [1], range(4))]))
    assert recovered.kernel.contexts() == fold.kernel.contexts()
    reopened.close()


def test_recovery_leaves_the_store_covering_the_end_of_the_log(
    tmp_path: Path, make_fold: Callable[[], Fold]
) -> None:
    log, store = EmbeddedLog(tmp_path / "log"), TableStore(tmp_path / "table")
    log.append([events_record(0, 0, [stored(0, [1], range(4))])])
    recover(store, log, make_fold)
    assert store.covered() == 0
    log.close()
    store.close()
