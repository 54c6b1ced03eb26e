"""From received messages of many publishers to log records, a turn at a time. No I/O, no threads,
and no clock but for how much is done at once.
"""

import logging
import math
from collections.abc import Callable, Sequence

from bridge.publisher.sequencer import Sequencer
from bridge.publisher.window import Window
from bridge.sockets.raw_message import RawMessage
from bridge.wire import DecodedBatch
from schemas.clock import REAL_CLOCK, Clock
from schemas.identities import PublisherKey
from schemas.records import SequencedRecord

_logger = logging.getLogger(__name__)


class Intake:
    """See the module; one owner.

    Args:
        find: the sequencer of a publisher; None where it is not followed.
        clock: for how much is done at once.

    Attributes:
        unregistered_messages: of publishers that are not followed; they are dropped.
    """

    def __init__(
        self, find: Callable[[PublisherKey], Sequencer | None], clock: Clock = REAL_CLOCK
    ) -> None:
        self.unregistered_messages = 0
        self._find = find
        self._clock = clock

    def process(self, messages: Sequence[RawMessage], now: float) -> list[SequencedRecord]:
        """The records of one window.

        Args:
            messages: in the order of arrival.
            now: Unix seconds; the records' bridge_time.

        Returns:
            Each publisher's records in the order of its messages; publishers in the order of their
            first.
        """
        return self.process_until(messages, now, math.inf)[0]

    def process_until(
        self, messages: Sequence[RawMessage], now: float, until: float
    ) -> tuple[list[SequencedRecord], int]:
        """The same, of as many of the first messages as there is time for; and how many these are.

        Args:
            messages: in the order of arrival.
            now: Unix seconds; the records' bridge_time.
            until: monotonic seconds; one message is taken whatever it takes.
        """
        turns: dict[PublisherKey, _Turn] = {}  # of this call alone
        at = 0
        while at < len(messages):
            if at and self._clock.monotonic() >= until:
                break
            publisher = messages[at].publisher
            turn = turns.get(publisher)
            if turn is None:
                sequencer = self._find(publisher)
                if sequencer is None:
                    self.unregistered_messages += 1
                    at += 1
                    continue
                turn = turns[publisher] = _Turn(sequencer, now)
            at += turn.take(messages, at)
        records: list[SequencedRecord] = []
        for turn in turns.values():
            records += turn.close()
        return records, at


class _Turn:
    """One publisher's part of a turn."""

    __slots__ = ("_now", "_sequencer", "_window")

    def __init__(self, sequencer: Sequencer, now: float) -> None:
        self._sequencer = sequencer
        self._now = now
        self._window: Window = sequencer.stream.open(now)

    def take(self, messages: Sequence[RawMessage], at: int) -> int:
        """Takes the message at this place, and those behind it that simply follow on; returns how
        many these are.
        """
        sequencer, message = self._sequencer, messages[at]
        stream = sequencer.stream
        if 0 < message.link < stream.first_link:
            stream.drop_earlier(1)
            return 1
        if message.link != stream.link:
            sequencer.begin_link(message.link)
        if not sequencer.is_held and (taken := self._take_run(messages, at)):
            stream.received_at = messages[at + taken - 1].received_at
            return taken
        stream.received_at = message.received_at
        batch: DecodedBatch | None = None
        try:
            stream.heard += 1
            batch = stream.decode(message)
            if batch is not None:
                stream.counters.note_number(batch.sequence)
                stream.received_time = batch.engine_time or stream.received_time
                sequencer.take(self._window, batch, message.size_bytes)
        except Exception:  # noqa: BLE001 -- the sequencer logs and counts it
            self._window = sequencer.fail(self._window, batch, self._now)
        return 1

    def _take_run(self, messages: Sequence[RawMessage], at: int) -> int:
        """See `BatchStream.take_run`; an error there costs nothing, since each is then decoded
        alone.
        """
        try:
            return self._sequencer.stream.take_run(self._window, messages, at)
        except Exception:
            _logger.exception(
                "Unexpected error in messages of %s; decoding each alone",
                self._sequencer.stream.counters.publisher,
            )
            self._sequencer.count_fault()
            return 0

    def close(self) -> list[SequencedRecord]:
        """The records of the messages that were taken."""
        stream = self._sequencer.stream
        records = self._sequencer.close(self._window, self._now, ask_again=True)
        stream.lateness.note(stream.received_time, stream.received_at)
        return records
