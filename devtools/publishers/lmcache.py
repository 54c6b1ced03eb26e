"""LMCache as it was tried: what its workers send to their controller, and what its servers tell.

Both have sockets or a consumer of their own (`lmcache_adapter`); neither has batches of an engine.
"""

import json
from pathlib import Path
from typing import Final, get_args

import msgspec

from devtools.publishers.trial_row import TrialRow
from lmcache_adapter.topic import batches
from lmcache_adapter.wire.messages import (
    BatchedKVOperation,
    FullSyncBatch,
    KVAdmit,
    KVEvict,
    Message,
    MessageError,
    decode,
)
from schemas.registration import LMCACHE, LMCACHE_TOPIC

FILES: Final = Path(__file__).parents[2] / "tests" / "vectors" / "lmcache"
_ADMIT: Final = "admit"
_TOLD: Final = ("/events", 200)
"""Path and status of what servers tell the coordinator."""

_TYPES: Final = frozenset(message.__struct_config__.tag for message in get_args(Message))
"""What workers send; whatever else was captured is an answer, or is sent by others."""


def captured_files() -> list[Path]:
    """Of each version its messages, its topic and what its coordinator was asked."""
    return sorted(FILES.glob("*-*.jsonl"))


def try_captured(path: Path) -> TrialRow:
    """Decodes `FORM-VERSION.jsonl`: messages, topic or coordinator."""
    form, _, version = path.stem.partition("-")
    captured = [json.loads(line) for line in path.read_text().splitlines()]
    if form == "messages":
        return _messages(version, [bytes.fromhex(one["payload_hex"]) for one in captured])
    if form == "topic":
        values = [one["kafka_value"] for one in captured]
        return _servers(version, values, "JSON, of Kafka", "the topic")
    bodies = [one["body"] for one in captured if (one["path"], one["status"]) == _TOLD]
    return _servers(version, bodies, "JSON, by HTTP", "our directory")


def _messages(version: str, payloads: list[bytes]) -> TrialRow:
    sent = [one for one in payloads if msgspec.msgpack.decode(one)["type"] in _TYPES]
    messages = [message for payload in sent if (message := _read(payload)) is not None]
    kept = [len(message.keys) for message in messages if isinstance(message, FullSyncBatch)]
    admitted = sum(_admitted(message) for message in messages)
    return TrialRow(
        kind=LMCACHE,
        version=version,
        code=False,
        form=f"map, up to {max(len(msgspec.msgpack.decode(one)) - 1 for one in sent)} fields",
        replies="full sync",
        live=len(messages) - len(kept),
        replayed=len(kept),
        stored=admitted + len(kept),
        removed=sum(_evicted(message) for message in messages),
        cleared=0,
        blocks=admitted + sum(kept),
        passed_over=0,
        unused=len(sent) - len(messages),
    )


def _read(payload: bytes) -> Message | None:
    try:
        return decode(payload)
    except MessageError:
        return None


def _admitted(message: Message) -> int:
    if isinstance(message, BatchedKVOperation):
        return sum(one.op_type == _ADMIT for one in message.operations)
    return int(isinstance(message, KVAdmit))


def _evicted(message: Message) -> int:
    if isinstance(message, BatchedKVOperation):
        return sum(one.op_type != _ADMIT for one in message.operations)
    return int(isinstance(message, KVEvict))


def _servers(version: str, values: list[object], form: str, replies: str) -> TrialRow:
    read = [batch for value in values for batch in batches.decode(json.dumps(value).encode())]
    good = [batch for batch in read if isinstance(batch, batches.Batch)]
    stores = [batch for batch in good if batch.event_type == "store"]
    removed = sum(batch.event_type == "delete" for batch in good)
    return TrialRow(
        kind=LMCACHE_TOPIC,
        version=version,
        code=False,
        form=form,
        replies=replies,
        live=len(read),
        replayed=0,
        stored=len(stores),
        removed=removed,
        cleared=0,
        blocks=sum(len(batch.entries) for batch in stores),
        passed_over=len(good) - len(stores) - removed,
        unused=len(read) - len(good),
    )
