"""A sixth log: all that one takes, but for its topic's name."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from logs.checkpoint import Checkpoints, FoldedLog, read_checkpoint, start_behind
from logs.embedded_writer import EmbeddedWriter
from logs.fold_follower import FoldFollower
from logs.interface import LogEntry
from logs.kept_log import KeptLog, KeptLogOptions
from logs.source import RecordSource, WindowEntry
from schemas.clock import REAL_CLOCK, Clock
from schemas.conditions import Conditions, Part
from schemas.errors import RecordFormatError
from schemas.identities import Offset
from schemas.positions import LogBounds

NAMED = FoldedLog("the log of alarms", staying="its alarms stay", unknown="what rang there")


class Alarm(msgspec.Struct, frozen=True):
    place: str
    count: int


class AlarmSource(RecordSource[Alarm]):
    def __init__(self, most: int) -> None:
        super().__init__("alarms")
        self.most, self.dropped = most, 0
        self.waiting: list[Alarm] = []

    def push(self, alarm: Alarm) -> None:
        if len(self.waiting) < self.most:
            self.waiting.append(alarm)
        else:
            self.dropped += 1

    def take(self) -> list[tuple[int, Alarm]]:
        taken, self.waiting = self.waiting, []
        return [(1, alarm) for alarm in taken]

    def encode(self, item: Alarm) -> WindowEntry:
        return WindowEntry(item.place.encode(), msgspec.msgpack.encode(item))


class AlarmFold:
    def __init__(self, offset: int = -1, counts: dict[str, int] | None = None) -> None:
        self.offset, self.counts = offset, Counter(counts or {})

    def apply(self, entry: LogEntry) -> None:
        try:
            alarm = msgspec.msgpack.decode(entry.value, type=Alarm)
        except msgspec.DecodeError as error:
            raise RecordFormatError(detail=str(error)) from error
        self.counts[alarm.place] += alarm.count
        self.offset = entry.offset

    def pieces(self) -> Iterator[bytes]:
        yield msgspec.msgpack.encode((self.offset, self.counts))

    @classmethod
    def load(cls, state: bytes) -> Self:
        return cls(*msgspec.msgpack.decode(state))

    def read_all(self, question: Callable[[Any], Any], /) -> Any:
        return question(self)


class EmbeddedAlarms(AlarmSource):
    def __init__(
        self, path: Path, conditions: Conditions, most: int = 9, *, clock: Clock = REAL_CLOCK
    ) -> None:
        super().__init__(most)
        options = KeptLogOptions(path / "log", NAMED.name, "all is lost", 1 << 20, 1e9, Part.AUDIT)
        log = KeptLog(options, conditions=conditions, clock=clock)
        checkpoints: Checkpoints[AlarmFold] = Checkpoints(path / "kept", log, period_s=0.0)
        self.fold = checkpoints.recover(AlarmFold, AlarmFold.load, AlarmFold.apply)
        checkpoints.watch(self.fold)
        self.writer = EmbeddedWriter(self, log, thread="alarms", keeper=checkpoints)

    def appended(self, items: Sequence[Alarm], first: Offset) -> None:
        for offset, alarm in enumerate(items, first):
            self.fold.apply(LogEntry(Offset(offset), self.encode(alarm).value))


class AlarmFollower(FoldFollower):
    fold_of = AlarmFold()
    checkpoint: Path
    bounds: Callable[[], LogBounds]

    async def recover(self) -> tuple[int, int]:
        self.fold_of = read_checkpoint(self.checkpoint, AlarmFold.load) or AlarmFold()
        bounds = self.bounds()
        return start_behind(self.fold_of, bounds, NAMED), bounds.end

    def apply(self, entry: LogEntry) -> None:
        self.fold_of.apply(entry)
