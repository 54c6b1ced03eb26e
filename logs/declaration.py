"""A log as its room declares it, once: all that the rest of the product knows of it.

`reprise.logs` lists the declarations, one line each. By them the roles make, open, start, stop and
count what runs their logs; backups know the databases, and repairs the logs and their checkpoints;
whoever reads or writes a topic has its shape.

What runs a log is the room's, one object for each form. It is made before anything is open, so that
others can be given its queue or its fold; then it is opened, recovered from what there is, started
and stopped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from logs.embedded import EmbeddedLog, ReadOnlyLog
from schemas.clock import Clock
from schemas.conditions import Conditions
from schemas.limits import LOG_SEGMENT_BYTES
from schemas.metric_family import Family, Histogram
from schemas.topics import TopicShape
from schemas.tracing import NO_TRACER, Tracer
from storage.rocksdb import LOG, Preset

if TYPE_CHECKING:
    from brokers.broker_settings import KafkaSettings
    from brokers.options import ClientOptions
    from logs.loop_thread import LoopThread
    from logs.topic_writer import TopicWriter

KEPT_LOG_RETRY_S: Final = 10.0  # after it could not be written; what comes meanwhile is dropped


class EmbeddedParts(NamedTuple):
    """What `reprise up` gives to what runs a log.

    Attributes:
        data: directory of the data.
        age_max_s: how long the events are kept.
        settings: of the service; a room reads what is its own.
    """

    data: Path
    conditions: Conditions
    clock: Clock
    age_max_s: float = 0.0
    tracer: Tracer = NO_TRACER
    settings: Any = None


class ReplicaParts(NamedTuple):
    """What `reprise serve` gives to what runs a log.

    Attributes:
        settings: see `EmbeddedParts`.
    """

    kafka: "KafkaSettings"
    options: "ClientOptions"
    conditions: Conditions
    clock: Clock
    settings: Any = None


class EmbeddedRun(Protocol):
    """What runs a log on this disk."""

    def open(self) -> None:
        """Opens the log, and recovers its fold; see `KeptLog.opened` for what it raises."""
        ...

    def start(self) -> None:
        """Starts to write; returns at once."""
        ...

    def stop(self) -> None:
        """Writes what is left, and closes the log; within a bound. It may never have been open."""
        ...


class ReplicaRun(Protocol):
    """What writes a log to its topic, and follows it."""

    @property
    def writer(self) -> "TopicWriter[Any]":
        """To be stopped before the thread ends."""
        ...

    def start(self, thread: "LoopThread") -> None:
        """Starts to write and to read on the replica's thread."""
        ...


class FoldCheckpoint(NamedTuple):
    """Where what a log's fold has is kept beside the log.

    Attributes:
        path: of the file, in the directory of the data.
        load: a fold of what one has dumped; see `read_checkpoint`.
        period_s: how often one is written while records come.
    """

    path: Path
    load: Callable[[bytes], Any]
    period_s: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LogDeclaration:
    """See the module. What nobody else runs overrides `embedded`, `replica` or both.

    Attributes:
        name: of people, as "the log of answers".
        path: of the log in the directory of the data; None: the embedded form has none.
        lost: what it means that a damaged one is set aside, as "the answers begin anew".
        bytes_max, age_max_s: how much is kept there; None: for as long as the events.
        segment_bytes: so much of it goes at once.
        retry_s: how long after a failure it is opened again; until then appending fails at once.
        part: the condition that is set while it cannot be written; None: no condition is.
        checkpoint: of its fold; None: it has none.
        since: what was written since a damaged one was set aside, in place of which a repair gives
            that back, as "what was decided since"; "": `reprise repair` knows nothing of it.
        metrics: of what runs it, in either form.
    """

    name: str
    topics: tuple[TopicShape, ...] = ()
    path: Path | None = None
    preset: Preset = LOG
    lost: str = ""
    bytes_max: int = 0
    age_max_s: float | None = None
    segment_bytes: int = LOG_SEGMENT_BYTES
    retry_s: float = KEPT_LOG_RETRY_S
    part: str | None = None
    checkpoint: FoldCheckpoint | None = None
    since: str = ""
    metrics: Sequence[Family[Any] | Histogram[Any]] = ()

    def embedded(self, parts: EmbeddedParts) -> EmbeddedRun | None:
        """What runs it in `reprise up`; None: another part of it does, or it is not kept."""
        return None

    def replica(self, parts: ReplicaParts) -> ReplicaRun | None:
        """The same in `reprise serve`."""
        return None

    def path_in(self, data: Path) -> Path:
        """Where the log is."""
        assert self.path is not None, f"{self.name} is in topics alone"
        return data / self.path

    def opened(self, data: Path) -> EmbeddedLog:
        """The log of that directory, opened or created; see `EmbeddedLog` for what it raises."""
        return EmbeddedLog(
            self.path_in(data), data=data, segment_bytes=self.segment_bytes, preset=self.preset
        )

    def read_only(self, data: Path) -> ReadOnlyLog:
        """The same, beside a service that may be running."""
        return ReadOnlyLog(self.path_in(data), data=data, preset=self.preset)
