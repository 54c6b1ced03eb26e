"""What a newer Reprise has left on a disk is refused with what to do, or passed over, and is left
as it is.

A version above ours is written into each format that this Reprise has made. What it is then asked
to start on is compared before and after: every file that is no database's, byte for byte, of every
database all entries; and no part of it was set aside. `tests/integration/test_newer_formats.py` has
that of topics, and of roles.
"""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from logs.checkpoint import write_checkpoint
from logs.embedded import EmbeddedLog, ReadOnlyLog
from reprise.embedded.repair import DirectoryRepair
from reprise.embedded.service import EmbeddedService
from reprise.settings import Settings
from routing.fold.fold import STATE_VERSION, RoutingFold
from schemas.conditions import Part
from schemas.errors import NewerVersionError, StorageError
from schemas.identities import Offset
from schemas.records import NEWEST_VERSION
from schemas.routing_records import ROUTING_VERSION, encode_routing
from storage.rocksdb import HISTORY, LOG, SPOOL, TABLE, Database, Preset, new_batch
from streams.audit.log import ANSWERS
from streams.history.store import FORMAT as HISTORY_FORMAT
from streams.table.rows import format as rows
from tests.building import events_record, registered_record, registration, stored
from tests.processes import until
from tests.routing import decisions

PRESETS = {
    "log": LOG,
    "table": TABLE,
    "history": HISTORY,
    "answers": ANSWERS.preset,
    "spool": SPOOL,
}
TOKENS = list(range(8))


def contents(data: Path) -> dict[str, object]:
    """All that is stored below; what RocksDB does with its files meanwhile is its own."""
    found: dict[str, object] = {}
    databases = {file.parent for file in data.rglob("CURRENT")}
    for path in databases:
        database = Database.up_to_damage(path, PRESETS[path.name])
        try:
            found[str(path.relative_to(data))] = dict(database.scan(b"", b""))
        finally:
            database.close()
    for file in data.rglob("*"):
        if file.is_file() and file.parent not in databases:
            found[str(file.relative_to(data))] = file.read_bytes()
    return found


def change(path: Path, preset: Preset, key: bytes, of: Callable[[bytes], bytes]) -> None:
    """Replaces what stands under a key."""
    database = Database(path, preset)
    batch = new_batch()
    batch.put(key, of(database.get(key) or b""))
    database.write(batch)
    database.close()


def newer_row(value: bytes) -> bytes:
    """The same of the next version: what a checksum guards is what stands behind it."""
    return bytes([rows.ROW_FORMAT + 1]) + value[1:]


def u64(_: bytes) -> bytes:
    return struct.pack("<Q", 3)


def newer(record: bytes, version: int) -> bytes:
    """The record of another version, with a field that nobody knows."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(record) | {"version": version, "new": 1})


def newer_log(data: Path) -> None:
    change(data / "log", LOG, b"mformat", u64)


def newer_table(data: Path) -> None:
    change(data / "table", TABLE, rows.COVERED_KEY, newer_row)


def one_newer_row(data: Path) -> None:
    database = Database.read_only(data / "table", TABLE)
    key, _ = next(iter(database.scan(rows.CONTEXT, rows.CONTEXT)))
    database.close()
    change(data / "table", TABLE, key, newer_row)


def newer_history(data: Path) -> None:
    change(data / "history", HISTORY, b"f", lambda _: struct.pack("<I", HISTORY_FORMAT + 1))


def newer_answers(data: Path) -> None:
    change(data / "answers", ANSWERS.preset, b"mformat", u64)


def newer_routing_log(data: Path) -> None:
    change(data / "routing" / "log", LOG, b"mformat", u64)


def checkpoint_of(data: Path, place: int, state: bytes) -> None:
    """The checkpoint with another state in one of its fields."""
    fields = msgspec.msgpack.decode(RoutingFold().dump())
    fields[place] = state
    write_checkpoint(data / "routing" / "checkpoint", [msgspec.msgpack.encode(fields)])


def newer_checkpoint(data: Path) -> None:
    state = [STATE_VERSION + 1, {"another": "form"}]
    write_checkpoint(data / "routing" / "checkpoint", [msgspec.msgpack.encode(state)])


def newer_estimates(data: Path) -> None:
    checkpoint_of(data, 4, msgspec.msgpack.encode([3, "another form"]))


def newer_observations(data: Path) -> None:
    checkpoint_of(data, 5, msgspec.msgpack.encode([2, "another form"]))


def newer_note_of_loss(data: Path) -> None:
    (data / "loss.json").write_text('{"version": 2, "losses": ["another form"]}\n')


REFUSED: dict[Callable[[Path], None], tuple[str, str]] = {
    newer_log: ("a log of version `2`", "log"),
    newer_table: ("table rows of version `1`", "table"),
    one_newer_row: ("table rows of version `1`", "table"),
    newer_history: ("a history of version `1`", "history"),
    newer_answers: ("a log of version `2`", "answers"),
    newer_routing_log: ("a log of version `2`", "routing/log"),
    newer_checkpoint: ("a checkpoint of routing of version `1`", "routing/checkpoint"),
    newer_estimates: ("a state of the estimates of version `2`", "routing/checkpoint"),
    newer_observations: ("a checkpoint of observations of version `1`", "routing/checkpoint"),
    newer_note_of_loss: ("a note of lost records of version `1`", "loss.json"),
}


def write_all(path: Path) -> None:
    """Makes a data directory with all that a service can keep, but for LMCache's."""
    log = EmbeddedLog(path / "log")
    log.append(
        [registered_record(registration("a")), events_record(0, 0, [stored(0, [1], TOKENS[:4])])]
    )
    log.close()
    (path / "routing").mkdir()
    routing = EmbeddedLog(path / "routing" / "log")
    routing.append([encode_routing(decisions(1))])
    routing.close()
    ANSWERS.opened(path).close()
    ended, problem = outcome(path)
    assert (ended, problem) == (False, "")
    answers = ANSWERS.opened(path)
    answers.append([b"one that cannot be read"])
    answers.close()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "data"
    write_all(path)
    return path


