"""What rooms declare of their logs is all that the rest of the service needs: one more is listed,
and everything that goes by the declarations has it.
"""

from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from brokers.broker_settings import KafkaSettings
from reprise import logs
from reprise.embedded.backup import back_up
from reprise.embedded.repair import DirectoryRepair
from reprise.embedded.restoration import restore
from reprise.embedded.service import EmbeddedService
from reprise.logs import declared_logs, disk_parts
from reprise.metrics.roles import embedded_collector
from reprise.settings import Settings
from schemas.conditions import DISK_PARTS, Part
from schemas.errors import DataDirectoryInUseError
from storage.rocksdb import memory_by_database
from streams.audit.log import ANSWERS
from tests.unit.logs.alarms import ALARMS, Alarm

SEED = 1337


def service(data: Path) -> EmbeddedService:
    return EmbeddedService(Settings(data=data, kernel="reference", seed=SEED))


def rung(data: Path, count: int = 1) -> dict[str, int]:
    """How often it had rung before, by place; then it rings so often again."""
    made = service(data)
    alarms = made.logs[ALARMS]
    counts = dict(alarms.fold.counts)
    if count:
        alarms.push(Alarm("door", count))
    made.stop()
    return counts


@pytest.fixture
def sixth(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line more."""
    listed = (*declared_logs(), ALARMS)
    for module in ("reprise.logs", "reprise.embedded.repair", "reprise.embedded.service"):
        monkeypatch.setattr(f"{module}.declared_logs", lambda: listed)


def test_no_two_logs_share_a_topic_or_a_directory() -> None:
    settings = KafkaSettings(bootstrap="k:1", events_partitions=3, registry_partitions=5)
    specs = [settings.topic(shape) for one in declared_logs() for shape in one.topics]
    assert max(Counter(spec.name for spec in specs).values()) == 1
    partitions = {spec.name: spec.partitions for spec in specs}
    assert partitions == partitions | {
        "reprise.registry": 5,
        "reprise.cursors": 5,
        "reprise.events": 3,
        "reprise.table": 3,
        "reprise.routing": 1,
        "reprise.routing-state": 1,
        "reprise.answers": 4,
        "reprise.commands": 4,
        "reprise.results": 4,
    }
    paths = Counter(one.path.parts[0] for one in declared_logs() if one.path is not None)
    assert max(paths.values()) == 1
    assert set(paths) >= {"log", "routing", "answers", "commands"}
    assert logs.log_presets()["answers"].name == "the log of answers"


def test_the_database_of_a_log_is_the_one_that_it_declares(tmp_path: Path) -> None:
    made = EmbeddedService(Settings(data=tmp_path, kernel="reference", audit_rate=1.0))
    databases = memory_by_database()
    made.stop()
    assert ANSWERS.preset.name.removeprefix("the ") in databases


def test_a_failed_disk_is_a_condition_of_each_log_that_has_one() -> None:
    assert disk_parts() >= {*DISK_PARTS, Part.ROUTING, Part.AUDIT}


@pytest.mark.usefixtures("sixth")
def test_a_sixth_is_written_recovered_backed_up_restored_and_counted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert rung(data) == {}
    assert rung(data, 2) == {"door": 1}
    back_up(data, tmp_path / "backup", seed=SEED)
    restore(tmp_path / "backup", tmp_path / "restored")
    assert rung(tmp_path / "restored", 0) == {"door": 3}
    assert disk_parts() >= {"alarms"}


@pytest.mark.usefixtures("sixth")
def test_a_sixth_that_is_damaged_is_repaired(tmp_path: Path) -> None:
    for _ in range(2):
        rung(tmp_path)
    current = ALARMS.path_in(tmp_path) / "CURRENT"
    current.write_text("MANIFEST-999999\n")
    (tmp_path / "alarms" / "kept").unlink()
    repair = DirectoryRepair(tmp_path)
    found = repair.examine()
    assert [one.part for one in found if one.remedy] == ["alarms"]
    said = list(repair.carry_out(found))
    assert said[0].endswith(" entries could be read")
    assert rung(tmp_path, 0) == {"door": 2}


@pytest.mark.usefixtures("sixth")
def test_a_sixth_that_cannot_be_opened_leaves_none_open(tmp_path: Path) -> None:
    rung(tmp_path)
    other = ALARMS.opened(tmp_path)
    with pytest.raises(DataDirectoryInUseError, match="alarms/log") as kept:
        EmbeddedService(Settings(data=tmp_path, kernel="reference", audit_rate=1.0))
    other.close()
    ANSWERS.opened(tmp_path).close()  # which was opened before
    assert kept.tb is not None, "nothing was left to the garbage collector"
    assert rung(tmp_path, 0) == {"door": 1}


def test_names_of_metrics_are_there_where_a_log_is_not_run(tmp_path: Path) -> None:
    made, registry = service(tmp_path), CollectorRegistry()
    registry.register(embedded_collector(made))
    made.stop()
    families = {one.name: one.samples for one in registry.collect()}
    assert made.audit_queue is None
    assert families["reprise_audit_written"] == []
    assert families["reprise_routing_written"] != []
