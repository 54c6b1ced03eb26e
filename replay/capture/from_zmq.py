"""A capture of what engines publish, as it comes, where nothing else runs.

Every message is kept as it is, with the time at which it came. Of an engine with a replay socket,
what it had sent before, and what a link lost, is asked for: so the messages of a publisher stand in
the file in the order of their numbers, each once, as far as the engine still had them. Of others
the file has what came.
"""

import logging
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import zmq
from xxhash import xxh3_64_intdigest

from bridge.sockets.inbox import Inbox
from bridge.sockets.raw_message import RawMessage, each_of
from bridge.sockets.reader import open_reader
from bridge.sockets.subscriber import Subscriber
from replay.bounds import CAPTURE_LOOK_S
from replay.capture.format import (
    CapturedPublisher,
    CaptureEntry,
    CaptureKind,
    EntryFlag,
    Header,
    Summary,
    encode_frames,
)
from replay.capture.replay_request import NoAnswerError, ask_for
from replay.capture.writer import CaptureWriter
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import EndpointError
from schemas.identities import PublisherKey
from schemas.limits import DUPLICATE_WINDOW, LINK_SETTLE_S, REPLAY_OVERLAP_BATCHES
from schemas.progress import Progress, StopCheck, Tell, never, silent
from schemas.registration import PublisherKind, Registration
from streams.kernel import socket_reader

CAPTURE_TAKEN_MAX: Final = 1024  # messages between two looks at everything else
CAPTURE_FLUSH_S: Final = 1.0  # of live frames: what a kill may cost

_TWICE: Final = "came_twice"
_INBOX_FULL: Final = "inbox_full"

_logger = logging.getLogger(__name__)


def capture_frames(
    publishers: Sequence[CapturedPublisher],
    path: Path,
    *,
    created_by: str,
    replace: bool = False,
    seconds: float | None = None,
    limit: int | None = None,
    tell: Tell = silent,
    stopped: StopCheck = never,
    clock: Clock = REAL_CLOCK,
) -> Summary:
    """Writes what the publishers send, until it is to end; an end by `stopped` is as good as any.

    Args:
        publishers: their endpoints; need not be up yet.
        created_by: the version of Reprise.
        replace: whether a file that is there may be written over.
        seconds: end after this time; None for never.
        limit: end after this many messages; None for never.
        stopped: whether it is to end.

    Raises:
        EndpointError: an endpoint can never be connected to.
        CaptureError: the file is there.
        DiskError: it cannot be written; what was written before can be read.
    """
    header = Header(
        kind=CaptureKind.FRAMES,
        created_at=clock.unix(),
        created_by=created_by,
        source="what engines publish",
        publishers=tuple(publishers),
    )
    with CaptureWriter(path, header, replace=replace, clock=clock.unix) as writer:
        recorder = _Recorder(publishers, writer, limit, stopped, clock)
        try:
            recorder.start()
            recorder.run(seconds, tell)
        finally:
            recorder.close()
    return writer.summary


class _Lane:
    """One publisher that is captured."""

    def __init__(self, number: int, source: CapturedPublisher) -> None:
        self.number = number
        self.source = source
        # The subscriber's name for it; what the frames mean is of no matter here.
        self.registration = Registration(
            endpoint=source.endpoint,
            kind=PublisherKind("any"),
            model_name="captured",
            instance_id=str(number),
            block_size=1,
        )
        self.position = 0
        self.link = 0  # that brought the last message
        self.up_since: tuple[int, float] | None = None  # a link, and since when it is seen up
        self.asked_link = 0  # whose beginning the engine was asked for
        self.sequence = -1  # of the last message
        self._fingerprints = array("Q", bytes(8 * DUPLICATE_WINDOW))

    @property
    def publisher(self) -> PublisherKey:
        """The subscriber's name for it."""
        return self.registration.publisher

    def has(self, sequence: int, frames: Sequence[bytes]) -> bool:
        """Whether this message is in the file, as far as that is remembered."""
        return self._fingerprints[sequence % DUPLICATE_WINDOW] == _fingerprint(sequence, frames)

    def note(self, sequence: int, frames: Sequence[bytes]) -> None:
        """It is in the file."""
        self._fingerprints[sequence % DUPLICATE_WINDOW] = _fingerprint(sequence, frames)
        self.sequence = sequence


