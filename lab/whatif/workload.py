"""A trace with its blocks numbered, in a form that is small and passes between processes."""

from array import array
from collections.abc import Iterable
from typing import Final

from replay.traces.request import TraceRequest
from replay.traces.session_hits import Distribution, SessionHits

_SESSION_BLOCKS: Final = 2
"""Of a prompt by whose end a session is known: the first block is often a prompt of the system."""


class Workload:
    """Requests in the order of their times.

    A block is numbered by what it is: its id and all blocks before it. So the same number is the
    same prefix also where a trace uses an id after two different blocks (`reused_ids` counts the
    ids that it does this with). The number is the block's engine hash, and the one token by which
    the kernel hashes it: traces have no tokens, an id stands for all that a block holds.

    Attributes:
        name: of people.
        block_size: tokens for each block.
        arrivals_s: when each request arrives.
        prompt_tokens: of each request.
        output_tokens: of each request.
        distinct: how many blocks there are.
        depths: of each block: how many stand before it.
        sessions: of each request: which one it is of. One that begins with all whole blocks of an
            earlier one, two at least, is taken to be the next turn of its session, where the trace
            names none.
        session_hits: of sessions that the trace names.
    """

    def __init__(self, name: str, block_size: int, requests: Iterable[TraceRequest]) -> None:
        self.name = name
        self.block_size = block_size
        self.arrivals_s = array("d")
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")
        self.depths = array("I")
        self.sessions = array("I")
        self.session_hits: Distribution | None = None
        self.reused_ids = 0
        self._blocks = array("I")
        self._ends = array("Q", [0])
        self._number(requests)

    @property
    def distinct(self) -> int:
        """See the class."""
        return len(self.depths)

    @property
    def block_count(self) -> int:
        """Blocks of all requests together."""
        return len(self._blocks)

    def __len__(self) -> int:
        return len(self.arrivals_s)

    def chain(self, request: int) -> "array[int]":
        """The blocks of a request's prompt, in order. Cost O(blocks)."""
        return self._blocks[self._ends[request] : self._ends[request + 1]]

    def _number(self, requests: Iterable[TraceRequest]) -> None:
        numbers: dict[tuple[int, int], int] = {}
        ids: set[int] = set()
        ends: dict[int, int] = {}  # the last whole block of a request: its session
        names: dict[str, int] = {}
        hits = SessionHits()
        count = 0
        for request in requests:
            known = len(numbers)
            self.arrivals_s.append(request.timestamp / 1000.0)
            self.prompt_tokens.append(request.input_length)
            self.output_tokens.append(request.output_length)
            before, session = -1, count
            for depth, block_id in enumerate(request.hash_ids):
                number = numbers.get((before, block_id))
                if number is None:
                    number = numbers[before, block_id] = len(numbers)
                    self.depths.append(depth)
                    ids.add(block_id)
                self._blocks.append(number)
                before = number
                session = ends.get(number, session)
            length = len(request.hash_ids)
            hits.add(request.session_id, length, length - (len(numbers) - known))
            if request.session_id is not None:
                session = names.setdefault(request.session_id, count)
            count += session == count
            self.sessions.append(session)
            self._ends.append(len(self._blocks))
            whole = min(request.input_length // self.block_size, length)
            if whole >= _SESSION_BLOCKS:
                ends.setdefault(self._blocks[self._ends[-2] + whole - 1], session)
        self.session_hits = hits.rates()
        self.reused_ids = len(numbers) - len(ids)
