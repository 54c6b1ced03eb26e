"""Makes one trace of many conversations, in the order of time.

A conversation says when each of its requests was sent from its own beginning, and not when it
began. So one begins so long after the other. Its ids get numbers of their own, since they mean
nothing beyond it; blocks of the tools and the system prompt can be made the same in all of them.

One conversation is in memory at a time. Lines wait in a file, and of each its time and place are in
memory.
"""

from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from replay.bounds import TRACE_REQUESTS_MAX
from replay.traces.conversations import Conversation, ConversationError
from replay.traces.request import BlockId, TraceRequest
from replay.traces.session_hits import Distribution, distribution_of
from schemas.limits import TRACE_BLOCKS_MAX
from storage.faults import disk_errors

_ACTION: Final = "keep the lines of a trace"


class ConversationMerge:
    """Takes conversations, then writes their requests in the order of time.

    Args:
        lines: an empty file in which lines wait.
        path: of the file's folder, of which an error tells.
        every_s: how long after the one before a conversation begins.
        shared: of the tokens of tools and system prompt, the share of which the blocks are the same
            in all conversations; 0: none are.
        block_size: tokens for each id that is written, a multiple of the conversations'; None:
            theirs.

    Attributes:
        block_size: tokens for each id that is written; None before the first conversation.
        agents, agent_requests: how many sub-agents the conversations have, and their requests.
    """

    def __init__(
        self,
        lines: BinaryIO,
        path: Path,
        *,
        every_s: float,
        shared: float = 0.0,
        block_size: int | None = None,
    ) -> None:
        self._lines = lines
        self._path = path
        self._every_s = every_s
        self._shared = shared
        self.block_size = block_size
        self.agents = 0
        self.agent_requests = 0
        # Ids below are of blocks that all conversations have.
        self._next_id = TRACE_BLOCKS_MAX if shared else 0
        self._names: Counter[str] = Counter()
        self._times_ms = array("d")
        self._ends = array("Q", [0])
        self._inputs = array("I")
        self._requests_each = array("I")
        self._encoder = msgspec.json.Encoder()

    @property
    def requests(self) -> int:
        """How many were taken."""
        return len(self._times_ms)

    def conversation_requests(self) -> Distribution:
        """How many a conversation has."""
        return distribution_of(self._requests_each)

    def input_tokens(self) -> Distribution:
        """How many a request has."""
        return distribution_of(self._inputs)

    def take(self, conversation: Conversation, place: str) -> None:
        """Adds one, which begins after those before.

        Args:
            conversation: to add.
            place: where it was read, of which an error tells.

        Raises:
            ConversationError: its blocks do not go with the others', or there is no room for its
                requests; nothing of it is taken.
            DiskError: its lines have no room.
        """
        group = self._group_of(conversation, place)
        if self.requests + len(conversation.turns) > TRACE_REQUESTS_MAX:
            raise ConversationError(
                f"{place}: expected at most {TRACE_REQUESTS_MAX:,} requests of all conversations,"
                " got more"
            )
        self.block_size = group * conversation.block_size
        self._names[conversation.name] += 1
        copies = self._names[conversation.name]
        session = conversation.name if copies == 1 else f"{conversation.name}#{copies}"
        begun_s = self._every_s * len(self._requests_each)
        numbers = self._shared_numbers(conversation, group)
        lines = bytearray()
        for turn in conversation.turns:
            at_ms = round(1000 * (begun_s + turn.time_s), 3)
            ids = self._ids_of(turn.hash_ids, group, numbers)
            request = TraceRequest(at_ms, turn.input_tokens, turn.output_tokens, ids, session)
            start = len(lines)
            self._encoder.encode_into(request, lines, start)
            lines += b"\n"
            self._times_ms.append(at_ms)
            self._inputs.append(turn.input_tokens)
            self._ends.append(self._ends[-1] + len(lines) - start)
        with disk_errors(_ACTION, self._path):
            self._lines.write(lines)
        self._requests_each.append(len(conversation.turns))
        self.agents += conversation.agents
        self.agent_requests += sum(turn.agent > 0 for turn in conversation.turns)

    def write(self, write: Callable[[bytes], object]) -> None:
        """Writes all lines; those of the same time in the order in which they were taken.

        Args:
            write: takes bytes.
        """
        for number in sorted(range(self.requests), key=self._times_ms.__getitem__):
            start, end = self._ends[number], self._ends[number + 1]
            with disk_errors(_ACTION, self._path):
                self._lines.seek(start)
                line = self._lines.read(end - start)
            write(line)

    def _group_of(self, conversation: Conversation, place: str) -> int:
        """How many of its blocks one that is written has."""
        size = conversation.block_size
        group, rest = divmod(self.block_size or size, size)
        if rest:
            raise ConversationError(
                f"{place}: expected a block_size that divides the trace's {self.block_size}, got"
                f" {size}: import it into a trace of its own"
            )
        return group

    def _shared_numbers(
        self, conversation: Conversation, group: int
    ) -> dict[tuple[BlockId, ...], int]:
        """The numbers of blocks that all conversations have: the first ones of its first prompt."""
        first = next((turn for turn in conversation.turns if not turn.agent), None)
        if first is None or not self._shared:
            return {}
        count = int(self._shared * conversation.shared_tokens) // (group * conversation.block_size)
        return {
            tuple(first.hash_ids[number * group : (number + 1) * group]): number
            for number in range(min(count, len(first.hash_ids) // group))
        }

    def _ids_of(
        self, hash_ids: list[BlockId], group: int, numbers: dict[tuple[BlockId, ...], int]
    ) -> list[int]:
        """Of its whole blocks."""
        ids = []
        for block in zip(*(hash_ids[place::group] for place in range(group)), strict=False):
            number = numbers.get(block)
            if number is None:
                number = numbers[block] = self._next_id
                self._next_id += 1
            ids.append(number)
        return ids
