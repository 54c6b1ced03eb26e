"""What an engine is told that is to fetch the rest of a prefix from another one: a `kv.fetch@1.0`.

Source: the envelope of vLLM (`vllm/v1/kv_hints`, RFC 53421), which SGLang has, too, and Dynamo's
router makes (ai-dynamo/dynamo 11695, 13134). The block hashes are the source's own names of the
prompt's blocks from the first one on; the engine that is told fetches those that it lacks, or
computes them.
"""

from collections.abc import Sequence
from struct import unpack
from typing import Final

import msgspec

from routing.decisions.targets import KnownTarget
from schemas.identities import PrefixScope
from schemas.routing_records import Decision, decision_id
from streams.kernel.interface import ReadOnlyKernel

CONTROL_LABEL: Final = "kv_control_endpoint"
"""Of a registration: where others ask for blocks, as `tcp://10.0.0.7:24000`."""


class FetchPayload(msgspec.Struct, frozen=True):
    """Where blocks are, and what they are called there."""

    source_control_endpoint: str
    block_hashes: tuple[int, ...]
    mode: str = "copy"


class KvHintAction(msgspec.Struct, frozen=True):
    """What is to be done; types and versions are the field's."""

    action_id: str
    payload: FetchPayload
    action_type: str = "kv.fetch"
    action_version: str = "1.0"


class KvHints(msgspec.Struct, frozen=True):
    """The envelope, as it stands in the request to the engine, under `kv_hints`."""

    message_id: str
    actions: tuple[KvHintAction, ...]
    protocol_version: str = "0.1"


def fetch_hint(
    run: int,
    decision: Decision,
    known: Sequence[KnownTarget],
    kernel: ReadOnlyKernel,
    prefixes: bytes,
) -> KvHints | None:
    """What the chosen one is told; None where nothing is to be fetched, one of the two does not say
    where blocks are asked for, or it is not known what the source calls them.

    Args:
        run: of the service that decided.
        decision: that it made.
        known: the candidates, in the order of the decision.
        kernel: that knows names of blocks.
        prefixes: prefix hashes of the prompt's blocks, u64 LE.
    """
    if decision.chosen < 0:
        return None
    chosen = decision.candidates[decision.chosen]
    if not chosen.fetch_from:
        return None
    sources = [
        place
        for place, one in enumerate(decision.candidates)
        if one.instance_id == chosen.fetch_from and one.cached >= chosen.prefix
    ]
    if not sources or not known[decision.chosen].labels.get(CONTROL_LABEL):
        return None
    source = decision.candidates[sources[0]]
    endpoint = known[sources[0]].labels.get(CONTROL_LABEL)
    if not endpoint:
        return None
    scope = PrefixScope(*decision.scope)
    blocks = prefixes[: 8 * (chosen.prefix // scope.block_size)]
    names = kernel.engine_hashes(scope, blocks, source.instance_id, source.dp_rank)
    if len(names) * scope.block_size <= 8 * chosen.cached:
        return None
    hashes = unpack(f"<{len(names) // 8}Q", names)
    name = decision_id(run, decision.number)
    return KvHints(name, (KvHintAction(f"{name}-fetch", FetchPayload(endpoint, hashes)),))
