"""What version 0.1.0 wrote to its disks and topics is read by this one, to the last digest.

`tests/data/written-by-0.1.0.tar.xz` has a data directory of `reprise up` (log and table, stopped
before its last flush), the spool of a bridge, and in `topics.msgpack` the messages of all four
topics, with what that version made of them. A format that changes gets an archive of its own beside
it, by `python -m tests.written`; none is ever replaced.
"""

import re
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from bridge.delivery.spool import Spool
from lmcache_adapter.commands.embedded import EmbeddedCommands
from lmcache_adapter.controller.member import WorkerAddress
from logs.checkpoint import read_checkpoint
from logs.declaration import EmbeddedParts
from logs.embedded import ReadOnlyLog
from query_api.replica.registry_table import RegistryTable
from reprise.cli.main import main
from routing.fold.fold import RoutingFold
from schemas.clock import REAL_CLOCK
from schemas.codec import decode_record, decode_routing
from schemas.command_records import CommandState
from schemas.conditions import Conditions
from schemas.identities import Offset
from schemas.routing_records import DecisionsRecord
from streams.index_settings import DEFAULT_SEED
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.rows.reader import RowReader
from streams.table.verification import verify_log
from tests.written import ARCHIVES, COMMAND, Expected, agreed

ARCHIVE = ARCHIVES / "written-by-0.1.0.tar.xz"
MADE = set(ARCHIVES.glob("written-by-*.tar.xz")) - {ARCHIVE}


class Topics(msgspec.Struct):
    """The messages of the topics, and what 0.1.0 made of them."""

    registry: list[tuple[bytes, bytes | None]]
    cursors: list[tuple[bytes, bytes]]
    events: list[bytes]
    table: list[tuple[bytes, bytes | None]]
    digests: list[tuple[list[str | int], int, int]]
    publishers: dict[str, tuple[int, int, int | None]]
    registered: list[str]

    @property
    def expected(self) -> list[tuple[tuple[str | int, ...], int, int]]:
        """(context, digest, entries), sorted."""
        return sorted((tuple(names), digest, entries) for names, digest, entries in self.digests)


