"""The bounded hand-over from the socket thread to the thread that writes records.

Each publisher has a queue of its own, and whoever takes goes round them: one that sends more than
can be taken delays itself. A publisher may be paused: what comes of it then waits here, and counts.

A publisher may use as much room as is free: alone half of INBOX_MESSAGES_MAX and INBOX_BYTES_MAX,
beside another one that has filled its share a third, and so on; so there is always room for those
that send little. What has no room is dropped and counted under its publisher as `inbox_full`; the
publisher counts as late from then on, until that is told as a gap or asked for again.
"""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bridge.sockets.raw_message import RawMessage
from schemas.identities import PublisherKey
from schemas.limits import BULK_BYTES, KIB, MESSAGE_BYTES_MAX, MIB

# What is dropped: reprise_bridge_dropped_total, by reason.
INBOX_MESSAGES_MAX: Final = 262_144  # reason="inbox_full"

HEAD_BYTES_MAX: Final = 1024  # of a dropped message's topic and number, kept to tell what is lost
INBOX_BYTES_MAX: Final = 512 * MIB  # reason="inbox_full"
INBOX_HELD_BACK_RATIO: Final = 0.75  # who is held back goes on from there, into the spool
INBOX_SHARE_MESSAGES: Final = 64  # taken of one publisher before it is the next one's turn
INBOX_SHARE_BYTES: Final = 128 * KIB  # the same in bytes; one message is taken whatever its size

assert MESSAGE_BYTES_MAX <= INBOX_BYTES_MAX, "the largest message must fit the inbox"


class _Overflow(NamedTuple):
    """Since when a publisher's messages had no room, and all but the last frame of the latest."""

    since: float
    heads: list[bytes]


