"""Files that a command is to write, and standard output that takes no more: its reader has gone, or
the disk behind it is full.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from schemas.errors import ConfigurationError

_FULL: Final = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)


@contextmanager
def quiet_output() -> Iterator[Callable[[bytes], None]]:
    """Standard output, flushed at each write; a reader that went away ends the body silently."""

    def write(lines: bytes) -> None:
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()

    try:
        yield write
    except BrokenPipeError:
        _discard_rest()


@contextmanager
def told_of_full_output() -> Iterator[None]:
    """Standard output that takes no more ends the body with a message.

    Raises:
        click.ClickException: in place of the OSError; one that names a file is not of the output.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        _discard_rest()
        raise click.ClickException(f"Cannot write to standard output: {error.strerror}") from error


def _discard_rest() -> None:
    """What is left in the buffer has nowhere to go; the interpreter would retry as it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_folders(*outputs: Path | None) -> None:
    """Raises ConfigurationError where a file's directory is missing: before minutes of work."""
    for output in outputs:
        if output is not None and not output.parent.is_dir():
            raise ConfigurationError(
                f"Cannot write {output}: expected a directory, found none: {output.parent}"
            )
