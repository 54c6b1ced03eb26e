"""A past table as the HTTP API reads it: one that no longer changes."""

import math
from collections.abc import Iterable, Mapping

from query_api.ports import Positions
from query_api.table_view import TableView
from schemas.identities import PublisherKey
from schemas.positions import PublisherState
from schemas.registration import Registration
from streams.history.past_tables import PastTable
from streams.kernel.interface import ReadOnlyKernel
from streams.table.scope_states import FreshUntil, ScopeStates


class PastTableView(TableView):
    """The table as of its positions.

    Its states are those that the log knew: a bridge that had confirmed a publisher by then counts,
    as it did then while its heartbeats came.

    Args:
        fresh_until: until when those count that had confirmed publishers, Unix seconds.
        moment: that is asked of; before any other where a position is.
    """

    def __init__(
        self, table: PastTable, fresh_until: FreshUntil, *, moment: float = -math.inf
    ) -> None:
        super().__init__(clock=lambda: moment)
        self._table = table
        self._fresh = fresh_until
        self._registered = [known.registration for known in table.registrations.values()]

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
        return self._registered

    def _states(self) -> ScopeStates:
        return self._table.states

    def _fresh_until(self) -> FreshUntil:
        return self._fresh

    def _stale_at(self) -> float:
        return math.inf
