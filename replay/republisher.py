"""The events of a log as it grows, sent out as vLLM's, for indexers that read those.

One PUB socket has the events of all engines, each under a topic of its own, and one run of numbers,
so that who takes all of them sees what is lost, and can ask the replay socket for it. What an
engine had before a subscriber came is in the log: it is sent from its oldest record on, behind
`AllBlocksCleared`, which says so once more behind each restart, of an engine or of this. Where the
log lacks batches of an engine, a number is left out.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from replay.publisher import CapturePublishers
from replay.wire_batches import PublisherBatches, WireMessage
from schemas.clock import REAL_CLOCK
from schemas.codec import decode_log_record
from schemas.errors import RecordError
from schemas.identities import PublisherKey
from schemas.records import EventsRecord, ResetRecord, UnregisteredRecord
from streams.log.record_lines import PlacedRecord, StreamFilter

REPUBLISHED_WAIT_S: Final = 0.0025  # between two tries at a subscriber that takes no more


class Republisher:
    """See the module. One thread.

    Args:
        publishers: of one, number 0.
        wanted: whose events.
        stopped: whether to end.
        clock: Unix seconds.

    Attributes:
        left_out: records that nobody can read.
    """

    def __init__(
        self,
        publishers: CapturePublishers,
        wanted: StreamFilter,
        *,
        stopped: Callable[[], bool],
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        self.left_out = 0
        self._publishers = publishers
        self._wanted = wanted
        self._stopped = stopped
        self._clock = clock
        self._lanes: dict[PublisherKey, PublisherBatches] = {}
        self._next = 0

    @property
    def engines(self) -> int:
        """Ranks of which events were sent, and that are registered yet."""
        return len(self._lanes)

    def take(self, entries: Iterable[PlacedRecord]) -> bool:
        """Sends what records say, and answers replay requests; False where it is to end."""
        for entry in entries:
            for topic, payload in self._batches(entry):
                if not self._send(topic, payload):
                    return False
        self._publishers.serve(0.0)
        return not self._stopped()

    def _batches(self, entry: PlacedRecord) -> Iterator[tuple[bytes, bytes]]:
        if entry.value is None:
            return
        try:
            record = decode_log_record(entry.value)
        except RecordError:
            self.left_out += 1
            return
        if not isinstance(record, EventsRecord | ResetRecord | UnregisteredRecord):
            return
        publisher = record.publisher
        if not self._wanted.matches(publisher.stream):
            return
        topic = _topic_of(publisher)
        if isinstance(record, UnregisteredRecord):
            lane = self._lanes.pop(publisher, None)
            if lane is not None:
                yield topic, lane.clear(self._clock())
            return
        lane = self._lanes.get(publisher)
        if lane is None:
            lane = self._lanes[publisher] = PublisherBatches(publisher, renumber=True, begins=True)
        if lane.lacks(record):
            self._next += 1
        for _, payload in lane.batches(record):
            yield topic, payload
        if isinstance(record, ResetRecord):
            for _, payload in lane.end(self._clock()):
                yield topic, payload

    def _send(self, topic: bytes, payload: bytes) -> bool:
        number, self._next = self._next, self._next + 1
        frames = [topic, number.to_bytes(8, "big"), payload]
        message = WireMessage(0, 0.0, number, frames)
        while not self._publishers.publishers[0].try_send(message):
            if self._stopped():
                return False
            self._publishers.serve(REPUBLISHED_WAIT_S)
        return True


def _topic_of(publisher: PublisherKey) -> bytes:
    """As llm-d names those of its engines: of which, and of what model."""
    stream = publisher.stream
    return f"kv@{stream.instance_id}@{stream.model_name}".encode()
