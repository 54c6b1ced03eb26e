"""What becomes of a worker, as records."""

from array import array
from itertools import pairwise

from lmcache_adapter.journal import LMCACHE_BATCH_KEYS, Journal
from lmcache_adapter.settings import Model
from lmcache_adapter.wire.locations import tier_of
from schemas.answer_states import Doubt
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


def test_what_is_held_takes_the_place_of_all_that_the_log_has() -> None:
    one = journal()
    one.rewrite("registered", [(CPU, [1, 2]), (DISK, [3])])
    one.rewrite("full_sync", [(DISK, [4])], "location_not_synced")
    first, held, second, left, gap = one.take()
    assert isinstance(first, ResetRecord)
    assert isinstance(second, ResetRecord)
    assert [(one.incarnation, one.reason) for one in (first, second)] == [
        (7, "registered"),
        (8, "full_sync"),
    ]
    assert [keys(event) for event in events(held)] == [[1, 2], [3]]
    assert [keys(event) for event in events(left)] == [[4]]
    assert isinstance(gap, GapRecord)
    assert (gap.incarnation, gap.first_sequence, gap.reason) == (8, 1, "location_not_synced")


def test_what_is_no_news_is_not_reported() -> None:
    one = journal()
    assert one.report(Doubt.CATCHING_UP) is None
    report = one.report(None)
    assert report is not None
    assert (report.records, report.doubt) == ([], None)
    assert one.report(None) is None
    one.begin("registered")
    report = one.report(None)
    assert report is not None
    assert (len(report.records), report.is_gone) == (1, False)


def test_an_end_is_behind_what_came_before() -> None:
    one = journal()
    one.begin("registered")
    one.put(CPU, 1, is_stored=True)
    report = one.end()
    assert (report.publisher, report.doubt, report.is_gone) == (PUBLISHER, Doubt.NOT_FOLLOWED, True)
    *_, last = report.records
    assert isinstance(last, UnregisteredRecord)
    assert last.publisher == PUBLISHER
