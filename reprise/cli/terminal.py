"""What commands write to the terminal: results to standard output, logs to standard error."""

import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import click

from streams.kernel import native_available

_UNPRINTABLE: Final = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
}
_TRACEBACK: Final = {code: text for code, text in _UNPRINTABLE.items() if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """One line, whatever names are in it: control characters and ends of lines are escaped."""
    return text.translate(_UNPRINTABLE)


def table_lines(
    header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str]
) -> Iterator[str]:
    """A table for people: columns as wide as their widest cell.

    Args:
        header: names of the columns.
        rows: as many cells each.
        numbers: names of the columns that are flush right.
    """
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if name in numbers else cell.ljust(width)
            for name, cell, width in zip(header, line, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip()


class LineFormatter(logging.Formatter):
    """A record is a line, which no name in it can end; a traceback follows, indented.

    Names come from whoever registers an instance: one with an end of line in it could add lines of
    its own to the log, or send commands to a terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:
        """See `logging.Formatter`."""
        text = super().formatException(ei).translate(_TRACEBACK)  # type: ignore[arg-type]
        return "\n".join("  " + line for line in text.split("\n"))


def say_ready(base_url: str) -> None:
    """Prints the address of the API, once it answers."""
    click.echo(
        f"Reprise answers on {base_url} (page: {base_url}/ui, API: {base_url}/docs)."
        " Ctrl-C stops it."
    )


def start_logging(level: str) -> None:
    """Logs of this level and above go to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelName(level)))


def warn_without_native(kernel: str | None) -> None:
    """Warns where the slow kernel runs without having been asked for."""
    if kernel is None and not native_available():
        logging.getLogger(__name__).warning(
            "The Rust kernel is not built: using the reference kernel, which is many times"
            " slower. Install Rust and run `make install`"
        )
