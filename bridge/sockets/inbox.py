"""The bounded hand-over from the socket thread to the thread that writes records.

Beyond INBOX_MESSAGES_MAX or INBOX_BYTES_MAX messages are dropped and counted under their publisher
as `inbox_full`; the next message of the publisher then shows a gap, so the loss is in the log, too.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence

from bridge.sockets.raw_message import RawMessage
from schemas.identities import PublisherKey
from schemas.limits import HEAD_BYTES_MAX, INBOX_BYTES_MAX, INBOX_MESSAGES_MAX


class Inbox:
    """A queue of messages in the order of arrival. Any thread may use it; one takes.

    Args:
        messages_max: bound on waiting messages.
        bytes_max: bound on the bytes of their frames.
        when_filled: called, on the thread that puts, when there is something to take again.
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
        self._queue: deque[RawMessage] = deque()
        self._size_bytes = 0
        self._dropped: Counter[PublisherKey] = Counter()
        self._overflowed: dict[PublisherKey, list[bytes]] = {}
        self._lock = threading.Lock()

    def put(self, messages: Sequence[RawMessage]) -> None:
        """Appends the messages, as many as fit; never waits. Cost O(messages)."""
        with self._lock:
            was_empty = not self._queue
            for message in messages:
                size_bytes = message.size_bytes
                if (
                    len(self._queue) >= self._messages_max
                    or self._size_bytes + size_bytes > self._bytes_max
                ):
                    self._dropped[message.publisher] += 1
                    heads = message.frames[:-1]
                    if sum(map(len, heads)) <= HEAD_BYTES_MAX:
                        self._overflowed[message.publisher] = heads
                    continue
                self._queue.append(message)
                self._size_bytes += size_bytes
            filled = was_empty and bool(self._queue)
        if filled:
            self._when_filled()

    def take(self, messages_max: int, *, bytes_max: int = INBOX_BYTES_MAX) -> list[RawMessage]:
        """The oldest messages; never waits. Cost O(messages taken).

        Args:
            messages_max: how many at most, from 1.
            bytes_max: of their frames; one message is taken whatever its size.
        """
        with self._lock:
            if len(self._queue) <= messages_max and self._size_bytes <= bytes_max:
                taken = list(self._queue)
                self._queue.clear()
                self._size_bytes = 0
                return taken
            taken = []
            room_bytes = bytes_max
            while self._queue and len(taken) < messages_max:
                size_bytes = self._queue[0].size_bytes
                if taken and size_bytes > room_bytes:
                    break
                room_bytes -= size_bytes
                self._size_bytes -= size_bytes
                taken.append(self._queue.popleft())
        return taken

    def take_overflowed(self) -> dict[PublisherKey, list[bytes]]:
        """Whose messages were dropped since the last call: all but the last frame of the latest."""
        if not self._overflowed:
            return {}
        with self._lock:
            overflowed, self._overflowed = self._overflowed, {}
        return overflowed

    def discard(self, publisher: PublisherKey) -> None:
        """Drops a publisher's waiting messages. Cost O(messages waiting)."""
        with self._lock:
            self._queue = deque(
                message for message in self._queue if message.publisher != publisher
            )
            self._size_bytes = sum(message.size_bytes for message in self._queue)

    def dropped(self) -> dict[PublisherKey, int]:
        """How many messages of each publisher did not fit, since the start."""
        with self._lock:
            return dict(self._dropped)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def size_bytes(self) -> int:
        """The bytes of the frames of all waiting messages."""
        return self._size_bytes