class _Recorder:
    """Takes messages from the inbox into the file, and asks for what is missing between them."""

    def __init__(
        self,
        publishers: Sequence[CapturedPublisher],
        writer: CaptureWriter,
        limit: int | None,
        stopped: StopCheck,
        clock: Clock,
    ) -> None:
        self._clock = clock.monotonic
        self._writer = writer
        self._limit = limit
        self._stopped = stopped
        self._epoch = clock.unix() - clock.monotonic()  # of all times, so that they rise
        self._filled = threading.Event()
        self._inbox = Inbox(when_filled=self._filled.set)
        self._subscriber = Subscriber(self._inbox, open_reader(socket_reader))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._lanes = [_Lane(number, source) for number, source in enumerate(publishers)]
        self._by_publisher = {lane.publisher: lane for lane in self._lanes}

    def start(self) -> None:
        """Connects.

        Raises:
            EndpointError: an endpoint can never be connected to.
        """
        self._subscriber.start()
        for lane in self._lanes:
            self._subscriber.follow(lane.registration)

    def close(self) -> None:
        """Ends receiving; what had no room is counted."""
        self._subscriber.stop()
        self._context.destroy(linger=0)
        dropped = sum(self._inbox.dropped().values())
        if dropped:
            self._writer.left_out[_INBOX_FULL] = dropped

    @property
    def _is_over(self) -> bool:
        return self._stopped() or (self._limit is not None and self._writer.entries >= self._limit)

    def run(self, seconds: float | None, tell: Tell) -> None:
        """Records until it is to end."""
        began_at = flushed_at = self._clock()
        while not self._is_over:
            now = self._clock()
            if seconds is not None and now - began_at >= seconds:
                break
            self._filled.clear()
            received = self._inbox.take(CAPTURE_TAKEN_MAX)
            for message in each_of(received):
                if self._is_over:
                    break
                self._take(self._by_publisher[message.publisher], message)
            for lane in self._lanes:
                self._look(lane)
            if now - flushed_at >= CAPTURE_FLUSH_S and self._writer.waiting:
                self._writer.flush()
                flushed_at = now
            entries = self._writer.entries
            tell(Progress(entries, self._limit, entries, self._writer.size_bytes))
            if not received:
                self._filled.wait(CAPTURE_LOOK_S)

    def _look(self, lane: _Lane) -> None:
        """Asks for what was sent before the link came up, once it brings what is sent now."""
        links = self._subscriber.links(lane.publisher)
        if not lane.source.replay_endpoint or not self._subscriber.connected(lane.publisher):
            lane.up_since = None
            return
        now = self._clock()
        if lane.up_since is None or lane.up_since[0] != links:
            lane.up_since = (links, now)
        if links != lane.asked_link and now - lane.up_since[1] >= LINK_SETTLE_S:
            lane.asked_link = links
            self._ask(lane, max(0, lane.sequence + 1 - REPLAY_OVERLAP_BATCHES))

    def _take(self, lane: _Lane, message: RawMessage) -> None:
        time_of = self._epoch + message.received_at
        sequence = _sequence_of(message.frames)
        if sequence is not None and lane.source.replay_endpoint:
            if lane.has(sequence, message.frames):
                self._writer.left_out[_TWICE] += 1
                return
            begins = not lane.asked_link or lane.asked_link < message.link
            if begins:  # it shows that the link brings what is sent now
                lane.asked_link = max(message.link, 1)
                self._ask(lane, max(0, lane.sequence + 1 - REPLAY_OVERLAP_BATCHES), until=sequence)
            if sequence > lane.sequence + 1 and not begins:
                self._ask(lane, lane.sequence + 1, until=sequence)
            elif sequence <= lane.sequence and not lane.has(sequence, message.frames):
                self._ask(lane, 0, until=sequence)  # another incarnation
            if lane.has(sequence, message.frames):
                self._writer.left_out[_TWICE] += 1
                return
        if self._is_over:
            return  # while it was asked for what is before this one: without that it is a hole
        is_new = message.link > max(lane.link, 1)
        lane.link = max(lane.link, message.link)
        self._add(lane, time_of, message.frames, EntryFlag.NEW_LINK if is_new else 0)

    def _ask(self, lane: _Lane, first: int, *, until: int | None = None) -> None:
        """Writes what the engine still has from `first` on and the file has not, up to before
        `until`.
        """
        endpoint, came = lane.source.replay_endpoint, 0
        try:
            for frames in ask_for(
                self._context, endpoint, first, lambda: self._is_over, clock=self._clock
            ):
                sequence = _sequence_of(frames)
                if sequence is None or lane.has(sequence, frames):
                    continue
                if until is not None and sequence >= until:
                    break
                came += 1
                self._add(lane, self._epoch + self._clock(), frames, EntryFlag.REPLAYED)
        except NoAnswerError:
            _logger.warning(
                "The replay socket %s did not answer to its end, after %d messages; what it did not"
                " send is missing in the capture",
                endpoint,
                came,
            )
        except EndpointError as error:
            _logger.warning(
                "Cannot ask for what was sent before: %s. The capture begins with what comes now",
                error,
            )

    def _add(self, lane: _Lane, time_of: float, frames: list[bytes], flags: int) -> None:
        self._writer.add(
            CaptureEntry(lane.number, lane.position, time_of, encode_frames(frames), flags)
        )
        lane.position += 1
        sequence = _sequence_of(frames)
        if sequence is not None:
            lane.note(sequence, frames)


def _sequence_of(frames: Sequence[bytes]) -> int | None:
    """The message's number; None where it has none."""
    if len(frames) != 3 or len(frames[1]) != 8:
        return None
    return int.from_bytes(frames[1], "big")


def _fingerprint(sequence: int, frames: Sequence[bytes]) -> int:
    return xxh3_64_intdigest(frames[-1], seed=sequence)
