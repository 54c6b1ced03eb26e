"""Decodes large messages beside the loop, so that no publisher's bulk delays another.

A message of more than BULK_BYTES is decoded in a thread. Until all its records are in the log it
waits with all that comes behind it of its publisher, so the publisher's order holds, and the others
go on: the interpreter changes between the threads every 5 ms. One loop.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice, takewhile

from bridge.publisher.sequencer import Sequencer
from bridge.sockets.raw_message import RawMessage
from schemas.identities import PublisherKey
from schemas.limits import BULK_BYTES


class Bulk:
    """The messages that wait, and those they wait behind.

    Args:
        sequencer: of the same loop.
    """

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._waiting: dict[PublisherKey, deque[RawMessage]] = {}
        self._taken: dict[PublisherKey, list[bytes]] = {}  # the frames of the first one

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __contains__(self, publisher: object) -> bool:
        return publisher in self._waiting

    def sort(self, messages: Sequence[RawMessage]) -> list[RawMessage]:
        """Takes what has to wait out of the messages of a turn; returns the rest, in order."""
        if not self._waiting and all(map(_is_small, messages)):
            return list(messages)
        now: list[RawMessage] = []
        for message in messages:
            waiting = self._waiting.get(message.publisher)
            if waiting is not None:
                waiting.append(message)
            elif _is_small(message):
                now.append(message)
            else:
                self._waiting[message.publisher] = deque((message,))
        return now

    def put_back(self, messages: Sequence[RawMessage]) -> list[RawMessage]:
        """Takes those that have to wait, too, of messages that `sort` had let through and that were
        not processed; returns the others.
        """
        others: list[RawMessage] = []
        for message in reversed(messages):
            waiting = self._waiting.get(message.publisher)
            if waiting is None:
                others.append(message)
            else:
                waiting.appendleft(message)
        return others[::-1]

    def waiting_since(self, publisher: PublisherKey) -> float | None:
        """When the publisher's oldest message here was received; None where there is none."""
        waiting = self._waiting.get(publisher)
        return waiting[0].received_at if waiting else None

    def next(self) -> RawMessage | None:
        """The first message of some publisher of which nothing is taken; None where none waits."""
        found = (
            waiting[0]
            for publisher, waiting in self._waiting.items()
            if self._taken.get(publisher) is not waiting[0].frames
        )
        return next(found, None)

    def decode(self, message: RawMessage) -> RawMessage:
        """The message with its batch, for `Sequencer.process`; on any thread."""
        return message._replace(batch=self._sequencer.decode_ahead(message))

    def take(self, message: RawMessage) -> list[RawMessage]:
        """The message that was decoded, and what can follow it at once; nothing where it has been
        discarded meanwhile. They wait on, until `written`.
        """
        waiting = self._waiting.get(message.publisher)
        if waiting is None or waiting[0].frames is not message.frames:
            return []
        self._taken[message.publisher] = message.frames
        return [message, *takewhile(_is_small, islice(waiting, 1, None))]

    def written(self, taken: Sequence[RawMessage], count: int) -> None:
        """The records of the first `count` of what `take` returned are in the log."""
        if not taken:
            return
        publisher, frames = taken[0].publisher, taken[0].frames
        if self._taken.get(publisher) is frames:
            del self._taken[publisher]
        waiting = self._waiting.get(publisher)
        if waiting is None or waiting[0].frames is not frames:
            return  # discarded meanwhile
        del self._waiting[publisher]
        for _ in range(count):
            waiting.popleft()
        if waiting:
            self._waiting[publisher] = waiting  # behind the others

    def discard(self, publisher: PublisherKey) -> None:
        """Forgets what waits of the publisher."""
        self._waiting.pop(publisher, None)


def _is_small(message: RawMessage) -> bool:
    return len(message.frames[-1]) <= BULK_BYTES
