"""The table of the embedded service, as HTTP and gRPC read it."""

import math
from collections.abc import Mapping
from typing import Final

from query_api.change_signal import ChangeSignal
from query_api.ports import Health, Positions
from query_api.table_view import TableView
from reprise.embedded.fold_thread import FoldThread
from reprise.embedded.intake import EmbeddedIntake
from reprise.embedded.loss_watch import LossWatch
from reprise.metrics.process import process_registry
from schemas.conditions import Part
from schemas.identities import PrefixScope, PublisherKey
from schemas.limits import STALE_S
from schemas.memory_segments import SegmentKey, SegmentState
from schemas.positions import Position, PublisherState
from schemas.registration import Registration
from streams.kernel.interface import ReadOnlyKernel
from streams.table.ledger import Ledger
from streams.table.scope_states import ConfirmationSource, FreshUntil, ScopeStates

ROLE: Final = "embedded"

_STALE_PARTS: Final = (Part.RECOVERY, Part.LOG, Part.INTERNAL)
"""With these the table is behind its log; with the others, what is folded is all there is."""


class EmbeddedView(TableView):
    """Implements `query_api.ports.View`.

    Args:
        intake: knows what is connected, and the conditions of the role.
        losses: what the log has lost.
        changes: what verdicts depend on is told there.
    """

    def __init__(
        self, folding: FoldThread, intake: EmbeddedIntake, losses: LossWatch, changes: ChangeSignal
    ) -> None:
        super().__init__(changes=changes)
        self.metrics = process_registry()
        self._folding = folding
        self._intake = intake
        self._losses = losses
        self._conditions = intake.conditions
        self._source = ConfirmationSource(0, intake.heartbeats.bridge)

    # The table, as `TableView` asks for it

    @property
    def kernel(self) -> ReadOnlyKernel:
        """See `TableView`."""
        return self._folding.fold.kernel

    def positions(self) -> Positions:
        """See `TableView`."""
        return (Position(0, self._folding.fold.offset),)

    def _publishers(self) -> Mapping[PublisherKey, PublisherState]:
        return self._folding.fold.publishers

    def _registrations(self) -> list[Registration]:
        registered = list(self._folding.fold.registrations.values())
        return [one.registration for one in registered]

    def _states(self) -> ScopeStates:
        return self._folding.fold.states

    def _fresh_until(self) -> FreshUntil:
        return {self._source: self._folding.as_of + STALE_S}

    def _stale_at(self) -> float:
        conditions = self._conditions
        is_behind = bool(conditions.all()) and any(map(conditions.has, _STALE_PARTS))
        return -math.inf if is_behind else math.inf

    def _is_damaged(self, scope: PrefixScope) -> bool:
        return self._losses.covers(scope)

    def _connected(self, publisher: PublisherKey) -> bool:
        return self._intake.connected(publisher)

    def _activity(self, publisher: PublisherKey) -> tuple[str, float] | None:
        return self._intake.activity_of(publisher)

    def _ledgers(self) -> Mapping[PublisherKey, Ledger]:
        return self._folding.fold.ledgers.current

    def _segments(self) -> Mapping[SegmentKey, SegmentState]:
        return self._folding.fold.memory.segments

    # View

    @property
    def ready(self) -> bool:
        """See `View`."""
        return self._conditions.ready

    def health(self) -> Health:
        """See `View`."""
        return Health(ROLE, self._conditions.all(), self.kernel.name, self.positions())
