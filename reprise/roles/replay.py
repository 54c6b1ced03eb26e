"""`reprise replay --serve`: answers HTTP queries from a capture.

The answers are of the past. Nobody follows the engines that are named in it, so none of them is
`exact`: they say `stale` while the capture is still being folded, and then `unconfirmed`, or
`degraded` where the log had lost something by then.

Threads: `replay` folds, the main thread answers HTTP from the kernel that it writes.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from bridge.wire import KINDS
from query_api.ports import Health, Positions
from query_api.table_view import TableView
from replay.as_records import CaptureRecords
from replay.folding import ReplayedTable, ReplayPace, fold_capture
from reprise.application import create_app
from reprise.metrics.process import process_registry
from reprise.metrics.roles import http_collector
from reprise.roles.http_server import Server
from schemas.answer_states import AnswerState, Doubt, Standing, Verdict
from schemas.conditions import Conditions, Level, Part
from schemas.errors import RegistrationError, RepriseError
from schemas.identities import PrefixScope, PublisherKey
from schemas.limits import SHUTDOWN_S
from schemas.memory_segments import SegmentKey, SegmentState
from schemas.positions import PublisherState
from schemas.registration import Registration, Unregistration
from streams.kernel.interface import ReadOnlyKernel
from streams.table.ledger import Ledger
from streams.table.scope_states import FreshUntil, ScopeStates

logger = logging.getLogger(__name__)

ROLE: Final = "replay"


class ReplayedService(TableView):
    """Implements `query_api.ports.View` and `PublisherRegistry` over a table that is replayed.

    Args:
        table: empty.
        total: how many there are, where that is known.
        speed: see `ReplayPace`.
        when_folded: called, on the folding thread, once all were folded.
    """

    kinds = KINDS

    def __init__(
        self,
        table: ReplayedTable,
        records: CaptureRecords,
        *,
        total: int | None,
        speed: float | None,
        when_folded: Callable[[], None] = lambda: None,
    ) -> None:
        self._table = table
        self._records = records
        self._total = total
        self._speed = speed
        self._when_folded = when_folded
        self._stopping = threading.Event()
        self._is_folded = False
        self.conditions = Conditions(time.time, logger)
        self.conditions.set(Part.RECOVERY, "replaying", "The capture is being folded", logged=False)
        # As of the last record of a segment: what was live then is shown as live.
        super().__init__(
            wall_clock=lambda: max((one.observed_at for one in table.segments.values()), default=0)
        )
        self.metrics = process_registry()
        self.conditions.on_change = self.changed
        table.states.on_change = self.changed
        self._thread = threading.Thread(target=self._fold, name="replay", daemon=True)

    # Service

    def start(self) -> None:
        """Starts folding; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ends folding."""
        self._stopping.set()
        self._thread.join(SHUTDOWN_S)

    def _fold(self) -> None:
        stopped = self._stopping.is_set
        pace = None
        if self._speed is not None:
            pace = ReplayPace(self._speed, stopped=stopped, sleep=self._stopping.wait)
        try:
            fold_capture(self._records, self._table, total=self._total, pace=pace, stopped=stopped)
        except RepriseError as error:
            self.conditions.set(Part.RECOVERY, "unreadable", str(error), Level.DEGRADED)
            return
        except Exception:
            logger.exception("Unexpected error in the replay; nothing of the capture is answered")
            self.conditions.set(Part.INTERNAL, "replay", "The replay failed", Level.UNAVAILABLE)
            return
        self._is_folded = True
        self.conditions.clear(Part.RECOVERY)
        self.conditions.set(
            Part.TABLE,
            "replayed",
            "The table is that of a capture; it follows no engine",
            logged=False,
        )
        self._when_folded()

    # The table, as `TableView` asks for it

    @property
    def kernel(self) -> ReadOnlyKernel:
        """See `TableView`."""
        return self._table.kernel

    def positions(self) -> Positions:
        """See `TableView`."""
        return self._table.positions

    def _publishers(self) -> Mapping[PublisherKey, PublisherState]:
        return self._table.publishers

    def _registrations(self) -> Iterable[Registration]:
        return self._table.registrations

    def _states(self) -> ScopeStates:
        return self._table.states

    def _fresh_until(self) -> FreshUntil:
        return {}

    def _stale_at(self) -> float:
        return math.inf if self._is_folded else -math.inf

    def _ledgers(self) -> Mapping[PublisherKey, Ledger]:
        return self._table.ledgers

    def _segments(self) -> Mapping[SegmentKey, SegmentState]:
        return self._table.segments

    # View

    @property
    def ready(self) -> bool:
        """See `View`."""
        return self.conditions.ready

    def health(self) -> Health:
        """See `View`."""
        return Health(ROLE, self.conditions.all(), self.kernel.name, self.positions())

    def verdict(self, scope: PrefixScope) -> Verdict:
        """See `View`: never `exact`, of a scope without publishers neither."""
        verdict = super().verdict(scope)
        if verdict.state is AnswerState.EXACT:
            return Verdict(AnswerState.UNCONFIRMED)
        return verdict

    def standing(self, publisher: PublisherKey) -> Standing:
        """See `View`."""
        standing = super().standing(publisher)
        if standing.state is AnswerState.EXACT:
            return Standing(AnswerState.UNCONFIRMED, Doubt.NOT_FOLLOWED, 0.0)
        return standing

    # PublisherRegistry

    async def register(self, registration: Registration, *, replace: bool = False) -> None:
        """See `PublisherRegistry`: a capture follows nobody.

        Raises:
            RegistrationError: always.
        """
        raise RegistrationError(
            "Expected a service that follows engines, but this one answers from a capture"
        )

    async def unregister(self, target: Unregistration) -> list[Registration]:
        """See `register`."""
        raise RegistrationError(
            "Expected a service that follows engines, but this one answers from a capture"
        )


def serve_capture(
    make_service: Callable[[], ReplayedService],
    *,
    host: str,
    port: int,
    when_serving: Callable[[str], None] = lambda base_url: None,
) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        make_service: over the capture, which stays open.
        host: address to listen on.
        port: 0 for any.
        when_serving: called with the base URL once requests are accepted.

    Raises:
        ConfigurationError: the address cannot be bound.
    """
    server = Server(host, port)
    try:
        service = make_service()
        service.metrics.register(http_collector(server.connections))
    except BaseException:
        server.close()
        raise
    app = create_app(service, service)
    server.run(app, service, when_serving=when_serving)
