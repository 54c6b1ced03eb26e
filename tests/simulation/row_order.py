"""The rows of a flush in any order, but for the one that commits them, and for strays, which are
removed first. So are the changes of one row between clears, but for those of one key.

In which order the Rust kernel gives them differs from process to process. That of the reference
kernel is the log's, on which a reader could lean unseen. A mark stays before the removals of what
it replaces: a cleaner that got as far as their middle would leave a reader neither generation.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import Final
from unittest import mock

from schemas.identities import ModelContext
from streams.kernel.changes import CHANGE_BYTES, Op
from streams.kernel.reference import ReferenceDump, ReferenceKernel
from streams.table.fold import Fold, TableChanges
from streams.table.rows.writer import Flush, RowWriter

_KEY: Final = slice(0, 8)
_RANK: Final = slice(16, 20)
_OP_AT: Final = 21


@contextmanager
def shuffled_rows(rng: random.Random) -> Iterator[None]:
    """Meanwhile the reference kernel gives changes, and writers give rows, in an order of `rng`."""
    take_changes, open_dump = ReferenceKernel.take_changes, ReferenceKernel.open_dump
    flush = RowWriter.flush

    def any_changes(kernel: ReferenceKernel) -> list[tuple[ModelContext, bytes]]:
        taken = [(context, _shuffled(body, rng)) for context, body in take_changes(kernel)]
        rng.shuffle(taken)
        return taken

    def any_dump(kernel: ReferenceKernel, context: ModelContext, /) -> ReferenceDump:
        dump = open_dump(kernel, context)
        rng.shuffle(dump._keys)
        return dump

    def any_flush(writer: RowWriter, fold: Fold, changes: TableChanges) -> Flush:
        made = flush(writer, fold, changes)
        ahead = list(made.ahead)
        strays, deltas = ahead[: len(made.strays)], ahead[len(made.strays) :]
        rng.shuffle(strays)
        rng.shuffle(deltas)
        *last, covered = made.last
        rng.shuffle(last)
        return made._replace(ahead=iter([*strays, *deltas]), last=[*last, covered])

    with ExitStack() as stack:
        for owner, name, made in (
            (ReferenceKernel, "take_changes", any_changes),
            (ReferenceKernel, "open_dump", any_dump),
            (RowWriter, "flush", any_flush),
        ):
            stack.enter_context(mock.patch.object(owner, name, made))
        yield


def _shuffled(body: bytes, rng: random.Random) -> bytes:
    changes = [body[at : at + CHANGE_BYTES] for at in range(0, len(body), CHANGE_BYTES)]
    shuffled: list[bytes] = []
    for is_clear, group in groupby(changes, key=lambda one: one[_OP_AT] == Op.CLEAR):
        run = list(group)
        if not is_clear:
            places = {one[_KEY] + one[_RANK]: rng.random() for one in run}
            run.sort(key=lambda one: places[one[_KEY] + one[_RANK]])
        shuffled += run
    return b"".join(shuffled)