class Inbox:
    """A queue of messages for each publisher, in the order of arrival. Any thread may use it; one
    takes.

    Args:
        messages_max: bound on all waiting messages and, once more, those of who sends another one.
        bytes_max: the same of the bytes of their frames.
        when_filled: called, on the thread that puts, when there is something to take again.

    Attributes:
        bulk: how many messages of more than BULK_BYTES have come; only rises.
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
        # The one whose turn is next first.
        self._queues: OrderedDict[PublisherKey, deque[RawMessage]] = OrderedDict()
        self._paused: dict[PublisherKey, deque[RawMessage]] = {}
        self._messages = 0
        self._size_bytes = 0
        self.bulk = 0
        self._dropped: Counter[PublisherKey] = Counter()
        self._overflowed: dict[PublisherKey, _Overflow] = {}
        self._bytes_of: dict[PublisherKey, int] = {}  # of those that wait
        self._lock = threading.Lock()

    def put(self, messages: Sequence[RawMessage]) -> None:
        """Appends the messages, as many as fit; never waits. Cost O(messages)."""
        publisher: PublisherKey | None = None
        queue: deque[RawMessage] = deque()
        used_bytes = 0
        has_dropped = False
        with self._lock:
            was_empty = not self._queues
            count, all_bytes = self._messages, self._size_bytes
            for message in messages:
                size_bytes = message.size_bytes
                if message.publisher is not publisher:  # almost always all are of one
                    publisher = message.publisher
                    queue = self._queues.get(publisher) or self._paused.get(publisher, deque())
                    used_bytes = self._bytes_of.get(publisher, 0)
                if (
                    count + len(queue) >= self._messages_max
                    or all_bytes + used_bytes + size_bytes > self._bytes_max
                ):
                    self._drop(message)
                    has_dropped = True
                    continue
                if not queue and publisher not in self._paused:
                    self._queues[publisher] = queue
                queue.append(message)
                used_bytes += size_bytes
                self._bytes_of[publisher] = used_bytes
                if size_bytes > BULK_BYTES:
                    self.bulk += 1
                count += 1
                all_bytes += size_bytes
            self._messages, self._size_bytes = count, all_bytes
            filled = was_empty and (bool(self._queues) or has_dropped)
        if filled:
            self._when_filled()

    def _drop(self, message: RawMessage) -> None:
        publisher = message.publisher
        self._dropped[publisher] += 1
        heads = message.frames[:-1]
        if sum(map(len, heads)) <= HEAD_BYTES_MAX:
            before = self._overflowed.get(publisher)
            since = message.received_at if before is None else before.since
            self._overflowed[publisher] = _Overflow(since, heads)

    def pause(self, publisher: PublisherKey) -> None:
        """Lets what comes of the publisher wait, until `go_on`; may be said again."""
        with self._lock:
            if publisher not in self._paused:
                self._paused[publisher] = self._queues.pop(publisher, deque())

    def go_on(self, publisher: PublisherKey) -> None:
        """Ends a pause, where there is one."""
        with self._lock:
            queue = self._paused.pop(publisher, None)
            was_empty = not self._queues
            if queue:
                self._queues[publisher] = queue
            is_news = bool(queue) or publisher in self._overflowed
        if is_news and was_empty:
            self._when_filled()

    def take(self, messages_max: int, *, bytes_max: int = INBOX_BYTES_MAX) -> list[RawMessage]:
        """The oldest messages of each publisher; never waits. Cost O(messages taken).

        Args:
            messages_max: how many at most, from 1.
            bytes_max: of their frames; one message is taken whatever its size.
        """
        taken: list[RawMessage] = []
        with self._lock:
            is_small = self._messages <= messages_max and self._size_bytes <= bytes_max
            if is_small and not self._paused:
                for queue in self._queues.values():
                    taken += queue
                self._queues.clear()
                self._bytes_of.clear()
                self._messages = self._size_bytes = 0
                return taken
            room_bytes = bytes_max
            while self._queues and len(taken) < messages_max:
                publisher, queue = next(iter(self._queues.items()))
                room = min(INBOX_SHARE_MESSAGES, messages_max - len(taken))
                used_bytes = self._take_share(queue, taken, room, room_bytes)
                if not used_bytes:
                    break  # it is the first one's turn then
                if queue:
                    self._queues.move_to_end(publisher)
                else:
                    del self._queues[publisher], self._bytes_of[publisher]
                room_bytes -= used_bytes
        return taken

    def _take_share(
        self, queue: deque[RawMessage], taken: list[RawMessage], room: int, room_bytes: int
    ) -> int:
        """Takes one publisher's share; returns its bytes, 0 where the next message does not fit."""
        before, used_bytes, all_bytes = len(taken), 0, 0
        while queue and room and used_bytes < INBOX_SHARE_BYTES:
            size_bytes = queue[0].size_bytes
            if taken and used_bytes + size_bytes > room_bytes:
                break
            taken.append(queue.popleft())
            room -= 1
            all_bytes += size_bytes
            used_bytes += size_bytes or 1
        if len(taken) > before:
            self._messages -= len(taken) - before
            self._size_bytes -= all_bytes
            self._bytes_of[taken[-1].publisher] -= all_bytes
        return used_bytes

    def give_back(self, messages: Sequence[RawMessage]) -> None:
        """Puts messages that were taken back to where they were: the next ones of their publishers,
        whose turn it is next. Cost O(messages).
        """
        with self._lock:
            for message in reversed(messages):
                publisher = message.publisher
                queue = self._paused.get(publisher)
                if queue is None:
                    queue = self._queues.setdefault(publisher, deque())
                    self._queues.move_to_end(publisher, last=False)
                queue.appendleft(message)
                self._messages += 1
                self._size_bytes += message.size_bytes
                used_bytes = self._bytes_of.get(publisher, 0)
                self._bytes_of[publisher] = used_bytes + message.size_bytes

    def is_filling(self, publisher: PublisherKey) -> bool:
        """Whether what waits of the publisher is most of what it may use now."""
        with self._lock:
            queue = self._queues.get(publisher) or self._paused.get(publisher, deque())
            messages = self._messages + len(queue)
            size_bytes = self._size_bytes + self._bytes_of.get(publisher, 0)
        return (
            messages > INBOX_HELD_BACK_RATIO * self._messages_max
            or size_bytes > INBOX_HELD_BACK_RATIO * self._bytes_max
        )

    def waiting_since(self, publisher: PublisherKey) -> float | None:
        """When the publisher's oldest message was received that waits, or had no room and is yet to
        be told; None where there is none.
        """
        with self._lock:
            queue = self._queues.get(publisher) or self._paused.get(publisher)
            overflow = self._overflowed.get(publisher)
            if queue:
                return queue[0].received_at
            return None if overflow is None else overflow.since

    def take_overflowed(self) -> dict[PublisherKey, list[bytes]]:
        """Whose messages were dropped since the last call: all but the last frame of the latest. Of
        a publisher of which something waits, or that is paused, not yet: that came before.
        """
        if not self._overflowed:
            return {}
        with self._lock:
            overflowed = {
                publisher: overflow.heads
                for publisher, overflow in self._overflowed.items()
                if publisher not in self._paused and publisher not in self._queues
            }
            for publisher in overflowed:
                del self._overflowed[publisher]
        return overflowed

    def discard(self, publisher: PublisherKey) -> None:
        """Drops a publisher's waiting messages, and ends its pause."""
        with self._lock:
            paused = self._paused.pop(publisher, None)
            queue = self._queues.pop(publisher, ()) if paused is None else paused
            self._messages -= len(queue)
            self._size_bytes -= self._bytes_of.pop(publisher, 0)
            self._overflowed.pop(publisher, None)

    def dropped(self) -> dict[PublisherKey, int]:
        """How many messages of each publisher did not fit, since the start."""
        with self._lock:
            return dict(self._dropped)

    def __len__(self) -> int:
        return self._messages

    def __bool__(self) -> bool:
        """Whether there is something to take."""
        return bool(self._queues)

    @property
    def size_bytes(self) -> int:
        """The bytes of the frames of all waiting messages."""
        return self._size_bytes
