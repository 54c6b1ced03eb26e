"""Progress is shown on a terminal, and elsewhere where it is asked for."""

import sys
import time
from io import StringIO

import pytest

from console import progress as shown
from console.progress import line_of, progress_shown
from schemas.progress import Progress, silent


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_shown_where_standard_error_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", StringIO())
    with progress_shown("Capturing", "records") as tell:
        assert tell is silent


def test_a_terminal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_shown("Capturing", "records") as tell:
        assert tell is not silent
        tell(Progress(1, 2, 1))


def test_lines_come_elsewhere_where_that_is_asked_for_also_while_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shown, "PROGRESS_ELSEWHERE_S", 0.05)
    with progress_shown("Running", "runs", everywhere=True) as tell:
        tell(Progress(1, 4, 1))
        said = ""
        while said.count("\n") < 2:
            time.sleep(0.05)
            said += capsys.readouterr().err
    assert said.startswith("Running: 25 %, 1 runs, 0 s, about 0 s left\n")
    time.sleep(0.2)
    capsys.readouterr()
    time.sleep(0.2)
    assert capsys.readouterr().err == "", "it has ended"


def test_a_line_says_how_far_it_is_and_how_long_it_takes_yet() -> None:
    said = line_of("Capturing", "records", Progress(20, 100, 7, 3 * 1024 * 1024), 30.0)
    assert said == "Capturing: 20 %, 7 records, 3.0 MiB, 30 s, about 120 s left"
    assert line_of("Capturing", "messages", Progress(5, None, 5), 1.0) == (
        "Capturing: 5 messages, 1 s"
    )
    assert line_of("Running", "runs", Progress(0, 7, 0), 10.0) == "Running: 0 %, 0 runs, 10 s"
