"""Signals end a command, also where whatever started it has them ignored."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from console.interruption import Commands, asked_to_stop, ended_by_signals
from logs.embedded import EmbeddedLog
from reprise.cli.main import main
from schemas.errors import StorageError
from streams.table import verification

BOTH = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
BOUND_S = 20.0


@pytest.fixture(params=[signal.SIG_IGN, signal.SIG_DFL])
def inherited(request: pytest.FixtureRequest) -> Iterator[signal.Handlers]:
    """What the process has inherited for both signals."""
    before = [(number, signal.signal(number, request.param)) for number, _ in BOTH]
    try:
        yield request.param
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), BOTH)
def test_a_signal_ends_a_command_without_a_word(
    inherited: signal.Handlers, number: signal.Signals, code: int
) -> None:
    left: list[str] = []

    @click.group(cls=Commands)
    def group() -> None: ...

    @group.command()
    def wait() -> None:
        try:
            signal.raise_signal(number)
            time.sleep(BOUND_S)
        finally:
            left.append("in order")

    result = CliRunner().invoke(group, ["wait"])
    assert (result.exit_code, result.output, left) == (code, "", ["in order"])
    assert [signal.getsignal(one) for one, _ in BOTH] == [inherited, inherited]


@pytest.mark.usefixtures("inherited")
@pytest.mark.parametrize(("number", "code"), BOTH)
def test_verify_is_ended_while_it_folds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    def fold(data: Path, seed: int) -> Iterator[str]:
        yield "first context"
        signal.raise_signal(number)
        time.sleep(BOUND_S)

    monkeypatch.setattr(verification, "verify_log", fold)
    result = CliRunner().invoke(main, ["verify", "--data", str(tmp_path)])
    assert (result.exit_code, result.output) == (code, "first context\n")


def test_a_thread_that_may_not_install_handlers_runs_the_command_all_the_same() -> None:
    ran: list[bool] = []

    def run() -> None:
        with ended_by_signals():
            ran.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(BOUND_S)
    assert ran == [True]


def test_output_that_takes_no_more_is_told_in_a_line(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.append([b"no record"])
    log.close()
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "reprise", "tail", "--data", str(tmp_path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == "Error: Cannot write to standard output: No space left on device\n"


@pytest.mark.usefixtures("inherited")
@pytest.mark.parametrize(("number", "code"), BOTH)
def test_a_command_that_asks_ends_in_order_at_the_first_signal(
    number: signal.Signals, code: int
) -> None:
    asked: list[bool] = []

    @click.group(cls=Commands)
    def group() -> None: ...

    @group.command()
    def record() -> None:
        with asked_to_stop() as stopped:
            asked.append(stopped())
            signal.raise_signal(number)
            asked.append(stopped())
        click.echo("finished")

    result = CliRunner().invoke(group, ["record"])
    assert (result.exit_code, result.output, asked) == (0, "finished\n", [False, True])


@pytest.mark.usefixtures("inherited")
@pytest.mark.parametrize(("number", "code"), BOTH)
def test_a_second_signal_ends_it_at_once(number: signal.Signals, code: int) -> None:
    @click.group(cls=Commands)
    def group() -> None: ...

    @group.command()
    def record() -> None:
        with asked_to_stop():
            signal.raise_signal(number)
            signal.raise_signal(number)
            click.echo("went on")

    result = CliRunner().invoke(group, ["record"])
    assert (result.exit_code, result.output) == (code, "")


def test_what_an_error_of_ours_says_ends_a_command() -> None:
    @click.group(cls=Commands)
    def group() -> None: ...

    @group.command()
    def record() -> None:
        raise StorageError("the disk of \x1b[31mlog\x1b[0m is full")

    result = CliRunner().invoke(group, ["record"])
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert result.output.startswith("Error: the disk of ")
    assert "\x1b" not in result.output
