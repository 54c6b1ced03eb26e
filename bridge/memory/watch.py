"""Looks at a directory of segments again and again, in a thread of its own: so neither the look nor
a file system that hangs holds anything else up. What was found is compared on the loop.
"""

import asyncio
import contextlib
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bridge.bounds import HOST_NAME_CHARS_MAX, MEMORY_ENTRIES_MAX
from bridge.delivery.log_sink import LogSink
from bridge.memory.poller import SegmentPoller
from bridge.memory.reading import DEFAULT_PREFIX, EMPTY, LOCKED, TOO_MANY, Scan, read_segments
from schemas.causes import cause_of
from schemas.clock import REAL_CLOCK, Clock
from schemas.conditions import Conditions, Part
from schemas.errors import ConfigurationError
from schemas.limits import (
    MEMORY_PERIOD_S,
    MEMORY_SEGMENTS_READ_MAX,
    NAME_BYTES_MAX,
)
from schemas.memory_segments import MemoryRecord, SegmentKey, SegmentState
from schemas.setting import part, setting

MEMORY_STUCK_S: Final = 30.0  # without a look that ended, beyond a period: the condition says so

_logger = logging.getLogger(__name__)

_NOTHING: Final = Scan({}, frozenset(), Counter())
_NOT_NAMED: Final = (LOCKED, EMPTY, TOO_MANY)
"""Reasons that pass by themselves, or that the condition says."""

Read = Callable[[frozenset[str]], Scan]
"""Looks at a directory, where these segments were before."""


@part
class MemorySettings:
    """Where segments are, and how they are looked at."""

    directory: Path = setting(
        "memory.dir",
        "Directory of kvcached's memory segments, as /dev/shm; it is only read.  [default: none]",
        path="any",
    )
    prefix: str = setting(
        "memory.prefix",
        "What the names of segments begin with; empty for any name.",
        default=DEFAULT_PREFIX,
    )
    period_s: float = MEMORY_PERIOD_S
    host: str = setting(
        "memory.host",
        "What this machine is called beside its segments; the same for all bridges of a"
        " machine.  [default: its host name]",
        default="",
    )

    def __post_init__(self) -> None:
        """Raises ConfigurationError where a value cannot be used."""
        if len(self.host.encode()) > NAME_BYTES_MAX or "/" in self.host:
            raise ConfigurationError(
                f"Expected a host name of at most {NAME_BYTES_MAX} bytes without `/`,"
                f" got: {self.host[:HOST_NAME_CHARS_MAX]}"
            )

    @property
    def host_name(self) -> str:
        """What this machine is called in records."""
        return self.host or socket.gethostname()[:HOST_NAME_CHARS_MAX] or "localhost"


class MemoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a bridge sees of memory, for `/health`.

    Attributes:
        directory, host: see `MemorySettings`.
        segments: how many were there at the last look.
        skipped: files that were left out then, by reason.
        looks: how many there have been.
        records: how many are in the log.
    """

    directory: str
    host: str
    segments: int
    skipped: dict[str, int]
    looks: int
    records: int


class MemoryWatch:
    """See the module.

    Args:
        settings: where to look.
        bridge: the name of this run of a bridge.

    Attributes:
        looks, failed_looks: how many there have been, and those that could not read the directory.
        busy_s: what they took, seconds.
        names: the segments that were there then. Both are replaced, so any thread may read them.
    """

    def __init__(
        self,
        settings: MemorySettings,
        *,
        bridge: str,
        conditions: Conditions,
        read: Read | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._clock = clock
        self.settings = settings
        self.poller = SegmentPoller(settings.host_name, bridge)
        self.looks = self.failed_looks = 0
        self.busy_s = 0.0
        self.last = _NOTHING
        self.names: frozenset[str] = frozenset()
        self._conditions = conditions
        self._read = read or (
            lambda known: read_segments(settings.directory, settings.prefix, known=known)
        )
        self._found: tuple[Scan, float] | None = None  # the latest look, and when it ended
        self._named: set[tuple[str, str]] = set()

    def remember(self, segments: Mapping[SegmentKey, SegmentState]) -> None:
        """Takes over what a table has; before the first look."""
        self.poller.remember(segments, self.settings.prefix)

    async def run(self, when_looked: Callable[[], None]) -> None:
        """Looks until it is cancelled; may be called again.

        Args:
            when_looked: called after each look, on the loop.
        """
        loop, found = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(found.set)

        stopping = threading.Event()
        thread = threading.Thread(
            target=self._look_often, args=(stopping, tell), name="memory", daemon=True
        )
        thread.start()
        try:
            while True:
                try:
                    await asyncio.wait_for(found.wait(), self.settings.period_s + MEMORY_STUCK_S)
                except TimeoutError:
                    message = f"a look at {self.settings.directory} does not end"
                    self._conditions.set(Part.MEMORY, "stuck", message)
                    continue
                found.clear()
                self.take()
                when_looked()
        finally:
            stopping.set()

    async def run_into(self, sink: LogSink) -> None:
        """As `run`; what is to be written goes to the embedded log as it is made."""

        def tell() -> None:
            records = self.records() if sink.is_ready else ()
            if records:
                sink.append(records)
                if sink.is_ready:
                    for record in records:
                        self.written(record)

        await self.run(tell)

    def _look_often(self, stopping: threading.Event, tell: Callable[[], None]) -> None:
        while True:
            self.look()
            tell()
            if stopping.wait(self.settings.period_s):
                return

    def look(self) -> None:
        """Looks once; `take` takes what was found."""
        begun = self._clock.monotonic()
        try:
            scan = self._read(self.names)
        except Exception as error:
            _logger.exception("Unexpected error while memory segments were read; reading again")
            scan = _NOTHING._replace(
                error=f"memory segments: {cause_of(error)}", reason="internal_error"
            )
        self._found = scan, self._clock.unix()
        self.looks += 1
        self.busy_s += self._clock.monotonic() - begun

    def take(self) -> None:
        """Compares what the last look has found with what is known."""
        found, self._found = self._found, None
        if found is None:
            return
        self.last, at = found
        self.poller.note(self.last, at=at)
        self.names = self.poller.names
        self._note_problems(self.last)

    def _note_problems(self, scan: Scan) -> None:
        if scan.error:
            self.failed_looks += 1
            self._conditions.set(Part.MEMORY, scan.reason, scan.error)
            return
        if scan.skipped[TOO_MANY]:
            message = (
                f"Expected at most {MEMORY_SEGMENTS_READ_MAX} memory segments among"
                f" {MEMORY_ENTRIES_MAX} names in {self.settings.directory}, left out: at least"
                f" {scan.skipped[TOO_MANY]}"
            )
            self._conditions.set(Part.MEMORY, TOO_MANY, message)
        else:
            self._conditions.clear(Part.MEMORY)
        for name, reason in scan.named:
            if reason not in _NOT_NAMED and len(self._named) < MEMORY_SEGMENTS_READ_MAX:
                if (name, reason) not in self._named:
                    _logger.warning(
                        "Cannot use the segment %s of %s (%s); it is left out",
                        *(name, self.settings.directory, reason),
                    )
                self._named.add((name, reason))

    def due(self) -> list[SegmentKey]:
        """The segments of which there is something to write. Cost O(segments)."""
        return list(self.poller.due(self._clock.monotonic()))

    def records(self) -> Sequence[MemoryRecord]:
        """What is to be written now. Cost O(segments)."""
        now, at = self._clock.monotonic(), self._clock.unix()
        made = (self.poller.make(key, now=now, at=at) for key in list(self.poller.due(now)))
        return [record for record in made if record is not None]

    def written(self, record: MemoryRecord) -> None:
        """The record is in the log."""
        self.poller.written(record, now=self._clock.monotonic())

    def status(self) -> MemoryStatus:
        """What there is to see."""
        return MemoryStatus(
            directory=str(self.settings.directory),
            host=self.poller.host,
            segments=len(self.names),
            skipped=dict(self.last.skipped),
            looks=self.looks,
            records=self.poller.records,
        )
