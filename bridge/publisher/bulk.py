"""Large messages, beside the turns, so that no publisher's bulk delays another.

A message of more than BULK_BYTES is decoded in a thread: the interpreter changes between the
threads every 5 ms. Its records go to the sink one at a time, so that what others send comes
between. Until all of them are in the log the message waits with all that comes behind it of its
publisher, so the publisher's order holds, and the others go on.

One message is decoded at a time. Where its publisher is held back by the sink, its records wait for
that in a task of their own, and another publisher's message is next. One loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, takewhile
from typing import Final

from bridge.bounds import TURN_S
from bridge.publisher.appender import Appender
from bridge.publisher.ports import RecordSink
from bridge.publisher.publisher import BulkMessages, Publisher
from bridge.publisher.sequencer import Intake
from bridge.publisher.waits import Wait
from bridge.sockets.raw_message import RawMessage, RawRun, Received, each_of
from schemas.clock import Clock
from schemas.identities import PublisherKey
from schemas.limits import BULK_BYTES
from schemas.records import SequencedRecord

BULK_HELD_BACK_MAX: Final = 4  # large messages that wait, decoded, for the workers

_logger = logging.getLogger(__name__)


class BulkQueue:
    """The messages that wait, and those they wait behind.

    Args:
        followed: the publishers. What others send is let through: it is dropped all the same.
    """

    def __init__(self, followed: Mapping[PublisherKey, Publisher]) -> None:
        self._followed = followed
        self._publishers: dict[Publisher, None] = {}  # of whom something waits; whose turn is next

    def __len__(self) -> int:
        return sum(len(one.bulk.messages) for one in self._publishers if one.bulk is not None)

    def __bool__(self) -> bool:
        return bool(self._publishers)

    def sort(self, received: Sequence[Received]) -> list[Received]:
        """Takes what has to wait out of the messages of a turn; returns the rest, in order. What
        else comes of its publisher waits in the inbox, so that it does not fill the memory.
        """
        if not self._publishers and all(map(_is_small, received)):
            return list(received)
        now: list[Received] = []
        for one in received:
            publisher = self._followed.get(one.publisher)
            if publisher is None:
                now.append(one)
            elif publisher.bulk is not None:
                publisher.bulk.messages.extend(each_of((one,)))
            elif isinstance(one, RawRun) or _is_small(one):
                now.append(one)
            else:
                publisher.bulk = BulkMessages(deque((one,)))
                self._publishers[publisher] = None
                publisher.waits.begin(Wait.LARGE_MESSAGE)
        return now

    def put_back(self, received: Sequence[Received]) -> list[Received]:
        """Takes those that have to wait, too, of messages that `sort` had let through and that were
        not processed; returns the others.
        """
        others: list[Received] = []
        for one in reversed(received):
            publisher = self._followed.get(one.publisher)
            if publisher is None or publisher.bulk is None:
                others.append(one)
            else:
                publisher.bulk.messages.extendleft(reversed(list(each_of((one,)))))
        return others[::-1]

    def next(self) -> tuple[Publisher, RawMessage] | None:
        """The first message of some publisher of which nothing is taken; None where none waits."""
        for publisher in self._publishers:
            waiting = publisher.bulk
            if waiting is not None and waiting.taken is not waiting.messages[0].frames:
                return publisher, waiting.messages[0]
        return None

    def take(self, publisher: Publisher, message: RawMessage) -> list[RawMessage]:
        """The message that was decoded, and what can follow it at once; nothing where it has been
        discarded meanwhile. They wait on, until `written`.
        """
        waiting = publisher.bulk
        if waiting is None or waiting.messages[0].frames is not message.frames:
            return []
        waiting.taken = message.frames
        return [message, *takewhile(_is_small, islice(waiting.messages, 1, None))]

    def written(self, publisher: Publisher, taken: Sequence[RawMessage], count: int) -> None:
        """The records of the first `count` of what `take` returned are in the log."""
        waiting = publisher.bulk
        if not taken or waiting is None or waiting.messages[0].frames is not taken[0].frames:
            return  # discarded meanwhile
        del self._publishers[publisher]
        for _ in range(count):
            waiting.messages.popleft()
        waiting.taken = None
        if waiting.messages:
            self._publishers[publisher] = None  # behind the others
        else:
            self.discard(publisher)

    def discard(self, publisher: Publisher) -> None:
        """Forgets what waits of the publisher."""
        publisher.bulk = None
        self._publishers.pop(publisher, None)
        publisher.waits.end(Wait.LARGE_MESSAGE)


class BulkPump:
    """Decodes the messages that wait, and has their records written.

    Args:
        on_progress: called after each message.
        on_fault: counts an unexpected error.
    """

    def __init__(
        self,
        bulk: BulkQueue,
        intake: Intake,
        sink: RecordSink,
        appender: Appender,
        clock: Clock,
        *,
        on_progress: Callable[[], None],
        on_fault: Callable[[], None],
    ) -> None:
        self._bulk = bulk
        self._intake = intake
        self._sink = sink
        self._appender = appender
        self._clock = clock
        self._on_progress = on_progress
        self._on_fault = on_fault
        self._decoder = ThreadPoolExecutor(1, "reprise-bulk")
        self._decoding: asyncio.Task[None] | None = None
        self._held_back: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What is under way."""
        decoding = self._decoding
        return [*self._held_back, *([] if decoding is None or decoding.done() else [decoding])]

    def start(self) -> None:
        """Decodes what waits, where that is not under way."""
        if self._is_closed or len(self._held_back) >= BULK_HELD_BACK_MAX:
            return
        if self._bulk.next() is not None and (self._decoding is None or self._decoding.done()):
            self._decoding = asyncio.create_task(self._decode())

    async def _decode(self) -> None:
        """One message after the other, until nothing waits, or too many are held back."""
        loop = asyncio.get_running_loop()
        while (
            len(self._held_back) < BULK_HELD_BACK_MAX and (found := self._bulk.next()) is not None
        ):
            publisher, message = found
            decoded = await loop.run_in_executor(
                self._decoder, publisher.sequencer.decoded, message
            )
            if not self._appender.at_once:
                await self._sink.idle()
            await self._sink.ready()
            await self._write(publisher, self._bulk.take(publisher, decoded))

    async def _write(self, publisher: Publisher, taken: Sequence[RawMessage]) -> None:
        """Returns once the records are in the sink, or wait because the sink holds them back."""
        writing = asyncio.create_task(self._write_alone(publisher, taken))
        if self._appender.at_once or not self._sink.holds_back(publisher.key):
            await writing
            return
        self._held_back.add(writing)
        writing.add_done_callback(self._end_held_back)

    def _end_held_back(self, writing: "asyncio.Task[None]") -> None:
        self._held_back.discard(writing)
        self.start()

    async def _write_alone(self, publisher: Publisher, taken: Sequence[RawMessage]) -> None:
        count = len(taken)
        try:
            records: Sequence[SequencedRecord]
            records, count = self._intake.process_until(
                taken, self._clock.unix(), self._clock.monotonic() + TURN_S
            )
            await self._appender.append_paced(publisher, records, request_replay=True)
            self._on_progress()
        except Exception:
            self._on_fault()
            _logger.exception("Unexpected error with a large message; continuing behind it")
        finally:
            self._bulk.written(publisher, taken, count)

    def close(self) -> None:
        """Begins nothing more; `tasks` are to be cancelled."""
        self._is_closed = True
        self._decoder.shutdown(wait=False, cancel_futures=True)


def _is_small(one: Received) -> bool:
    return isinstance(one, RawRun) or len(one.frames[-1]) <= BULK_BYTES
