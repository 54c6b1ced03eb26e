"""Publishers of which a log that has lost records may have lost some, without a gap that shows it.

The next record of a publisher proves it: its bridge goes on behind the last batch that the log has,
so what was lost is replayed, or a gap. Until then whatever it holds may differ from the table, and
answers in its scope are not `exact`.
"""

from schemas.identities import PrefixScope, PublisherKey
from schemas.positions import NO_CURSOR, Cursor
from streams.log.losses import LogLoss
from streams.table.fold import Fold
from streams.table.scope_states import Scope, common_scope, scope_of


class Suspects:
    """See the module. One thread calls `prune`; any thread may ask.

    Args:
        loss: of the log.
        fold: of all that the log has, and nothing newer.
    """

    def __init__(self, loss: LogLoss, fold: Fold) -> None:
        self._fold = fold
        self._all_scopes = loss.registrations
        self._by_scope: dict[Scope, dict[PublisherKey, Cursor]] = {}
        for publisher, registered in fold.registrations.items():
            if not registered.registration.has_events:
                continue  # it has nothing in the table that could be missing
            suspects = self._by_scope.setdefault(scope_of(publisher.stream), {})
            suspects[publisher] = self._cursor(publisher)

    def __len__(self) -> int:
        """How many there are; as of the last `prune`."""
        return sum(map(len, self._by_scope.values()))

    @property
    def are_cleared(self) -> bool:
        """Whether nothing is left to prove."""
        return not (self._by_scope or self._all_scopes)

    def _cursor(self, publisher: PublisherKey) -> Cursor:
        state = self._fold.publishers.get(publisher)
        return NO_CURSOR if state is None else state.cursor

    def _is_suspect(self, publisher: PublisherKey, cursor: Cursor) -> bool:
        return publisher in self._fold.registrations and self._cursor(publisher) == cursor

    def are_in(self, scope: PrefixScope) -> bool:
        """Whether there are any in the scope. Cost O(those in it)."""
        if self.are_cleared:
            return False
        found = self._by_scope.get(common_scope(scope), {})
        return self._all_scopes or any(self._is_suspect(*one) for one in found.items())

    def prune(self) -> None:
        """Forgets those that are proven; O(suspects)."""
        left = {
            scope: {
                publisher: cursor
                for publisher, cursor in found.items()
                if self._is_suspect(publisher, cursor)
            }
            for scope, found in self._by_scope.items()
        }
        self._by_scope = {scope: found for scope, found in left.items() if found}
