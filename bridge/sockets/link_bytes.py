"""What a link has brought beside what was taken of it: libzmq tells only of whole messages. And
whether its peer answers, which the same look at it tells.
"""

from collections.abc import Callable
from typing import Final

from bridge.sockets.link_life import LinkLife
from bridge.sockets.memory_growth import MemoryGrowth
from bridge.sockets.received_bytes import ReceivedBytes
from schemas.clock import REAL_CLOCK
from schemas.limits import KIB, LINK_HEARTBEAT_MS, MESSAGE_BYTES_MAX, MIB

LINK_LOOK_BYTES: Final = 64 * KIB  # that a link brings, and then it is looked at at once
LINK_UNFINISHED_BYTES: Final = 1 * MIB  # of a message: from there on it is looked what it takes
LINK_GROWN_BYTES_MAX: Final = 128 * MIB  # of memory, by which the process may grow meanwhile
LINK_BUFFER_BYTES: Final = 16 * MIB  # received by a link beyond a message: the kernel's, libzmq's
LINK_QUEUE_BYTES: Final = 512 * MIB  # of a link in libzmq, not taken yet; beyond, it is dropped
LINK_MESSAGE_BYTES: Final = 192  # of memory, that libzmq takes for a message beside its bytes
MESSAGE_HEADERS_BYTES: Final = 36  # of ZMTP: 9 for each of four frames, at most
CURVE_HEADERS_BYTES: Final = 4 * 33  # of an encrypted message, beside MESSAGE_HEADERS_BYTES
LINK_HEARTBEAT_BYTES: Final = 128  # of what heartbeats bring in LINK_HEARTBEAT_MS, at most

_MEMORY: Final = MemoryGrowth()


class LinkBytes:
    """Counts one link after another, and says when one has brought more than it may.

    What was delivered is known from the first look at a link on, and counted a bit too high.

    Args:
        is_encrypted: whether frames are larger on the wire.
        clock: monotonic seconds.

    Attributes:
        life: of the link, as of the last look at it.
    """

    def __init__(
        self, *, is_encrypted: bool, clock: Callable[[], float] = REAL_CLOCK.monotonic
    ) -> None:
        self._clock = clock
        self._received = ReceivedBytes()
        self.life = LinkLife()
        self._headers_bytes = MESSAGE_HEADERS_BYTES + CURVE_HEADERS_BYTES * is_encrypted
        self._counted = False
        self._delivered_bytes = self._delivered = 0  # of the link; messages
        self._watched_bytes = 0  # that had come of the link when it was last asked for a breach
        self._is_begun = False  # much of a message had come then
        self._memory_bytes = 0  # of the process, when nothing much of a message had come
        self._begun_at = 0.0  # monotonic seconds

    def follow(self, descriptor: int) -> None:
        """The link is another one now, of which libzmq has the descriptor."""
        self._received.follow(descriptor)
        self._counted, self._begun_at = False, self._clock()
        self.life.begin(self._begun_at)
        self._delivered_bytes = self._delivered = self._watched_bytes = 0
        self._is_begun = False
        self._memory_bytes = _MEMORY.now_bytes()

    def close(self) -> None:
        """The link is down."""
        self._received.close()
        self.life.begin(self._clock())

    def note_taken(self, messages: int, size_bytes: int) -> None:
        """So many messages of so many bytes were received."""
        self._delivered += messages
        self._delivered_bytes += size_bytes + self._headers_bytes * messages

    def brings_much(self, memory_bytes: int) -> bool:
        """Whether more has come since `breach` was last asked for than heartbeats and a few
        messages; 6 us.

        Args:
            memory_bytes: that the process takes now, or shortly before.
        """
        total, _ = self._look()
        if total - self._watched_bytes >= LINK_LOOK_BYTES:
            return True
        if not self._is_begun:
            self._memory_bytes = memory_bytes
        return False

    def _look(self) -> tuple[int, int]:
        """What has come in all, and what libzmq has taken of it, ZMTP's own included."""
        before = self._clock()
        waiting = self._received.waiting_bytes()  # first: what comes meanwhile counts as taken
        seen = self._received.progress()
        if seen is None:
            return 0, 0
        self.life.look(before, self._clock(), seen, waiting)
        if self.life.is_unanswered:
            self._received.end()
        return seen.total_bytes, seen.total_bytes - waiting

    def breach(self, *, has_arrived: bool) -> str:
        """What libzmq has of the link and we have not, where that is too much; else "".

        Args:
            has_arrived: whether a whole message waits; else it is an unfinished one.
        """
        self._watched_bytes, taken = self._look()
        if has_arrived:
            waiting = taken - self._delivered_bytes
            message_bytes = self._delivered_bytes // max(self._delivered, 1) or self._headers_bytes
            if waiting + waiting // message_bytes * LINK_MESSAGE_BYTES > LINK_QUEUE_BYTES:
                return f"{waiting} bytes more than could be taken in that time"
            return ""
        unfinished = taken - self._delivered_bytes
        heartbeats = (self._clock() - self._begun_at) * 1000 / LINK_HEARTBEAT_MS
        allowed = MESSAGE_BYTES_MAX + LINK_BUFFER_BYTES + heartbeats * LINK_HEARTBEAT_BYTES
        if not self._counted or unfinished < 0:
            self._counted, self._delivered_bytes = True, taken
        elif unfinished > allowed:
            return f"{unfinished} bytes of a message without an end"
        # Of many small frames each takes some tenfold in memory of what it is on the wire.
        memory_bytes = _MEMORY.now_bytes()
        self._is_begun = unfinished > LINK_UNFINISHED_BYTES
        if not self._is_begun:
            self._memory_bytes = memory_bytes
        elif memory_bytes - self._memory_bytes > LINK_GROWN_BYTES_MAX:
            grown = memory_bytes - self._memory_bytes
            return f"{unfinished} bytes of a message without an end, which take {grown} of memory"
        return ""
