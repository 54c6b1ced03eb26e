"""The objects of a request's tokens, as LMCache's coordinator resolves them. Pure."""

from typing import Final

from lmcache_adapter.coordinator.wire import CoordinatorError, Lookup, not_served
from lmcache_adapter.settings import BLAKE3, Model
from lmcache_adapter.topic.batches import ChunkKey
from lmcache_adapter.wire.chunk_names import chunk_names

LOOKUP_TOKENS_MAX: Final = 1_000_000  # of one request by tokens: 400, as LMCache has it
LOOKUP_OBJECTS_MAX: Final = 262_144  # that they name, of all ranks: 400


def object_keys(asked: Lookup, model: Model) -> tuple[list[ChunkKey], int]:
    """One key of object group 0 for each chunk and rank, chunk by chunk; and how many chunks.

    Raises:
        CoordinatorError: 400, more tokens or objects than may be asked for; 501, the model's
            chunks are named by a hash that is not made here.
    """
    if len(asked.token_ids) > LOOKUP_TOKENS_MAX:
        raise CoordinatorError(
            400,
            f"too many token_ids in a single request (limit={LOOKUP_TOKENS_MAX},"
            f" got={len(asked.token_ids)})",
        )
    if model.hash_algorithm not in ("", BLAKE3):
        raise not_served(
            f"hash tokens of {asked.model_name[:80]} by {model.hash_algorithm}",
            "look its objects up by keys, or name blake3 in lmcache.models",
        )
    objects = len(asked.token_ids) // model.block_size * asked.world_size
    if objects > LOOKUP_OBJECTS_MAX:
        raise CoordinatorError(
            400,
            f"too many objects in a single request (limit={LOOKUP_OBJECTS_MAX}, got={objects}):"
            " ask for fewer token_ids, or name the keys",
        )
    names = [name.hex() for name in chunk_names(asked.token_ids, model.block_size)]
    size = asked.world_size
    keys = [
        ChunkKey(
            chunk_hash_hex=name,
            model_name=asked.model_name,
            kv_rank=size << 24 | rank << 16 | size << 8 | rank,
            cache_salt=asked.cache_salt,
        )
        for name in names
        for rank in range(size)
    ]
    return keys, len(names)
