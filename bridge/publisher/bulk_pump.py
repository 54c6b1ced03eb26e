"""Large messages, beside the turns: each is decoded in a thread, and its records go to the sink one
at a time, so that what others send comes between.

One message is decoded at a time. Where its publisher is held back by the sink, its records wait for
that in a task of their own, and another publisher's message is next. One loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from bridge.publisher.bulk import Bulk
from bridge.publisher.intake import Intake
from bridge.publisher.paced_append import PacedAppend
from bridge.publisher.ports import RecordSink
from bridge.publisher.publisher import Publisher
from bridge.sockets.inbox import Inbox
from bridge.sockets.raw_message import RawMessage
from schemas.limits import BULK_HELD_BACK_MAX, TURN_S
from schemas.records import SequencedRecord

_logger = logging.getLogger(__name__)


class BulkPump:
    """See the module.

    Args:
        bulk: the messages.
        intake, sink, paced, inbox: of the same loop.
        on_progress: called after each message.
        on_fault: counts an unexpected error.
    """

    def __init__(
        self,
        bulk: Bulk,
        intake: Intake,
        sink: RecordSink,
        paced: PacedAppend,
        inbox: Inbox,
        *,
        on_progress: Callable[[], None],
        on_fault: Callable[[], None],
    ) -> None:
        self._bulk = bulk
        self._intake = intake
        self._sink = sink
        self._paced = paced
        self._inbox = inbox
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

    def go_on(self) -> None:
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
            if not self._paced.at_once:
                await self._sink.idle()
            await self._sink.ready()
            await self._write(publisher, self._bulk.take(publisher, decoded))

    async def _write(self, publisher: Publisher, taken: Sequence[RawMessage]) -> None:
        """Returns once the records are in the sink, or wait because the sink holds them back."""
        writing = asyncio.create_task(self._write_alone(publisher, taken))
        if self._paced.at_once or not self._sink.holds_back(publisher.registration.publisher):
            await writing
            return
        self._held_back.add(writing)
        writing.add_done_callback(self._end_held_back)

    def _end_held_back(self, writing: "asyncio.Task[None]") -> None:
        self._held_back.discard(writing)
        self.go_on()

    async def _write_alone(self, publisher: Publisher, taken: Sequence[RawMessage]) -> None:
        count = len(taken)
        try:
            records: Sequence[SequencedRecord]
            records, count = self._intake.process_until(
                taken, time.time(), time.monotonic() + TURN_S
            )
            await self._paced.append_paced(publisher, records, ask_again=True)
            self._on_progress()
        except Exception:
            self._on_fault()
            _logger.exception("Unexpected error with a large message; continuing behind it")
        finally:
            self._bulk.written(publisher, taken, count)
            publisher.end_pause(self._inbox)

    def close(self) -> None:
        """Begins nothing more; `tasks` are to be cancelled."""
        self._is_closed = True
        self._decoder.shutdown(wait=False, cancel_futures=True)
