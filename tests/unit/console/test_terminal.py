"""What others name cannot write lines of its own into the log."""

import io
import logging
import sys
import unicodedata

import pytest

from console.terminal import LineFormatter, printable

FORGED = "i\n2026-01-01 00:00:00,000 ERROR fake: injected"
ESCAPES = (
    "\x1b[31mred\x1b[0m \0 \r \x85 \u2028 \x9b31m \u202ed\u202c \u2066 \ufeff \U000e0041 \ud800"
)


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def logger(log: io.StringIO) -> logging.Logger:
    handler = logging.StreamHandler(log)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger


@pytest.mark.parametrize("name", [FORGED, ESCAPES])
def test_a_name_ends_no_line_and_sends_nothing_to_a_terminal(
    logger: logging.Logger, log: io.StringIO, name: str
) -> None:
    logger.error("Cannot follow %s", name)
    (line,) = log.getvalue().splitlines()
    assert line == "ERROR Cannot follow " + printable(name)
    assert line.isprintable()


@pytest.mark.parametrize("name", [FORGED, ESCAPES])
def test_the_lines_of_a_traceback_are_told_from_the_logs_own(
    logger: logging.Logger, log: io.StringIO, name: str
) -> None:
    try:
        raise ValueError(name)
    except ValueError:
        logger.exception("Unexpected error")
    first, *others = log.getvalue().removesuffix("\n").split("\n")
    assert first == "ERROR Unexpected error"
    assert all(line.startswith("  ") for line in others)
    assert "".join(others).replace("\t", "").isprintable()
    assert sys.exc_info() == (None, None, None)


def test_all_that_is_invisible_is_escaped() -> None:
    invisible = ("Cc", "Cf", "Cs", "Zl", "Zp")
    for code in range(0x110000):
        if unicodedata.category(chr(code)) in invisible:
            assert printable(chr(code)).isascii(), hex(code)
        elif unicodedata.category(chr(code)) != "Cn":
            assert printable(chr(code)) == chr(code), hex(code)


def test_text_of_any_language_stays_as_it_is() -> None:
    assert printable("模型 — modèle ✓") == "模型 — modèle ✓"