@pytest.fixture
def data(kept: Path, tmp_path: Path) -> Path:
    """A copy of what `write_all` makes."""
    return shutil.copytree(kept, tmp_path / "data")


def until_recovered(service: EmbeddedService) -> None:
    until(
        lambda: service.damage or not service.conditions.has(Part.RECOVERY),
        what=f"the end of the recovery: {service.conditions.problem}",
    )


def outcome(data: Path) -> tuple[bool, str]:
    """Whether a service ends on the directory, and what it says then."""
    try:
        service = EmbeddedService(Settings(data=data, audit_rate=1.0))
    except StorageError as error:
        return True, str(error)
    service.start()
    try:
        until_recovered(service)
        return service.damage is not None, str(service.damage or "")
    finally:
        service.stop()


@pytest.mark.parametrize("make_newer", REFUSED, ids=lambda one: one.__name__)
def test_a_service_refuses_what_is_newer_and_leaves_it(
    data: Path, make_newer: Callable[[Path], None]
) -> None:
    make_newer(data)
    before = contents(data)
    what, where = REFUSED[make_newer]
    for _ in range(2):
        ended, problem = outcome(data)
        assert ended
        assert problem.startswith(f"Expected {what} or older, got `")
        assert f"at {data / where}: a newer Reprise wrote it, and it is left as it is" in problem
        assert problem.endswith("Upgrade this one")
    assert contents(data) == before


@pytest.mark.parametrize(
    "make_newer", [newer_log, newer_table, one_newer_row, newer_routing_log, newer_checkpoint]
)
def test_a_repair_takes_nothing_newer_for_damage(
    data: Path, make_newer: Callable[[Path], None]
) -> None:
    make_newer(data)
    before = contents(data)
    with pytest.raises(NewerVersionError, match=r"or older, got `[23]`"):
        DirectoryRepair(data).examine()
    assert contents(data) == before


def test_records_of_a_newer_version_are_passed_over_counted_and_kept(data: Path) -> None:
    event = newer(events_record(1, 1, [stored(1, [2], TOKENS[4:], parent=1)]), NEWEST_VERSION + 1)
    routed = newer(encode_routing(decisions(2)), ROUTING_VERSION + 1)
    for path, record in ((data / "log", event), (data / "routing" / "log", routed)):
        log = EmbeddedLog(path)
        log.append([record])
        log.close()
    service = EmbeddedService(Settings(data=data))
    service.start()
    try:
        until_recovered(service)
        assert service.folding.fold.counters["newer_version"] == 1
        assert service.routing.skipped == 1
    finally:
        service.stop()
    for path, record in ((data / "log", event), (data / "routing" / "log", routed)):
        reading = ReadOnlyLog(path)
        assert record in [one.value for one in reading.read(Offset(0))]
        reading.close()
