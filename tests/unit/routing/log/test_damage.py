"""A damaged routing log: the service starts and says what to do; a repair keeps what there is."""

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from logs.embedded import EmbeddedLog, ReadOnlyLog
from reprise.cli.main import main
from reprise.cli.repair import repair
from routing.log.embedded import RoutingLog
from schemas.limits import LOG_SEGMENT_BYTES
from schemas.routing_records import PrefixMark, encode_routing
from tests.routing import routing_log
from tests.unit.routing.decisions.test_folded_routing import record
from tests.unit.routing.sample_decisions import decision

RECORDS = 2000


def opened(data: Path) -> RoutingLog:
    """As a start opens it."""
    return routing_log(data)


@pytest.fixture(params=[LOG_SEGMENT_BYTES, 32 * 1024], ids=["found at opening", "found later"])
def data(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A routing log with a checkpoint of its first record; and a log of events.
    Opening one reads its last segment.
    """
    EmbeddedLog(tmp_path / "log").close()
    routing = opened(tmp_path)
    routing.queue.push_decision(1, decision(0))
    routing.writer.write()
    routing.stop()
    log = EmbeddedLog(tmp_path / "routing" / "log", segment_bytes=request.param)
    marks = tuple(PrefixMark(1 << place, place * 0x9E3779B97F4A7C15 % 2**64) for place in range(9))
    for number in range(1, RECORDS):
        log.append([encode_routing(record(number, marks=marks))])
    log.close()
    return tmp_path


def damage(data: Path) -> None:
    """Flipped bits in the middle of the file that has most of it."""
    file = max(data.glob("routing/log/*.rec"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0xFF
    file.write_bytes(content)


def readable(data: Path) -> int:
    log = ReadOnlyLog(data / "routing" / "log")
    try:
        return sum(1 for _ in log.read(log.complete_from))
    finally:
        log.close()


def test_one_whose_records_cannot_be_read_is_set_aside_and_the_service_starts(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(data)
    with caplog.at_level(logging.WARNING):
        routing = opened(data)
    assert routing.folded.read(lambda fold: len(fold.bookings)) >= 1
    assert f"`reprise repair --data {data}`" in caplog.text
    assert "log.damaged-1" in caplog.text
    routing.queue.push_decision(2, decision(0))
    routing.writer.write()
    assert (routing.written, routing.folded.offset) == (1, 0)
    routing.stop()
    result = CliRunner().invoke(repair, ["--data", str(data)])
    assert result.exit_code == 0, result.output
    assert "routing whole, with records 0 to 0" in result.output
    assert "log.damaged-1 was set aside" in result.output


def test_a_repair_before_the_start_makes_a_log_of_what_can_be_read(data: Path) -> None:
    whole = readable(data)
    damage(data)
    said = CliRunner().invoke(repair, ["--data", str(data)])
    assert said.exit_code == 3
    assert "routing damaged" in said.output
    assert "with --yes: what can be read becomes the log" in said.output
    done = CliRunner().invoke(repair, ["--data", str(data), "--yes"])
    assert done.exit_code == 0, done.output
    assert 0 < readable(data) < whole
    routing = opened(data)
    assert routing.folded.offset == RECORDS - 1
    routing.stop()


def test_a_damaged_checkpoint_is_said_and_the_log_is_folded_from_its_beginning(data: Path) -> None:
    checkpoint = data / "routing" / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    said = CliRunner().invoke(repair, ["--data", str(data)])
    assert said.exit_code == 0
    assert "a start folds its log from the beginning" in said.output
    routing = opened(data)
    assert routing.folded.offset == RECORDS - 1
    routing.stop()


def test_what_cannot_be_read_of_it_is_counted_by_a_proof_and_named(data: Path) -> None:
    damage(data)
    result = CliRunner().invoke(main, ["audit", "verify", "--data", str(data)])
    assert result.exit_code == 1
    assert " records of the routing log cannot be read: from record " in result.output
    assert f"`reprise repair --data {data}`" in result.output
    if "from record 0 of" not in result.output:
        assert "\ndecisions " in result.output


def test_what_no_record_can_have_costs_itself_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    routing = opened(tmp_path)
    routing.queue.push_decision(1, decision(0, prompt_tokens=2**64))
    routing.queue.push_decision(2, decision(0))
    routing.writer.write()
    assert (routing.unwritten, routing.written) == (1, 1)
    assert routing.folded.read(lambda fold: len(fold.bookings)) == 1
    assert "A record of the routing log cannot be written; it is dropped" in caplog.text
    routing.stop()
