"""The routing log of a replica: what it writes, what it reads, and what it knows by both."""

from brokers.options import ClientOptions
from brokers.settings import KafkaSettings
from query_api.replica.routing_reader import RoutingReader
from query_api.replica.routing_writer import RoutingWriter
from query_api.replica.shared_condition import SharedCondition
from query_api.replica.topic_reader import TopicReader
from query_api.routing.folded import FoldedRouting
from query_api.routing.live import LiveLoad
from query_api.routing.queue import RoutingQueue
from schemas.conditions import Conditions, Part


class ReplicaRouting:
    """See the module; on the reader's loop, from `start` to `stop`.

    Attributes:
        queue: of decisions, reports and samples.
        live: what is under way.
        folded: of the log, as far as it was read.
    """

    def __init__(
        self, settings: KafkaSettings, options: ClientOptions, conditions: Conditions
    ) -> None:
        """Args:
        settings: of the deployment.
        options: of its clients.
        conditions: of the replica.
        """
        self.queue = RoutingQueue()
        self.live = LiveLoad()
        self.folded = FoldedRouting()
        condition = SharedCondition(conditions, Part.ROUTING)
        self._writer = RoutingWriter(settings, options, self.queue, condition)
        self._reader = RoutingReader(settings, options, self.live, self.folded, condition)

    @property
    def written(self) -> int:
        """Items that are in the log, of this run."""
        return self._writer.written_items

    @property
    def unwritten(self) -> int:
        """Items that were taken from the queue and could not be written."""
        return self._writer.unwritten

    @property
    def skipped(self) -> int:
        """Records of the log that cannot be used."""
        return self._reader.skipped

    @property
    def end(self) -> int:
        """The offset after the last record of the log, when it was last asked."""
        return max(self._reader.end, self._reader.next)

    def start(self, reader: TopicReader) -> None:
        """Starts writing and reading on the reader's loop."""
        self._writer.start(reader)
        reader.run(self._reader.run())

    def stop(self, reader: TopicReader) -> None:
        """Writes what is left; within a bound. Before the reader's end, which ends the rest."""
        self._writer.stop(reader)
