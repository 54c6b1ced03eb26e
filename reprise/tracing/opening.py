"""The tracing of one process: on or off, by its environment."""

import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from reprise.tracing.tracing_settings import ENDPOINT, is_wanted
from schemas.errors import ConfigurationError
from schemas.tracing import NO_TRACER, Tracer

_PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
logger = logging.getLogger(__name__)


class SpanCounts(Protocol):
    """What became of spans.

    Attributes:
        exported: how many the collector has taken.
        dropped: how many it never got, by reason.
        waiting: how many wait for it.
    """

    exported: int

    @property
    def dropped(self) -> Mapping[str, int]:
        """See the class."""
        ...

    @property
    def waiting(self) -> int:
        """See the class."""
        ...


class Tracing(NamedTuple):
    """What a role has.

    Attributes:
        counts: what became of them; None where tracing is off.
        close: sends what waits, within SPAN_LEAVE_S, and ends.
    """

    tracer: Tracer = NO_TRACER
    counts: SpanCounts | None = None
    close: Callable[[], None] = lambda: None


NO_TRACING: Final = Tracing()


def open_tracing(environment: Mapping[str, str], role: str) -> Tracing:
    """The tracing that the environment asks for; `NO_TRACING` for none.

    Args:
        role: that it plays, as `/health` names it.

    Raises:
        ConfigurationError: spans are to be sent, and the packages are missing, or it cannot be done
            as the environment says.
    """
    if not is_wanted(environment):
        return NO_TRACING
    missing = [name for name in _PACKAGES if not _is_installed(name)]
    if missing:
        raise ConfigurationError(
            f"Expected the packages of the extra `otel` where {ENDPOINT} is set, and found no"
            f" {missing[0]}: `pip install opentelemetry-sdk"
            f" opentelemetry-exporter-otlp-proto-http`, or unset {ENDPOINT}"
        )
    # Imported here: they are an extra, and take a fifth of a second.
    from reprise.tracing.export import SpanQueue, otlp_exporter
    from reprise.tracing.tracer import OtelTracer

    queue = SpanQueue(otlp_exporter())
    tracer = OtelTracer(queue, environment, role)
    queue.start()
    logger.info("Spans go to the collector at %s", environment[ENDPOINT].strip())
    return Tracing(tracer, queue, queue.shutdown)


@contextmanager
def tracing_of(environment: Mapping[str, str], role: str) -> Iterator[Tracing]:
    """As `open_tracing`, closed at the end."""
    tracing = open_tracing(environment, role)
    try:
        yield tracing
    finally:
        tracing.close()


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
