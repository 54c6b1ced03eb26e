"""What commands write to the terminal: results to standard output, logs to standard error."""

import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import click
import msgspec

from streams.kernel import native_available


def _utf_16(code: int) -> tuple[int, ...]:
    if code < 0x10000:
        return (code,)
    return (0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF))


_INVISIBLE: Final = (
    # Controls, ends of lines, surrogates, and what shows the text around it in another order or
    # hides in it (category Cf), as U+202E. First and last of each range.
    *((0x00, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x600, 0x605), (0x61C, 0x61C), (0x6DD, 0x6DD)),
    *((0x70F, 0x70F), (0x890, 0x891), (0x8E2, 0x8E2), (0x180E, 0x180E), (0x200B, 0x200F)),
    *((0x2028, 0x202E), (0x2060, 0x206F), (0xD800, 0xDFFF), (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB)),
    *((0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3)),
    *((0x1D173, 0x1D17A), (0xE0001, 0xE0001), (0xE0020, 0xE007F)),
)
_UNPRINTABLE: Final = {
    code: chr(code).encode("unicode_escape").decode()
    for first, last in _INVISIBLE
    for code in range(first, last + 1)
}
_JSON: Final = {
    code: "".join(f"\\u{pair:04x}" for pair in _utf_16(code))
    for code in _UNPRINTABLE
    if chr(code) not in "\n\t "
} | {ord("\r"): " "}
_ASCII_SHOWN: Final = bytes([*range(0x20, 0x7F), *b"\t\n"])
_TRACEBACK: Final = {code: text for code, text in _UNPRINTABLE.items() if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """One line, whatever names are in it: what is invisible, or ends a line, is escaped."""
    return text.translate(_UNPRINTABLE)


def printable_lines(text: str) -> str:
    """The same of a text whose ends of lines are ours."""
    return text.translate(_TRACEBACK)


def say_json(document: object) -> None:
    """Prints a document as one line of JSON that any terminal shows as it is."""
    sys.stdout.buffer.write(printable_json(msgspec.json.encode(document)) + b"\n")
    sys.stdout.buffer.flush()


def printable_json(encoded: bytes) -> bytes:
    """The same JSON, of which any terminal shows each character as it is."""
    if encoded.isascii() and encoded.translate(None, _ASCII_SHOWN) == b"":
        return encoded
    return encoded.decode(errors="replace").translate(_JSON).encode()


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
        text = printable_lines(super().formatException(ei))  # type: ignore[arg-type]
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
