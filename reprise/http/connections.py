"""All connections of one HTTP server: how many there may be, and who is closed for a new one."""

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from uvicorn import Config
from uvicorn.server import ServerState

from query_api.http.plain_listener import HandedOver, PlainListener
from reprise.http.connection import REPORT_PATHS, Connection
from reprise.http.open_files import files_for_clients
from schemas.limits import MIB, OPEN_FILES_MAX, REFUSALS_LOG_S

HTTP_ANSWERS_BYTES_MAX: Final = 128 * MIB  # of all answers; the largest go first: "answer_not_read"

# Each connection takes up to 320 KiB before the app reads: 64 that uvicorn gathers, and the 256 of
# uvloop's one read.
HTTP_CONNECTIONS_MAX: Final = 4096  # reason="too_many"; half of the free files where those are few

HTTP_SCAN_PAUSE_S: Final = 0.1  # between two looks for idle ones, where so few are found:
HTTP_SCAN_IDLE_SHARE: Final = 32  # less than one of so many

assert HTTP_CONNECTIONS_MAX < OPEN_FILES_MAX // 2, "clients leave files for the publishers"

_DECISIONS: Final = b"/route"
_ANY_DESCRIPTOR: Final = 2**31 - 1
_Silent = deque[tuple[Connection, float]]
"""Those that were idle at the last scan, and since when; the longest first."""
logger = logging.getLogger(__name__)


