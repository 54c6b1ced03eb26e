"""The whole table as of a past moment: one fold of each partition, into one kernel.

A stream never spans partitions, so their folds have nothing of each other to change.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, NamedTuple

from schemas.identities import Offset, PublisherKey
from schemas.positions import Heartbeat, Position, PublisherState
from schemas.registration import LiveRegistration
from streams.history.past_fold import Blocks, Past
from streams.history.rows_as_of import StreamFilter
from streams.kernel.interface import Kernel
from streams.table.scope_states import ConfirmationSource, ScopeStates

HISTORY_FOLDS_KEPT: Final = 2  # of the last answers: each may take the memory of its scope


class PastTable(NamedTuple):
    """A table that no longer changes, of the streams that were wanted.

    Attributes:
        positions: of each partition, what was folded.
        heartbeats: of those that had confirmed publishers by then, the last ones.
    """

    kernel: Kernel
    positions: tuple[Position, ...]
    publishers: Mapping[PublisherKey, PublisherState]
    registrations: Mapping[PublisherKey, LiveRegistration]
    states: ScopeStates
    heartbeats: Mapping[ConfirmationSource, Heartbeat]


class PastTables:
    """Past tables of one log. Any thread; one is made at a time, and the last ones are kept.

    Args:
        pasts: of every partition, in their order.
        make_kernel: as theirs.
    """

    def __init__(self, pasts: Sequence[Past], make_kernel: Callable[[], Kernel]) -> None:
        self.pasts = pasts
        self._make_kernel = make_kernel
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, PastTable] = OrderedDict()

    def as_of(
        self,
        positions: Sequence[Position],
        wanted: StreamFilter,
        *,
        name: Hashable,
        blocks: Blocks | None = None,
    ) -> PastTable:
        """The table as of the positions; it is not to be changed. Cost: see `Past.fold_as_of`.

        Args:
            positions: one of each partition, in their order; an offset of -1 for nothing.
            wanted: of which streams.
            name: equal for equal `wanted`.
            blocks: all that is to be asked of it, which then lacks what is not needed for it.

        Raises:
            PastError: one of them is beyond what is kept, or takes too long.
            StorageError: rows or records cannot be read.
        """
        key = (tuple(positions), name, blocks)
        with self._lock:
            table = self._kept.pop(key, None) or self._made(positions, wanted, blocks)
            self._kept[key] = table
            while len(self._kept) > HISTORY_FOLDS_KEPT:
                self._kept.popitem(last=False)
            return table

    def _made(
        self, positions: Sequence[Position], wanted: StreamFilter, blocks: Blocks | None
    ) -> PastTable:
        kernel, states = self._make_kernel(), ScopeStates()
        publishers: dict[PublisherKey, PublisherState] = {}
        registrations: dict[PublisherKey, LiveRegistration] = {}
        heartbeats: dict[ConfirmationSource, Heartbeat] = {}
        for past, (partition, offset) in zip(self.pasts, positions, strict=True):
            fold = past.fold_as_of(Offset(offset), wanted, blocks=blocks, kernel=kernel)
            publishers |= fold.publishers
            registrations |= fold.registrations
            heartbeats |= {
                ConfirmationSource(partition, bridge): heard
                for bridge, heard in fold.bridges.items()
            }
            for publisher, state in fold.publishers.items():
                states.put(publisher, state, partition)
            for publisher, registered in fold.registrations.items():
                if registered.registration.has_events:
                    states.register(publisher, True, registered.registration)
        return PastTable(kernel, tuple(positions), publishers, registrations, states, heartbeats)

    def forget(self) -> None:
        """Gives back what was kept of earlier tables."""
        with self._lock:
            self._kept.clear()
