"""A past table as the HTTP API reads it: one that no longer changes."""

import math

from query_api.table_view import TableView
from streams.history.past_tables import PastTable


def past_view(table: PastTable) -> TableView:
    """The table as of its positions.

    Its states are those that the log knew: a bridge that had confirmed a publisher by then counts,
    as it did then while its heartbeats came.
    """
    fresh = dict.fromkeys(table.sources, math.inf)
    registrations = [known.registration for known in table.registrations.values()]
    return TableView(
        kernel=lambda: table.kernel,
        publishers=lambda: table.publishers,
        registrations=lambda: registrations,
        positions=lambda: table.positions,
        states=lambda: table.states,
        fresh_until=lambda: fresh,
        stale_at=lambda: math.inf,
    )
