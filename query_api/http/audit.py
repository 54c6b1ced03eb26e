"""Keeps an answer that was made step by step, as the kernel keeps those of its one call."""

from collections.abc import Callable
from typing import NamedTuple

from query_api.http.requests.queries import Query, block_keys
from schemas.answer_records import encode_answer
from schemas.answer_states import AnswerState
from schemas.clock import REAL_CLOCK
from schemas.identities import PrefixScope
from schemas.limits import BLOCK_SIZE_MAX
from streams.kernel.interface import AuditQueue, InstanceMatch, ReadOnlyKernel

_Settled = tuple[int, list[tuple[int, int]]]


class SteppedAnswer(NamedTuple):
    """An answer that was made step by step: what was asked, and all that the kernel said."""

    by_hash: bool
    query: Query
    scope: PrefixScope
    matches: list[InstanceMatch]


class AnswerAudit:
    """Of one app; its answers are given on one thread.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, queue: AuditQueue, *, clock: Callable[[], float] = REAL_CLOCK.unix) -> None:
        self._queue = queue
        self._clock = clock

    def begin(self, kernel: ReadOnlyKernel) -> tuple[_Settled | None] | None:
        """Before the kernel is asked; None where the answer is not one of those that are kept."""
        return (kernel.settled(),) if self._queue.draw() else None

    def end(
        self, begun: tuple[_Settled | None], kernel: ReadOnlyKernel, stepped: SteppedAnswer
    ) -> bytes | None:
        """After it was asked: what `push` takes; None, which is counted, where the table was
        written meanwhile, or no list of hashes gives the answer: some instances hold the prompt as
        plain blocks, and some as blocks of pairs, or with keys of another form. Cost of hashing
        what is held of the prompt, and of a query.
        """
        by_hash, query, scope, matches = stepped
        held = max((match.longest for match in matches), default=0)
        needed = held // scope.block_size + 1
        is_told = True
        if by_hash:
            hashes = query.content[: 8 * needed]
        elif matches:
            _, forms = block_keys(kernel, query)
            for keys in forms:
                hashes = kernel.prefix_hashes(scope, query.content, keys, needed)
                is_told = kernel.query_by_hash(scope, hashes, query.instance_id) == matches
                if is_told:
                    break
        else:
            hashes = b""
        after = kernel.settled()
        if not is_told or begun[0] is None or after is None or begun[0][0] != after[0]:
            self._queue.note_unsettled()
            return None
        blocks = len(query.content) // 8
        return encode_answer(
            after[1],
            scope,
            query.instance_id,
            hits_only=False,
            tokens=blocks * query.block_size if by_hash else len(query.content) // 4,
            hashes=hashes if scope.block_size <= BLOCK_SIZE_MAX else b"",
            instances=matches,
        )

    def push(self, answer: bytes, state: AnswerState) -> None:
        """Keeps an answer that was given now."""
        self._queue.push(answer, self._clock(), state.value)
