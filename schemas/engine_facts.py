"""What an engine says of itself over HTTP, as its bridge writes it into the log."""

from typing import Annotated

import msgspec
from msgspec import Meta

from schemas.identities import Rank, Text
from schemas.limits import ENGINE_MODELS_MAX, ENGINE_RANKS_MAX

Count = Annotated[int, Meta(ge=0, le=2**53)]


class EngineFacts(msgspec.Struct, frozen=True, array_like=True):
    """Of one data-parallel rank. "", 0, () and None: the engine does not say it.

    Attributes:
        version: of its release.
        models: by which requests name them, adapters included; the first ENGINE_MODELS_MAX.
        block_size: tokens of a block.
        blocks: that its cache has room for; of this rank.
        ranks: that publish events; the first ENGINE_RANKS_MAX.
        endpoint, replay_endpoint: where this rank publishes and replays, in the engine's words.
        publishes: whether events are switched on.
        caches: whether prefix caching is.
        is_asleep: whether it was put to sleep, and has given up its cache.
        reads_media: whether its model reads images or sound.
        is_hybrid: whether its model has windows or recurrent states beside full attention, and
            its events do not say it.
        completes_as_told: whether the prompts of completions are what it computes: it has no
            template for them.
    """

    version: Text = ""
    models: Annotated[tuple[Text, ...], Meta(max_length=ENGINE_MODELS_MAX)] = ()
    block_size: Count = 0
    blocks: Count = 0
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=ENGINE_RANKS_MAX)] = ()
    endpoint: Text = ""
    replay_endpoint: Text = ""
    publishes: bool | None = None
    caches: bool | None = None
    is_asleep: bool | None = None
    reads_media: bool | None = None
    is_hybrid: bool | None = None
    completes_as_told: bool | None = None
