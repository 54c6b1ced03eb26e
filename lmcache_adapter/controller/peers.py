"""Which worker another one can get chunks from. Pure.

LMCache's own controller names the first worker that it finds to have the first chunk. Here it is
the one with most of the chunks, of the same model, and at the asker's own rank where there is one:
chunks of two ranks have one hash, and different bytes. A worker gives others what it has in its
LocalCPUBackend alone, so one that has the chunks there comes first.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from lmcache_adapter.controller.member import Member
from lmcache_adapter.wire.locations import SYNCED
from lmcache_adapter.wire.messages import NOT_FOUND, BatchedP2PLookup, BatchedP2PLookupRet, key_of
from schemas.identities import StreamKey

LMCACHE_HASHES_MAX: Final = 65_536  # of one look-up; the rest of a prompt counts as a miss


def look_up(
    request: BatchedP2PLookup, members: Iterable[Member], scope: StreamKey
) -> BatchedP2PLookupRet:
    """The best peer, or `NOT_FOUND`. Cost O(workers + hits of the candidates).

    Args:
        request: hashes of a prompt's chunks, in order.
        scope: the asker's stream without an instance.
    """
    hashes = [key_of(one) for one in request.hashes[:LMCACHE_HASHES_MAX]]
    best = (False, False, 0)
    found = NOT_FOUND
    for member in members:
        registration = member.registration
        if (
            not hashes
            or registration.instance_id == request.instance_id
            or not registration.peer_url
            or member.asks_by is None
            or registration.stream._replace(instance_id="") != scope
        ):
            continue
        for location, keys in member.worker.keys:
            hits = _leading(hashes, keys)
            rank = (registration.dp_rank == request.worker_id, location == SYNCED, hits)
            if hits and rank > best:
                best = rank
                place = (registration.instance_id, location, hits, registration.peer_url)
                found = BatchedP2PLookupRet(layout_info=[place])
    return found


def _leading(hashes: Sequence[int], keys: set[int]) -> int:
    """How many of the first hashes are held."""
    count = 0
    for one in hashes:
        if one not in keys:
            break
        count += 1
    return count
