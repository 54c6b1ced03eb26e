"""What the rows of LMCache count."""

import json
from pathlib import Path

import msgspec

from devtools.publishers import lmcache

WORKER = {"instance_id": "i", "worker_id": 0, "location": "LocalCPUBackend"}


def write(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def message(**fields: object) -> dict[str, object]:
    return {"payload_hex": msgspec.msgpack.encode(fields).hex()}


def operation(op_type: str, key: int) -> dict[str, object]:
    return {"op_type": op_type, "key": key, "seq_num": key}


def test_operations_and_full_syncs_are_counted(tmp_path: Path) -> None:
    operations = [operation("admit", 1), operation("evict", 2), operation("admit", 3)]
    sync = {"sync_id": "s", "batch_id": 0, "keys": [1, 2, 3, 4]}
    lines = [
        message(type="BatchedKVOperationMsg", operations=operations, **WORKER),
        message(type="FullSyncBatchMsg", **sync, **WORKER),
        message(type="LookupRetMsg", event_id="e", layout_info={}),  # no worker's
        message(type="HeartbeatMsg", instance_id="i"),
    ]
    tried = lmcache.try_captured(write(tmp_path / "messages-1.0.jsonl", lines))
    assert (tried.kind, tried.version) == ("LMCache", "1.0")
    assert (tried.live, tried.replayed, tried.stored, tried.removed) == (1, 1, 3, 1)
    assert (tried.blocks, tried.unused) == (6, 1)


def test_batches_of_the_topic_are_counted(tmp_path: Path) -> None:
    entry = {"key": {"chunk_hash_hex": "aa" * 16, "model_name": "m"}}
    batch = {"instance_id": "i", "incarnation": 1, "tier": "l1", "entries": [entry]}
    kinds = ("store", "delete", "access", "renamed")
    batches = [batch | {"seq": seq, "event_type": kind} for seq, kind in enumerate(kinds, 1)]
    lines: list[dict[str, object]] = [{"kafka_value": {"batches": batches}}]
    tried = lmcache.try_captured(write(tmp_path / "topic-1.0.jsonl", lines))
    assert (tried.kind, tried.live, tried.stored, tried.removed) == ("LMCache-MP", 4, 1, 1)
    assert (tried.blocks, tried.passed_over, tried.unused) == (1, 1, 1)
