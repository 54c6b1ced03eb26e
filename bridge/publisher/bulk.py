"""Decodes large messages beside the loop, so that no publisher's bulk delays another.

A message of more than BULK_BYTES is decoded in a thread. Until all its records are in the log it
waits with all that comes behind it of its publisher, so the publisher's order holds, and the others
go on: the interpreter changes between the threads every 5 ms. One loop.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile

from bridge.publisher.publisher import BulkMessages, Publisher
from bridge.sockets.raw_message import RawMessage
from schemas.identities import PublisherKey
from schemas.limits import BULK_BYTES


class Bulk:
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

    def sort(self, messages: Sequence[RawMessage]) -> list[RawMessage]:
        """Takes what has to wait out of the messages of a turn; returns the rest, in order."""
        if not self._publishers and all(map(_is_small, messages)):
            return list(messages)
        now: list[RawMessage] = []
        for message in messages:
            publisher = self._followed.get(message.publisher)
            if publisher is None:
                now.append(message)
            elif publisher.bulk is not None:
                publisher.bulk.messages.append(message)
            elif _is_small(message):
                now.append(message)
            else:
                publisher.bulk = BulkMessages(deque((message,)))
                self._publishers[publisher] = None
        return now

    def put_back(self, messages: Sequence[RawMessage]) -> list[RawMessage]:
        """Takes those that have to wait, too, of messages that `sort` had let through and that were
        not processed; returns the others.
        """
        others: list[RawMessage] = []
        for message in reversed(messages):
            publisher = self._followed.get(message.publisher)
            if publisher is None or publisher.bulk is None:
                others.append(message)
            else:
                publisher.bulk.messages.appendleft(message)
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
            publisher.bulk = None

    def discard(self, publisher: Publisher) -> None:
        """Forgets what waits of the publisher."""
        publisher.bulk = None
        self._publishers.pop(publisher, None)


def _is_small(message: RawMessage) -> bool:
    return len(message.frames[-1]) <= BULK_BYTES
