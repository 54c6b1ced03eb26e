"""What becomes of a worker, as records."""

from array import array
from itertools import pairwise

from lmcache_adapter.settings import Model
from lmcache_adapter.wire.locations import tier_of
from lmcache_adapter.worker.journal import LMCACHE_BATCH_KEYS, Journal
from schemas.codec import decode_record_events
from schemas.events import RemovedBlocks, StoredBlocks
from schemas.identities import Medium, PublisherKey
from schemas.limits import RECORD_BYTES_MAX
from schemas.records import EventsRecord, GapRecord, ResetRecord, UnregisteredRecord

CPU, DISK = tier_of("LocalCPUBackend"), tier_of("LocalDiskBackend")
PUBLISHER = PublisherKey(Model().stream("a"), 3)


def journal(incarnation: int = 7) -> Journal:
    return Journal(PUBLISHER, lambda publisher: incarnation, lambda: 1_795_000_000.0)


def events(record: object) -> list[StoredBlocks | RemovedBlocks]:
    assert isinstance(record, EventsRecord)
    found = []
    for event in decode_record_events(record):
        assert isinstance(event, StoredBlocks | RemovedBlocks)
        found.append(event)
    return found


def keys(event: StoredBlocks | RemovedBlocks) -> list[int]:
    return list(array("Q", event.hashes))


def test_nothing_has_happened() -> None:
    assert journal().take() == []


def test_what_came_together_is_one_batch_of_events_by_tier() -> None:
    one = journal()
    one.begin("registered")
    for key in (1, 2):
        one.put(CPU, key, is_stored=True)
    one.put(DISK, 1, is_stored=True)
    one.put(CPU, 1, is_stored=False)
    reset, batch = one.take()
    assert isinstance(reset, ResetRecord)
    assert (reset.incarnation, reset.reason, reset.publisher) == (7, "registered", PUBLISHER)
    assert isinstance(batch, EventsRecord)
    assert (batch.first_sequence, batch.last_sequence, batch.incarnation) == (0, 0, 7)
    stored, on_disk, removed = events(batch)
    assert isinstance(stored, StoredBlocks)
    assert stored.by_hash
    assert (keys(stored), stored.medium, stored.block_size) == ([1, 2], Medium.CPU, 256)
    assert (keys(on_disk), on_disk.medium) == ([1], Medium.DISK)
    assert isinstance(removed, RemovedBlocks)
    assert (keys(removed), removed.medium) == ([1], Medium.CPU)


def test_batches_are_numbered_on_and_from_0_in_each_incarnation() -> None:
    one = journal()
    one.begin("registered")
    taken = one.take()
    for key in (1, 2):
        one.put(CPU, key, is_stored=True)
        taken += one.take()
    one.gap("operations_missed")
    one.put(CPU, 3, is_stored=True)
    one.begin("full_sync")
    one.put(CPU, 4, is_stored=True)
    taken += one.take()
    numbers = [
        (one.incarnation, one.first_sequence, one.last_sequence)
        for one in taken
        if isinstance(one, EventsRecord | GapRecord | ResetRecord)
    ]
    assert numbers == [
        (7, -1, -1),
        (7, 0, 0),
        (7, 1, 1),
        (7, 2, 2),
        (7, 3, 3),
        (8, -1, -1),
        (8, 0, 0),
    ]


def test_an_incarnation_is_above_what_the_log_has() -> None:
    above = iter([7, 2, 50])
    one = Journal(PUBLISHER, lambda publisher: next(above), lambda: 0.0)
    for _ in range(3):
        one.begin("x")
    found = [record.incarnation for record in one.take() if isinstance(record, ResetRecord)]
    assert found == [7, 8, 50]


def test_very_many_keys_are_events_and_records_of_bounded_size() -> None:
    one = journal()
    one.begin("full_sync")
    count = 600_000
    for key in range(count):
        one.put(CPU, key, is_stored=True)
    taken = one.take()
    found = [event for record in taken[1:] for event in events(record)]
    assert [key for event in found for key in keys(event)] == list(range(count))
    assert all(len(keys(event)) <= LMCACHE_BATCH_KEYS for event in found)
    assert all(
        len(bytes(record.events)) <= RECORD_BYTES_MAX
        for record in taken
        if isinstance(record, EventsRecord)
    )
    numbers = [record.last_sequence for record in taken if isinstance(record, EventsRecord)]
    assert all(after == before + 1 for before, after in pairwise(numbers))


def test_an_end_is_behind_what_came_before() -> None:
    one = journal()
    one.begin("registered")
    one.put(CPU, 1, is_stored=True)
    one.unregister()
    *_, last = one.take()
    assert isinstance(last, UnregisteredRecord)
    assert last.publisher == PUBLISHER
