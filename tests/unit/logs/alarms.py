"""A sixth log: all that one takes, in one module, and a line in `reprise/logs.py`."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from logs.checkpoint import Checkpoints, FoldedLog, read_checkpoint, start_behind
from logs.declaration import EmbeddedParts, FoldCheckpoint, LogDeclaration
from logs.embedded_writer import EmbeddedWriter
from logs.fold_follower import FoldFollower
from logs.interface import LogEntry
from logs.kept_log import KeptLog
from logs.source import RecordSource, WindowEntry
from schemas.codec import decode_versioned
from schemas.identities import Offset
from schemas.positions import LogBounds
from schemas.topics import LARGEST, Cleanup, TopicShape

NAMED = FoldedLog("the log of alarms", staying="its alarms stay", unknown="what rang there")


class Alarm(msgspec.Struct, frozen=True):
    place: str
    count: int
    version: int = 1


decoder = msgspec.msgpack.Decoder(Alarm)


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
        alarm = decode_versioned(decoder.decode, entry.value, 1)
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
    def __init__(self, declared: LogDeclaration, parts: EmbeddedParts, most: int = 9) -> None:
        super().__init__(most)
        log, self.fold = KeptLog(declared, parts), AlarmFold()
        self._kept: Checkpoints[AlarmFold] = Checkpoints(log)
        self.writer = EmbeddedWriter(self, log, thread="alarms", keeper=self._kept)
        self.start, self.stop = self.writer.start, self.writer.stop

    def open(self) -> None:
        self.fold = self._kept.recover(AlarmFold, AlarmFold.apply)
        self._kept.watch(self.fold)

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


class _Alarms(LogDeclaration):
    def embedded(self, parts: EmbeddedParts) -> EmbeddedAlarms:
        return EmbeddedAlarms(self, parts)


ALARMS = _Alarms(
    name=NAMED.name,
    topics=(TopicShape("alarms", 1, Cleanup.DELETE, LARGEST),),
    path=Path("alarms", "log"),
    lost="all is lost",
    bytes_max=1 << 20,
    part="alarms",
    checkpoint=FoldCheckpoint(Path("alarms", "kept"), AlarmFold.load, 0.0),
    since="what rang since",
)
