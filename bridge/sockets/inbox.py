"""The bounded hand-over from the socket thread to the thread that writes records.

Each publisher has a queue of its own, and whoever takes goes round them: one that sends more than
can be taken delays itself. A publisher may be paused: what comes of it then waits here, and counts.

A publisher may use as much room as is free: alone half of INBOX_MESSAGES_MAX and INBOX_BYTES_MAX,
beside another one that has filled its share a third, and so on; so there is always room for those
that send little. What has no room is dropped and counted under its publisher as `inbox_full`; the
publisher counts as late from then on, until that is told as a gap or asked for again.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final

from bridge.sockets.raw_message import RawMessage, RawRun, Received, each_of
from schemas.identities import PublisherKey
from schemas.limits import BULK_BYTES, KIB, MESSAGE_BYTES_MAX, MIB

# What is dropped: reprise_bridge_dropped_total, by reason.
INBOX_MESSAGES_MAX: Final = 262_144  # reason="inbox_full"

HEAD_BYTES_MAX: Final = 1024  # of a dropped message's topic and number, kept to tell what is lost
INBOX_BYTES_MAX: Final = 512 * MIB  # reason="inbox_full"
INBOX_HELD_BACK_RATIO: Final = 0.75  # who is held back goes on from there, into the spool
INBOX_SHARE_MESSAGES: Final = 256  # taken of one publisher before it is the next one's turn
INBOX_SHARE_BYTES: Final = 128 * KIB  # the same in bytes; one message is taken whatever its size

assert MESSAGE_BYTES_MAX <= INBOX_BYTES_MAX, "the largest message must fit the inbox"


class _Queue:
    """What waits of one publisher.

    Attributes:
        messages: that wait, in the order of arrival.
        count, size_bytes: of these messages.
        is_paused: whether nothing of them is taken.
        overflow: all but the last frame of the latest message that had no room, and when the first
            one came; None where all of them are told.
        dropped: how many messages had none, since the start.
    """

    __slots__ = ("count", "dropped", "is_paused", "messages", "overflow", "publisher", "size_bytes")

    def __init__(self, publisher: PublisherKey) -> None:
        self.publisher = publisher
        self.messages: deque[Received] = deque()
        self.count = self.size_bytes = self.dropped = 0
        self.is_paused = False
        self.overflow: tuple[list[bytes], float] | None = None

    def drop(self, message: RawMessage) -> None:
        """Counts a message that has no room."""
        self.dropped += 1
        heads = message.frames[:-1]
        if sum(map(len, heads)) <= HEAD_BYTES_MAX:
            since = message.received_at if self.overflow is None else self.overflow[1]
            self.overflow = (heads, since)


class Inbox:
    """A queue of messages for each publisher, in the order of arrival. Any thread may use it; one
    takes.

    Args:
        messages_max: bound on all waiting messages and, once more, those of who sends another one.
        bytes_max: the same of the bytes of their frames.
        when_filled: called, on the thread that puts, when there is something to take again.

    Attributes:
        large_messages: how many messages of more than BULK_BYTES have come; only rises.
        size_bytes: of the frames of all waiting messages.
    """

    def __init__(
        self,
        *,
        messages_max: int = INBOX_MESSAGES_MAX,
        bytes_max: int = INBOX_BYTES_MAX,
        when_filled: Callable[[], None] = lambda: None,
    ) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._when_filled = when_filled
        self._queues: dict[PublisherKey, _Queue] = {}  # the one look-up
        # Of which something can be taken, the one whose turn is next first.
        self._turns: OrderedDict[_Queue, None] = OrderedDict()
        self._overflowed: dict[_Queue, None] = {}  # a set, in order
        self._paused = 0
        self._messages = 0
        self.size_bytes = 0
        self.large_messages = 0
        self._lock = threading.Lock()

    def _queue_of(self, publisher: PublisherKey) -> _Queue:
        queue = self._queues.get(publisher)
        if queue is None:
            queue = self._queues[publisher] = _Queue(publisher)
        return queue

    def put(self, received: Sequence[Received]) -> None:
        """Appends the messages, as many as fit; never waits. Cost O(runs and messages beside)."""
        has_dropped = False
        with self._lock:
            was_empty = not self._turns
            for one in received:
                has_dropped |= self._put(self._queue_of(one.publisher), one)
            filled = was_empty and (bool(self._turns) or has_dropped)
        if filled:
            self._when_filled()

    def _put(self, queue: _Queue, one: Received) -> bool:
        """Whether something of it had no room."""
        messages, size_bytes = one.messages, one.size_bytes
        # Those of a run that come before the last one count twice, as if each came by itself.
        twice = 2 if messages > 1 else 1
        if (
            self._messages + queue.count + twice * messages > self._messages_max
            or self.size_bytes + queue.size_bytes + twice * size_bytes > self._bytes_max
        ):
            if isinstance(one, RawRun):
                return any([self._put(queue, each) for each in each_of((one,))])
            queue.drop(one)
            if queue.overflow is not None:
                self._overflowed[queue] = None
            return True
        if not queue.messages and not queue.is_paused:
            self._turns[queue] = None
        queue.messages.append(one)
        self._count(queue, messages, size_bytes)
        if messages == 1 and size_bytes > BULK_BYTES:
            self.large_messages += 1
        return False

    def _count(self, queue: _Queue, messages: int, size_bytes: int) -> None:
        """So many more wait, or fewer."""
        queue.count += messages
        queue.size_bytes += size_bytes
        self._messages += messages
        self.size_bytes += size_bytes

    def pause(self, publisher: PublisherKey) -> None:
        """Lets what comes of the publisher wait, until `resume`; may be said again."""
        with self._lock:
            queue = self._queue_of(publisher)
            if not queue.is_paused:
                queue.is_paused = True
                self._paused += 1
                self._turns.pop(queue, None)

    def resume(self, publisher: PublisherKey) -> None:
        """Ends a pause, where there is one."""
        with self._lock:
            queue = self._queue_of(publisher)
            if not queue.is_paused:
                return
            queue.is_paused = False
            self._paused -= 1
            was_empty = not self._turns
            if queue.messages:
                self._turns[queue] = None
            is_news = bool(queue.messages) or queue.overflow is not None
        if is_news and was_empty:
            self._when_filled()

    def take(self, messages_max: int, *, bytes_max: int = INBOX_BYTES_MAX) -> list[Received]:
        """The oldest messages of each publisher; never waits. Cost O(runs and messages beside).

        Args:
            messages_max: how many at most, from 1.
            bytes_max: of their frames; one message is taken whatever its size.
        """
        taken: list[Received] = []
        with self._lock:
            is_small = self._messages <= messages_max and self.size_bytes <= bytes_max
            if is_small and not self._paused:
                for queue in self._turns:
                    taken += queue.messages
                    queue.messages.clear()
                    queue.count = queue.size_bytes = 0
                self._turns.clear()
                self._messages = self.size_bytes = 0
                return taken
            room, room_bytes = messages_max, bytes_max
            while self._turns and room:
                queue = next(iter(self._turns))
                share = min(INBOX_SHARE_MESSAGES, room)
                messages, used_bytes = self._take_share(queue, taken, share, room_bytes)
                if not messages:
                    break  # it is the first one's turn then
                if queue.messages:
                    self._turns.move_to_end(queue)
                else:
                    del self._turns[queue]
                room -= messages
                room_bytes -= used_bytes
        return taken

    def _take_share(
        self, queue: _Queue, taken: list[Received], room: int, room_bytes: int
    ) -> tuple[int, int]:
        """Takes one publisher's share; returns how many messages, none where the next one does not
        fit, and their bytes.
        """
        used, used_bytes = 0, 0
        waiting = queue.messages
        while waiting and used < room and used_bytes < INBOX_SHARE_BYTES:
            one = waiting[0]
            messages = self._fitting(one, room - used, used_bytes, room_bytes)
            if not messages and taken:
                break
            messages = messages or 1  # whatever its size
            if isinstance(one, RawRun) and messages < one.messages:
                waiting[0] = one.after(messages)
                one = one.first(messages)
            else:
                waiting.popleft()
            size_bytes = one.size_bytes
            taken.append(one)
            used += one.messages
            used_bytes += size_bytes or 1
            self._count(queue, -one.messages, -size_bytes)
        return used, used_bytes

    def _fitting(self, one: Received, room: int, used_bytes: int, room_bytes: int) -> int:
        """How many of these messages still fit a share."""
        left_bytes = room_bytes - used_bytes
        if isinstance(one, RawRun):
            return one.run.fitting(room, INBOX_SHARE_BYTES - used_bytes, left_bytes)
        return int(one.size_bytes <= left_bytes)

    def give_back(self, received: Sequence[Received]) -> None:
        """Puts messages that were taken back to where they were: the next ones of their publishers,
        whose turn it is next. Cost O(runs and messages beside).
        """
        with self._lock:
            for one in reversed(received):
                queue = self._queue_of(one.publisher)
                if not queue.is_paused:
                    self._turns[queue] = None
                    self._turns.move_to_end(queue, last=False)
                queue.messages.appendleft(one)
                self._count(queue, one.messages, one.size_bytes)

    def is_filling(self, publisher: PublisherKey) -> bool:
        """Whether what waits of the publisher is most of what it may use now."""
        with self._lock:
            queue = self._queue_of(publisher)
            messages = self._messages + queue.count
            size_bytes = self.size_bytes + queue.size_bytes
        return (
            messages > INBOX_HELD_BACK_RATIO * self._messages_max
            or size_bytes > INBOX_HELD_BACK_RATIO * self._bytes_max
        )

    def waiting_since(self, publisher: PublisherKey) -> float | None:
        """When the publisher's oldest message was received that waits, or had no room and is yet to
        be told; None where there is none.
        """
        with self._lock:
            queue = self._queues.get(publisher)
            if queue is None:
                return None
            if queue.messages:
                return queue.messages[0].received_at
            return None if queue.overflow is None else queue.overflow[1]

    def take_overflowed(self) -> dict[PublisherKey, list[bytes]]:
        """Whose messages were dropped since the last call: all but the last frame of the latest. Of
        a publisher of which something waits, or that is paused, not yet: that came before.
        """
        if not self._overflowed:
            return {}
        overflowed: dict[PublisherKey, list[bytes]] = {}
        with self._lock:
            for queue in list(self._overflowed):
                if queue.overflow is not None and not queue.is_paused and not queue.messages:
                    overflowed[queue.publisher] = queue.overflow[0]
                    queue.overflow = None
                    del self._overflowed[queue]
        return overflowed

    def discard(self, publisher: PublisherKey) -> None:
        """Drops a publisher's waiting messages, and ends its pause."""
        with self._lock:
            queue = self._queues.pop(publisher, None)
            if queue is None:
                return
            self._turns.pop(queue, None)
            self._overflowed.pop(queue, None)
            self._paused -= queue.is_paused
            self._count(queue, -queue.count, -queue.size_bytes)
            if queue.dropped:  # that is counted since the start
                self._queue_of(publisher).dropped = queue.dropped

    def dropped(self) -> dict[PublisherKey, int]:
        """How many messages of each publisher did not fit, since the start."""
        with self._lock:
            return {key: one.dropped for key, one in self._queues.items() if one.dropped}

    def __len__(self) -> int:
        return self._messages

    def __bool__(self) -> bool:
        """Whether there is something to take."""
        return bool(self._turns)
