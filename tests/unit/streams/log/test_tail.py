"""`reprise tail` on a data directory, in this process: filters, limits, sources, following."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from logs.embedded import EmbeddedLog
from reprise.cli.main import main
from schemas.identities import StreamKey
from streams.log.tail import TailOptions, tail_embedded
from tests.building import events_record, removed

BOUND_S = 20.0


def record(number: int, instance: str = "a") -> bytes:
    stream = StreamKey("default", "m", 4, "", instance)
    return events_record(number, number, [removed(number, [number])], stream=stream)


def run(*arguments: object, environment: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["tail", *map(str, arguments)], env=environment or {})


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    log = EmbeddedLog(tmp_path / "log")
    log.append([record(0), record(1, "b"), b"\xc1", record(2)])
    log.close()
    return tmp_path


def test_records_come_from_the_oldest_to_the_newest(data: Path) -> None:
    assert [line["offset"] for line in lines(run("--data", data))] == [0, 1, 2, 3]


def test_filters_leave_out_what_is_known_to_be_of_others(data: Path) -> None:
    found = lines(run("--data", data, "--instance", "b"))
    assert [(line["offset"], "error" in line) for line in found] == [(1, False), (2, True)]


def test_the_limit_counts_lines(data: Path) -> None:
    assert [line["offset"] for line in lines(run("--data", data, "--limit", 2))] == [0, 1]
    filtered = run("--data", data, "--instance", "a", "--limit", 3)
    assert [line["offset"] for line in lines(filtered)] == [0, 2, 3]


def test_more_records_than_are_read_at_once(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.append([record(number) for number in range(1201)])
    log.close()
    found = lines(run("--data", tmp_path, "--compact"))
    assert [line["offset"] for line in found] == list(range(1201))


def test_following_begins_at_the_end_and_sees_what_is_written_later(data: Path) -> None:
    first, *others = follow(data, from_beginning=False, count=3)
    assert first >= 4, "what was there at the start is left out"
    assert others == [first + 1, first + 2]


def test_following_may_begin_at_the_beginning(data: Path) -> None:
    assert follow(data, from_beginning=True, count=6) == [0, 1, 2, 3, 4, 5]


def follow(data: Path, *, from_beginning: bool, count: int) -> list[int]:
    """The offsets that a tail prints while another thread writes."""
    log = EmbeddedLog(data / "log")
    stop = threading.Event()
    number = 3

    def write() -> None:
        nonlocal number
        while not stop.wait(0.05):
            log.append([record(number)])
            number += 1

    options = TailOptions(follow=True, from_beginning=from_beginning, limit=count)
    printed: list[bytes] = []
    writer = threading.Thread(target=write)
    reader = threading.Thread(target=tail_embedded, args=(data, options, printed.append))
    reader.start()
    writer.start()
    reader.join(BOUND_S)
    stop.set()
    writer.join(BOUND_S)
    log.close()
    assert not reader.is_alive()
    return [json.loads(line)["offset"] for line in b"".join(printed).splitlines()]


def test_exactly_one_source_is_given(data: Path) -> None:
    for arguments in ([], ["--kafka", "127.0.0.1:1", "--data", data]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "Expected one of --kafka and --data" in result.output


def test_a_directory_by_flag_wins_over_kafka_by_the_environment(data: Path) -> None:
    found = run("--data", data, "--limit", 1, environment={"REPRISE_KAFKA": "127.0.0.1:1"})
    assert [line["offset"] for line in lines(found)] == [0]


def test_a_directory_without_a_log_is_said(tmp_path: Path) -> None:
    result = run("--data", tmp_path)
    assert result.exit_code == 1
    assert f"Expected a log at {tmp_path / 'log'}" in result.output


def test_kafka_settings_that_contradict_each_other_are_said() -> None:
    result = run("--kafka", "127.0.0.1:1", "--kafka-sasl-mechanism", "PLAIN")
    assert result.exit_code == 2
    assert "Expected a SASL mechanism with security protocol SASL_" in result.output
