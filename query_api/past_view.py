"""A past table as the HTTP API reads it: a fold that no longer changes."""

import math

from query_api.ports import Positions
from query_api.table_view import TableView
from streams.table.fold import Fold
from streams.table.scope_states import Source


def past_view(fold: Fold, positions: Positions) -> TableView:
    """The table of a fold as of the positions.

    Its states are those that the log knew: a bridge that had confirmed a publisher by then counts,
    as it did then while its heartbeats came.
    """
    fresh = {Source(0, bridge): math.inf for bridge in fold.bridges}
    registrations = [known.registration for known in fold.registrations.values()]
    return TableView(
        kernel=lambda: fold.kernel,
        publishers=lambda: fold.publishers,
        registrations=lambda: registrations,
        positions=lambda: positions,
        states=lambda: fold.states,
        fresh_until=lambda: fresh,
        stale_at=lambda: math.inf,
    )
