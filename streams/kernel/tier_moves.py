"""Blocks that one batch removes and then names again: they have moved to a tier.

An engine tells first what it has evicted and then what its offloading has stored, so the removal of
a block from the GPU may come before the placeholder of the same block on the CPU. So it does with
SGLang's write-back (0.5.15 to 0.5.20), whose stores on the CPU have tokens, and of which those come
first that hang on others. What a removed block was is remembered to the end of its batch and no
longer. Both are in one record, of a large batch too (`bridge.wire.batch_parts`), so the table
depends on the log alone, not on how batches were packed into records.

So it is with what engines call a block (an alias) of which a pool drops its last object: the pool
may store it anew, elsewhere. A large batch is cut into records without regard to that, and what is
stored in a later one waits for an engine.
"""

from collections.abc import Iterable

from schemas.events import BlockEvent, named_again
from schemas.identities import PrefixScope


class Moves:
    """What blocks were that the present batch has removed. Nothing is kept of batches of which no
    event may name one again.
    """

    def __init__(self, events: Iterable[BlockEvent]) -> None:
        self._moving = {event.sequence for event in events if named_again(event)}
        self._sequence: int | None = None
        self._removed: dict[int, tuple[PrefixScope, int]] = {}
        self._forgotten: dict[int, tuple[PrefixScope, int]] = {}

    def begin(self, sequence: int) -> None:
        """An event of this batch is next."""
        if sequence != self._sequence:
            self._sequence = sequence
            self._removed.clear()
            self._forgotten.clear()

    def note(self, key: int, scope: PrefixScope, prefix: int) -> None:
        """The block of this engine key is removed from a tier."""
        if self._sequence in self._moving:
            self._removed[key] = (scope, prefix)

    def find(self, key: int) -> tuple[PrefixScope, int] | None:
        """What the block was."""
        return self._removed.get(key)

    def forget(self, key: int, scope: PrefixScope, prefix: int) -> None:
        """The pool remembers the block of an alias no longer, which stood under this key."""
        self._forgotten[key] = (scope, prefix)

    def forgotten(self, key: int) -> tuple[PrefixScope, int] | None:
        """Where it stood, and which block it was."""
        return self._forgotten.get(key)
