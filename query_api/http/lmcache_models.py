"""LMCache's documents, as its own controller has them (lmcache 0.5.6, `lmcache/v1/api_server` and
`internal_api_server/controller`).
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from schemas.arrays import Token
from schemas.limits import QUERY_TOKENS_MAX


class LookupRequest(msgspec.Struct):
    """A prompt. Its chunks are hashed as LMCache's workers do it, where that is known."""

    tokens: Annotated[list[Token], Meta(max_length=QUERY_TOKENS_MAX)]


class LookupResponse(msgspec.Struct):
    """Of each instance that has a prefix of the prompt: where its last chunk is, and how many
    tokens the prefix has.
    """

    event_id: str
    layout_info: dict[str, tuple[str, int]]


class Worker(msgspec.Struct):
    """One LMCache worker. Times are Unix seconds."""

    instance_id: str
    worker_id: int
    ip: str
    port: int
    peer_init_url: str | None
    registration_time: float
    last_heartbeat_time: float
    key_count: int


class WorkerList(msgspec.Struct):
    """LMCache workers."""

    workers: list[Worker]
    total_count: int


class InstanceKeys(msgspec.Struct):
    """The chunks of one LMCache instance."""

    instance_id: str
    key_count: int
    worker_count: int


class KeyStats(msgspec.Struct):
    """The chunks of all LMCache instances."""

    total_key_count: int
    total_instance_count: int
    total_worker_count: int
    instances: list[InstanceKeys]


MODELS = (LookupRequest, LookupResponse, Worker, WorkerList, InstanceKeys, KeyStats)
