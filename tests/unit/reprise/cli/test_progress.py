"""Progress is shown on a terminal alone."""

import sys
from io import StringIO

import pytest

from replay.capture.progress import Progress, silent
from reprise.cli.progress import _line_teller, _said, progress_shown


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


def test_lines_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    tell = _line_teller("Capturing", "records", clock=lambda: now)
    for now in (0.5, 1.9, 2.0, 3.0, 4.5):
        tell(Progress(int(10 * now), 100, 7, 3 * 1024 * 1024))
    assert capsys.readouterr().err == (
        "Capturing: 20 %, 7 records, 3.0 MiB\nCapturing: 45 %, 7 records, 3.0 MiB\n"
    )


def test_what_has_no_known_end_has_no_percentage() -> None:
    assert _said(Progress(5, None, 5), "messages") == "5 messages"
    assert _said(Progress(0, 0, 0), "records") == "0 records"
