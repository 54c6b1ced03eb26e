"""Events as the requests of a trace, as far as they show them.

An engine says which blocks it stores, not for whom. What is derived:

- A run of blocks that an engine stores on its GPU, together with the chain that it hangs on, is the
  prompt of a request; its time is that of the record.
- What goes on where the same engine's last run ended, within `join_s` seconds, is of the same
  request: several blocks are more of the prompt (it was computed in pieces), single ones are the
  answer. Several blocks behind an answer are the next request.

What is lost: requests of which all blocks were held, and of others when they were repeated; the
tokens of a last block that is not full; to whom parallel answers of one prompt belong.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from typing import Final

from xxhash import xxh3_64_intdigest

from replay.block_events import BlockEvents, Step
from replay.chains import Chains, Link
from replay.traces.request import TraceRequest
from schemas.events import ClearedBlocks, StoredBlocks
from schemas.identities import Medium, PublisherKey
from schemas.limits import TRACE_BLOCKS_MAX, TRACE_TOKENS_MAX

EXPORT_REQUESTS_OPEN_MAX: Final = 65_536  # requests that wait for their end, or for their turn

_Tail = tuple[PublisherKey, int, int]
"""Publisher, what tells its blocks from those of other models, and the prefix of the last block."""


class _OpenRequest:
    """A request that may go on.

    Attributes:
        number: of all, from 0.
        begun_at, last_at: Unix seconds.
        prompt: the last block of its prompt.
        tail: its last block, and whose.
        answer_blocks: behind the prompt.
        block_size: tokens of a block.
    """

    __slots__ = ("answer_blocks", "begun_at", "block_size", "last_at", "number", "prompt", "tail")

    def __init__(self, number: int, at: float, prompt: Link, tail: _Tail, block_size: int) -> None:
        self.number = number
        self.begun_at = self.last_at = at
        self.prompt = prompt
        self.tail = tail
        self.answer_blocks = 0
        self.block_size = block_size


class Requests:
    """The requests of a capture, in the order of their times; once.

    Args:
        steps: of the capture.
        chains: of its publishers.
        block_size: tokens for each id: a multiple of the engines'; None for that of the first
            stream.
        join_s: see the module.

    Attributes:
        block_size: see there.
        counters: what was left out or is not whole, by reason.
    """

    def __init__(
        self, steps: BlockEvents, chains: Chains, *, block_size: int | None, join_s: float
    ) -> None:
        self._steps = steps
        self._chains = chains
        self.block_size = block_size
        self._join_s = join_s
        self.counters: Counter[str] = Counter()
        self._groups: dict[PublisherKey, int] = {}
        self._tails: dict[_Tail, _OpenRequest] = {}
        self._open: dict[
            int, _OpenRequest
        ] = {}  # by number, which is the order of their beginnings
        self._ends: list[tuple[float, int]] = []  # when to look whether one goes on
        self._closed: list[tuple[float, int, _OpenRequest]] = []
        self._number = 0
        self._first_at: float | None = None

    def __iter__(self) -> Iterator[TraceRequest]:
        """The requests.

        Raises:
            CaptureDamagedError, DiskError: the capture cannot be read further.
        """
        for step in self._steps:
            self._take(step)
            self._close_until(step.time)
            yield from self._ready()
        for number in list(self._open):
            self._close(number)
        yield from self._ready()

    def _take(self, step: Step) -> None:
        publisher = step.record.publisher
        if step.forgets:
            self._chains.forget(publisher)
        for _, event in step.events:
            if isinstance(event, ClearedBlocks) and event.is_whole:
                self._chains.forget(publisher)
            elif isinstance(event, StoredBlocks):
                self._take_stored(publisher, event, step.time)

    def _take_stored(self, publisher: PublisherKey, event: StoredBlocks, time: float) -> None:
        links = [link for link in self._chains.stored(publisher, event) if link is not None]
        stream = publisher.stream
        if not links or not event.tokens:
            return
        if event.medium is not Medium.GPU or event.shared:
            self.counters["copies"] += len(links)
            return
        if self.block_size is None:
            self.block_size = stream.block_size
        if self.block_size % stream.block_size or event.block_size != stream.block_size:
            self.counters["other_block_size"] += len(links)
            return
        if self._groups.setdefault(publisher, event.group) != event.group:
            self.counters["other_groups"] += len(links)
            return
        before = links[0].before
        name = "\0".join((stream.tenant_id, stream.model_name, event.lora_name))
        mixed = xxh3_64_intdigest(f"{name}\0{stream.additional_salt}".encode())
        tail = (publisher, mixed, links[-1].prefix)
        found = None if before is None else self._tails.get((publisher, mixed, before.prefix))
        if found is None or not self._goes_on(found, len(links), time):
            self._begin(time, links[-1], tail, stream.block_size)
            return
        del self._tails[found.tail]
        found.last_at, found.tail = time, tail
        if len(links) == 1:
            found.answer_blocks += 1
        else:
            found.prompt = links[-1]
        self._tails[tail] = found

    def _goes_on(self, found: _OpenRequest, blocks: int, time: float) -> bool:
        is_near = time - found.last_at <= self._join_s
        return is_near and (blocks == 1 or not found.answer_blocks)

    def _begin(self, time: float, prompt: Link, tail: _Tail, block_size: int) -> None:
        if not prompt.is_whole:
            self.counters["begin_unknown"] += 1
        if len(self._open) + len(self._closed) >= EXPORT_REQUESTS_OPEN_MAX:
            self.counters["cut_short"] += 1
            self._close(next(iter(self._open)))
        begun = _OpenRequest(self._number, time, prompt, tail, block_size)
        self._number += 1
        self._open[begun.number] = self._tails[tail] = begun
        heapq.heappush(self._ends, (time, begun.number))

    def _close_until(self, now: float) -> None:
        """Ends the requests that cannot go on any more."""
        while self._ends and now - self._ends[0][0] > self._join_s:
            _, number = heapq.heappop(self._ends)
            request = self._open.get(number)
            if request is None:
                continue
            if now - request.last_at > self._join_s:
                self._close(number)
            else:
                heapq.heappush(self._ends, (request.last_at, number))

    def _close(self, number: int) -> None:
        request = self._open.pop(number)
        if self._tails.get(request.tail) is request:
            del self._tails[request.tail]
        heapq.heappush(self._closed, (request.begun_at, number, request))

    def _ready(self) -> Iterator[TraceRequest]:
        """Those that no open one can come before."""
        earliest = next(iter(self._open.values())).begun_at if self._open else math.inf
        while self._closed and self._closed[0][0] <= earliest:
            begun_at, _, request = heapq.heappop(self._closed)
            if self._first_at is None:
                self._first_at = begun_at
            made = self._request(request, max(0.0, begun_at - self._first_at))
            if made is not None:
                yield made

    def _request(self, request: _OpenRequest, at_s: float) -> TraceRequest | None:
        assert self.block_size is not None, "it is known with the first block"
        blocks = request.prompt.blocks
        tokens = blocks * request.block_size
        each = self.block_size // request.block_size
        ids = -(-blocks // each)
        if tokens > TRACE_TOKENS_MAX or ids > TRACE_BLOCKS_MAX:
            self.counters["too_long"] += 1
            return None
        mixed = request.tail[1]
        hash_ids = []
        link: Link | None = request.prompt
        while link is not None and link.blocks:
            if link.blocks == blocks or not link.blocks % each:
                hash_ids.append((link.prefix ^ mixed) >> 1)
            link = link.before
        return TraceRequest(
            timestamp=round(at_s * 1000),
            input_length=tokens,
            output_length=min(request.answer_blocks * request.block_size, TRACE_TOKENS_MAX),
            hash_ids=hash_ids[::-1],
        )
