"""The routing log of a replica: what it writes, what it reads, and what it knows by both."""

from logs.declaration import ReplicaParts
from logs.loop_thread import LoopThread
from logs.shared_condition import SharedCondition
from routing.decisions.failing_watch import watch_failing
from routing.decisions.folded_routing import FoldedRouting
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.log.reader import RoutingReader
from routing.log.writer import RoutingWriter
from schemas.conditions import Part


class ReplicaRouting:
    """See the module; on the replica's thread, from `start` to its end.

    Attributes:
        queue: of decisions, reports and samples.
        live: what decisions read: the fold of the log, and what the log has yet to bring.
        now: Unix seconds, by its clock.
        writer: to be stopped before the thread ends.
    """

    def __init__(self, parts: ReplicaParts) -> None:
        kafka, options, clock = parts.kafka, parts.options, parts.clock.unix
        self.queue = RoutingQueue()
        self.live = LiveLoad()
        self.now = clock
        self._conditions = parts.conditions
        condition = SharedCondition(parts.conditions, Part.ROUTING)
        self.writer = RoutingWriter(kafka, options, self.queue, condition, clock=clock)
        self._reader = RoutingReader(kafka, options, self.live, self.queue, condition, clock=clock)

    @property
    def folded(self) -> FoldedRouting:
        """The fold of the log, as far as it was read."""
        return self.live.folded

    @property
    def written(self) -> int:
        """Items that are in the log, of this run."""
        return self.writer.source.written_items

    @property
    def unwritten(self) -> int:
        """Items that were taken from the queue and could not be written."""
        return self.writer.source.unwritten

    @property
    def skipped(self) -> int:
        """Records of the log that cannot be used."""
        return self._reader.skipped

    @property
    def lag(self) -> int:
        """Records of the log that are not folded yet, when it was last asked where it ends."""
        return self._reader.lag

    def start(self, thread: LoopThread) -> None:
        """Starts writing and reading on the thread."""
        self.writer.start(thread)
        thread.run(self._reader.run())
        thread.run(watch_failing(self.live, self._conditions, self.now))
