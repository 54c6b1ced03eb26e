"""What commands write to the terminal: results to standard output, logs to standard error."""

import logging
import sys

import click

from streams.kernel import native_available


def say_ready(base_url: str) -> None:
    """Prints the address of the API, once it answers."""
    click.echo(f"Reprise answers on {base_url} (OpenAPI: {base_url}/docs). Ctrl-C stops it.")


def start_logging(level: str) -> None:
    """Logs of this level and above go to standard error."""
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelName(level)))


def warn_without_native(kernel: str | None) -> None:
    """Warns where the slow kernel runs without having been asked for."""
    if kernel is None and not native_available():
        logging.getLogger(__name__).warning(
            "The Rust kernel is not built: using the reference kernel, which is many times"
            " slower. Install Rust and run `make install`"
        )