def extracted(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")
    return directory


def topics_in(written: Path) -> Topics:
    return msgspec.msgpack.decode((written / "topics.msgpack").read_bytes(), type=Topics)


def expected_in(made: Path) -> Expected:
    return msgspec.msgpack.decode((made / "expected.msgpack").read_bytes(), type=Expected)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return extracted(ARCHIVE, tmp_path)


@pytest.fixture
def topics(written: Path) -> Topics:
    return topics_in(written)


def test_the_log_alone_gives_the_same_digests(written: Path, topics: Topics) -> None:
    lines = list(verify_log(written / "data", DEFAULT_SEED))
    digests = {line.split()[0] for line in lines if " entries " in line}
    assert digests == {f"{digest:016x}" for _, digest, entries in topics.expected if entries}


def test_every_record_of_the_log_and_the_topic_is_folded(written: Path, topics: Topics) -> None:
    log = ReadOnlyLog(written / "data" / "log")
    assert [entry.value for entry in log.read(Offset(0))] == topics.events
    log.close()
    fold = Fold(open_kernel(DEFAULT_SEED))
    for place, value in enumerate(topics.events):
        assert fold.apply(Offset(place), value) is None
    states = {
        f"{key.stream.instance_id}|{key.dp_rank}": (
            state.incarnation,
            state.sequence,
            state.degraded_since,
        )
        for key, state in fold.publishers.items()
    }
    assert states == topics.publishers
    found = [(tuple(one.context), one.digest, one.entries) for one in fold.kernel.contexts()]
    assert sorted(found) == topics.expected


def test_the_rows_of_the_table_topic_give_the_same_table(topics: Topics) -> None:
    reader = RowReader(open_kernel(DEFAULT_SEED))
    for key, value in topics.table:
        reader.put(0, key, value)
    reader.caught_up(0)
    assert reader.take_skipped() == []
    assert reader.ledgers == {}, "it kept none"
    assert reader.covered(0) == len(topics.events) - 1
    found = [(tuple(one.context), one.digest, one.entries) for one in reader.kernel.contexts()]
    assert sorted(found) == topics.expected


def test_the_registry_is_read(topics: Topics) -> None:
    registry = RegistryTable(lambda publisher, registered: None)
    for place, (key, value) in enumerate(topics.registry):
        registry.put(place, key, value)
    assert sorted(key.stream.instance_id for key in registry.registrations) == topics.registered


def test_the_spool_is_drained(written: Path, topics: Topics) -> None:
    spool = Spool(written / "spool")
    spooled = [one.encoded for publisher in spool.publishers() for one in spool.read(publisher)]
    assert sorted(spooled) == sorted(topics.events[:50])
    assert all(decode_record(one) for one in spooled)
    spool.close()


# An archive that `tests.written` has made


@pytest.fixture(params=sorted(MADE), ids=lambda path: path.name)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return extracted(request.param, tmp_path)


@pytest.fixture
def expected(made: Path) -> Expected:
    return expected_in(made)


def printed(*arguments: str) -> str:
    """What the command prints; it has to end with 0."""
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_log_and_the_capture_give_the_same_digests(made: Path, expected: Expected) -> None:
    digests = {one["digest"] for one in expected.contexts if one["entries"]}
    for command in (
        ("verify", "--data", str(made / "data")),
        ("replay", str(made / "data.capture")),
    ):
        assert set(re.findall(r"\b([0-9a-f]{16})\b.* entries", printed(*command))) == digests


def test_every_record_of_its_log_is_folded(made: Path) -> None:
    fold = Fold(open_kernel(DEFAULT_SEED))
    log = ReadOnlyLog(made / "data" / "log")
    kinds = set()
    for entry in log.read(Offset(0)):
        assert fold.apply(entry.offset, entry.value) is None
        kinds.add(msgspec.msgpack.decode(entry.value)["kind"])
    log.close()
    assert kinds == {"registered", "events", "gap", "heartbeat", "memory"}
    assert [key.segment for key in fold.memory.segments] == ["kvcached_a"]


def test_all_answers_and_decisions_are_proven(made: Path, expected: Expected) -> None:
    assert agreed(printed("audit", "verify", "--data", str(made / "data"))) == expected.audited


def test_the_checkpoint_of_routing_is_a_fold_of_its_log(made: Path, expected: Expected) -> None:
    kept = read_checkpoint(made / "data" / "routing" / "checkpoint", RoutingFold.load)
    assert kept is not None
    fold = RoutingFold()
    decided = 0
    log = ReadOnlyLog(made / "data" / "routing" / "log")
    for entry in log.read(Offset(0)):
        record = decode_routing(entry.value)
        fold.apply(entry.offset, record)
        decided += len(record.decisions) if isinstance(record, DecisionsRecord) else 0
    log.close()
    assert decided == expected.decided
    # What outcomes have taught goes on from what was kept: it may be folded in other ways since.
    kept.estimates = fold.estimates
    kept.failures = fold.failures  # an older one knew nothing of them
    kept.observations.contradictions = fold.observations.contradictions  # nor of these
    for promise in kept.observations.open.state().promises:
        same = fold.observations.open.find(promise.run, promise.number)
        assert same is not None
        assert (promise.gpu, promise.test_s, promise.overdue) == (0, 0.0, 0)
        promise.gpu, promise.test_s, promise.overdue = same.gpu, same.test_s, same.overdue
    for (key, mark), (same_key, same_mark) in zip(
        kept.observations.predicted.state().marks,
        fold.observations.predicted.state().marks,
        strict=True,
    ):
        assert (key, mark.since) == (same_key, 0.0)
        mark.since = same_mark.since
    assert (kept.offset, kept.digest) == (fold.offset, fold.digest)
    assert len(fold.bookings.state().bookings) == expected.under_way


def test_what_became_of_commands_is_known(made: Path) -> None:
    async def nobody(instance_id: str) -> Mapping[int, WorkerAddress]:
        return {}

    commands = EmbeddedCommands(
        EmbeddedParts(made / "data", Conditions(time.time), REAL_CLOCK), nobody
    )
    try:
        found = commands.book.find(COMMAND)
        assert found is not None
        assert found.state is CommandState.DONE
    finally:
        commands.start()
        commands.stop()
