"""What is accessed: by the requests of a trace, and by engines as far as a capture shows it.

A trace has every access. A capture has the blocks that engines stored: those that their own caches
missed, since an engine announces no hit. So the curve of a capture is that of a cache *behind* the
engines, which all of a model share and which has what they store: an LRU pool of this size would
have had this share of what they computed or loaded. It does not say what share of their prompts
that is, and nothing of how a larger cache in an engine would do, beyond what `regret` says.
"""

from collections.abc import Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from lab.miss_ratio.miss_ratio import MissRatios, Scope
from lab.miss_ratio.regret import Regrets
from replay.block_events import BlockEvents
from replay.chains import Chains
from replay.traces.request import TraceRequest, common_length
from replay.traces.session_hits import SessionHits
from schemas.events import ClearedBlocks, StoredBlocks
from schemas.identities import Medium, PublisherKey
from schemas.limits import TRACE_LOOK_LINES
from schemas.progress import Progress, StopCheck, Tell, never, silent

SEEN_BLOCKS_MAX: Final = 33_554_432  # different ones of a trace with sessions; 100 bytes each

_U64: Final = 8
_U64_MASK: Final = 2**64 - 1


def chain_of(request: TraceRequest, begun: Sequence[int] = ()) -> list[int]:
    """The blocks of a request as hashes that are evenly distributed: of each id and all ids before
    it, so that an id that stands behind two different ones is two blocks.

    Args:
        request: whose.
        begun: the hashes of its first blocks, where they are known.
    """
    chain = list(begun)
    before = chain[-1] if chain else 0
    for block_id in request.hash_ids[len(chain) :]:
        link = before.to_bytes(_U64, "little") + (block_id & _U64_MASK).to_bytes(_U64, "little")
        before = xxh3_64_intdigest(link)
        chain.append(before)
    return chain


def tokens_of(request: TraceRequest, block_size: int) -> list[int]:
    """How many tokens each block of a request has: the last one may be partial."""
    left = request.input_length
    count = len(request.hash_ids)
    return [min(block_size, max(0, left - number * block_size)) for number in range(count)]


def use_trace(
    ratios: MissRatios,
    source: str,
    block_size: int,
    requests: Sequence[TraceRequest],
    hits: SessionHits,
    *,
    tell: Tell = silent,
    stopped: StopCheck = never,
) -> None:
    """Every block of every request, in the order of time, until it is to end.

    Args:
        ratios: which are told of accesses.
        source: the name of the file.
        block_size: tokens of a block.
        requests: of the trace.
        hits: which are told of sessions, where the trace names any.
        tell: of how far it is.
        stopped: whether it is to end.
    """
    scope = Scope(source, "", "", block_size)
    last: dict[str, tuple[list[int], list[int]]] = {}  # of each session: ids, and their chain
    names_sessions = any(request.session_id is not None for request in requests)
    seen: set[int] = set()
    for number, request in enumerate(requests):
        if not number % TRACE_LOOK_LINES:
            tell(Progress(number, len(requests), number))
            if stopped():
                return
        ids, chain = last.get(request.session_id or "", ([], []))
        same = common_length(ids, request.hash_ids)
        chain = chain_of(request, chain[:same])
        if request.session_id is not None:
            last[request.session_id] = request.hash_ids, chain
        if names_sessions:
            # What was seen of a chain is its beginning.
            known = next(
                (at for at in range(same, len(chain)) if chain[at] not in seen), len(chain)
            )
            if len(seen) + len(chain) - known > SEEN_BLOCKS_MAX:
                hits.left_out += 1
            else:
                seen.update(chain[known:])
                hits.add(request.session_id, len(chain), known)
        ratios.use(scope, chain, tokens_of(request, block_size))


def use_capture(
    ratios: MissRatios, regrets: Regrets, source: str, steps: BlockEvents, chains: Chains
) -> None:
    """Every block that an engine stored on its GPU, and every removal.

    Args:
        ratios: which are told of accesses.
        regrets: which are told of all events.
        source: the name of the file.
        steps: of the capture.
        chains: of its publishers.

    Raises:
        CaptureDamagedError, DiskError: the capture cannot be read further; what stands before that
            is taken.
    """
    for step in steps:
        publisher = step.record.publisher
        if step.forgets:
            chains.forget(publisher)
            regrets.forget(publisher)
        stream = publisher.stream
        scope = Scope(source, stream.tenant_id, stream.model_name, stream.block_size)
        time = step.engine_time
        for _, event in step.events:
            regrets.take(publisher, event, time)
            if isinstance(event, ClearedBlocks) and event.is_whole:
                chains.forget(publisher)
            elif isinstance(event, StoredBlocks):
                blocks = _accessed(publisher, event, chains)
                ratios.use(scope, blocks, [stream.block_size] * len(blocks))


def _accessed(publisher: PublisherKey, event: StoredBlocks, chains: Chains) -> list[int]:
    """The blocks of the event that somebody asked for: on another medium than a GPU stands a copy
    of what a GPU has or had.
    """
    links = chains.stored(publisher, event)
    if event.medium is not Medium.GPU or event.shared:
        return []
    kind = f"{event.lora_name}\0{event.group}\0{publisher.stream.additional_salt}"
    mixed = xxh3_64_intdigest(kind.encode())
    # Of two equal ones, which only a placeholder may name, one is an access.
    return list(dict.fromkeys(link.prefix ^ mixed for link in links if link is not None))