class Connections:
    """Used on the loop of its server alone, but for the counters, which any thread may read.

    Where there are as many as there may be, the one is closed for a new one that has been silent
    for longest, first of those that never sent a whole request. What is under way is let be; where
    all are, the new one is refused.

    Args:
        connections_max: at once; fewer where few files may be opened.
        lifetime_s: of each, whatever it does.
        ends_at_eof: whether a client that sends no more has gone, and its answer is not wanted.

    Attributes:
        ends_at_eof: likewise.
        refused: what was refused or ended, by reason: see `reprise.http.connection`.
        bound: how many there may be.
        descriptor_max: above it a new one is refused.
        listener: who has further connections, and takes those that wait for a request.
        plain_paths: what it answers.
        when_swept: called about once a second.
    """

    def __init__(
        self,
        *,
        connections_max: int = HTTP_CONNECTIONS_MAX,
        lifetime_s: float = math.inf,
        ends_at_eof: bool = False,
    ) -> None:
        self.ends_at_eof = ends_at_eof
        self.refused: Counter[str] = Counter()
        self.bound = connections_max
        self._lifetime_s = lifetime_s
        self.listener: PlainListener | None = None
        self.plain_paths: frozenset[bytes] = frozenset()
        self.when_swept: Callable[[], None] = lambda: None
        self.descriptor_max = _ANY_DESCRIPTOR
        self._open: set[Connection] = set()
        self._never_served: _Silent = deque()
        self._served: _Silent = deque()
        self._scan_at = 0.0
        self._log_at = -math.inf
        self._logged: Counter[str] = Counter()

    def configure(self, app: Any, **options: Any) -> Config:
        """uvicorn's, for a server of these connections.

        Args:
            options: others than those that all servers share.
        """
        return Config(
            app,
            loop="uvloop",
            http=self.make,  # type: ignore[arg-type]
            interface="asgi3",
            lifespan="off",
            proxy_headers=False,  # nobody asks for the client's address
            ws="none",
            access_log=False,
            server_header=False,
            log_config=None,
            callback_notify=self._tick,
            timeout_notify=-(2**31),  # at each look, also after the clock was set back
            **options,
        )

    def make(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        handed: HandedOver | None = None,
    ) -> Connection:
        """A new one, as uvicorn makes it; `handed`: by the listener."""
        return Connection(
            self,
            handed,
            config=config,
            server_state=server_state,
            app_state=app_state,
            _loop=_loop,
        )

    def count_files(self) -> None:
        """Bounds them by the files that are free now; once, before the first one."""
        files = files_for_clients()
        self.bound = min(self.bound, files.connections)
        self.descriptor_max = files.descriptor_max

    def __len__(self) -> int:
        return len(self._open) + (0 if self.listener is None else self.listener.open)

    def count(self, reason: str) -> None:
        """Counts something that was refused or ended."""
        self.refused[reason] += 1

    # Called by a connection

    def admit(self, connection: Connection) -> bool:
        """Takes a new one in; False where it has no room. Cost O(1), amortized."""
        descriptor: int = connection.transport.get_extra_info("socket").fileno()
        if not self.has_room(descriptor):
            # The listener had it, with a request under way, and has let another one in since.
            is_known = connection.is_handed_over and len(self._open) < self.bound
            if self.listener is None or not is_known or descriptor > self.descriptor_max:
                return False
            self.listener.close_idle()
        self._open.add(connection)
        self._tell()
        return True

    def has_room(self, descriptor: int) -> bool:
        """Whether a connection of that descriptor may be admitted; closes another for it where it
        has to.
        """
        if len(self) < self.bound and descriptor <= self.descriptor_max:
            return True
        return self._make_room(monotonic())

    def leave(self, connection: Connection) -> None:
        """Forgets one that is closed."""
        self._open.discard(connection)
        self._tell()

    def _tell(self) -> None:
        if self.listener is not None:
            self.listener.note_others(len(self._open))

    def _make_room(self, now: float) -> bool:
        silent = self._take(self._never_served)
        if silent is None and now >= self._scan_at:
            self._scan(now)
            silent = self._take(self._never_served)
        if silent is None:
            silent = self._take(self._served)
        if silent is None:
            return False
        self._open.discard(silent)
        silent.abort("closed_for_another")
        return True

    def _take(self, silent: _Silent) -> Connection | None:
        """The first that has been silent ever since the scan."""
        while silent:
            connection, since = silent.popleft()
            if connection in self._open and connection.is_idle and connection.since == since:
                return connection
        return None

    def _scan(self, now: float) -> None:
        idle = [connection for connection in self._open if connection.is_idle]
        # Many may be accepted at one time of the loop: what pays for itself is not put off.
        pays = len(idle) * HTTP_SCAN_IDLE_SHARE >= len(self._open)
        self._scan_at = now if pays else now + HTTP_SCAN_PAUSE_S
        idle.sort(key=lambda connection: connection.since)
        self._never_served.clear()
        self._served.clear()
        for connection in idle:
            silent = self._served if connection.served else self._never_served
            silent.append((connection, connection.since))

    # Now and then

    async def _tick(self) -> None:
        """Called by uvicorn about once a second; an error in it would end the server."""
        try:
            self.sweep(asyncio.get_running_loop().time())
        except Exception:
            logger.exception("Unexpected error while looking at the connections; going on")

    def sweep(self, now: float) -> None:
        """Ends the connections that have taken too long. Cost O(connections).

        Args:
            now: time of the loop.
        """
        self.when_swept()
        if self.listener is not None:
            closed, failed = self.listener.take_ended()
            if closed:
                self.refused["closed_for_another"] += closed
            if failed:
                logger.error("%d plain queries failed unexpectedly; the app answered them", failed)
        for connection in list(self._open):
            if now - connection.made_at > self._lifetime_s:
                connection.abort("too_long")
            elif self.listener is not None and connection.is_for_listener(self.plain_paths):
                self._give_back(self.listener, connection)
            else:
                connection.check(now)
        self._bound_answers()
        self._log(now)

    def answered(self, connection: Connection) -> None:
        """One has its answer that was handed over with a report, or the last request of which was
        plain: the listener has it back at once, where it decides. There requests rest while booking
        is behind, and here they do not.
        """
        if self.listener is None or _DECISIONS not in self.plain_paths:
            return
        if connection in self._open and connection.is_for_listener(self.plain_paths | REPORT_PATHS):
            self._give_back(self.listener, connection)

    def _give_back(self, listener: PlainListener, connection: Connection) -> None:
        with suppress(OSError):  # there is no descriptor left now
            descriptor = connection.release()
            self.leave(connection)
            listener.give(descriptor, True, True)

    def _bound_answers(self) -> None:
        """Ends those with the largest answers that nobody reads, where all are too large."""
        unread = [
            (size_bytes, connection)
            for connection in self._open
            if (size_bytes := connection.unread_bytes)
        ]
        total = sum(size_bytes for size_bytes, _ in unread)
        if total <= HTTP_ANSWERS_BYTES_MAX:
            return
        for size_bytes, connection in sorted(unread, key=lambda one: one[0], reverse=True):
            connection.abort("answer_not_read")
            total -= size_bytes
            if total <= HTTP_ANSWERS_BYTES_MAX:
                return

    def _log(self, now: float) -> None:
        news = self.refused - self._logged
        if not news or now < self._log_at + REFUSALS_LOG_S:
            return
        self._log_at = now
        self._logged = self.refused.copy()
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(news.items()))
        logger.warning(
            "HTTP requests or connections were refused, or ended, by reason: %s; clients are told",
            counts,
        )
