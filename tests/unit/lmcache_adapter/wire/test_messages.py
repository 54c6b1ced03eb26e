"""LMCache's messages: those that its own code has sent, and anything else."""

import json
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from lmcache_adapter.bounds import LMCACHE_OPERATIONS_MAX
from lmcache_adapter.wire.messages import (
    NOT_FOUND,
    Error,
    FullSyncCommand,
    FullSyncStartRet,
    FullSyncStatusRet,
    Heartbeat,
    HeartbeatRet,
    MessageError,
    Register,
    RegisterRet,
    Reply,
    decode,
    encode,
    key_of,
)

VECTORS = Path(__file__).parents[3] / "vectors" / "lmcache" / "messages-0.5.6.jsonl"
SENT = {
    "register", "deregister", "heartbeat", "kv_admit", "kv_evict", "batched_kv_ops",
    "full_sync_start", "full_sync_batch", "full_sync_end", "full_sync_status", "p2p_lookup",
}  # fmt: skip
"""What a worker sends to its controller."""


CAPTURED = [
    (one["case"], bytes.fromhex(one["payload_hex"]), one["decoded"])
    for one in map(json.loads, VECTORS.read_text().splitlines())
]


@pytest.mark.parametrize(("case", "payload", "decoded"), CAPTURED)
def test_what_a_worker_sends_is_read_as_it_meant_it(
    case: str, payload: bytes, decoded: dict[str, Any]
) -> None:
    if case not in SENT:
        with pytest.raises(MessageError):
            decode(payload)
        return
    found = msgspec.to_builtins(decode(payload))
    assert {name: found.get(name) for name in found} == {name: decoded.get(name) for name in found}
    assert decode(json.dumps(decoded).encode()) == decode(payload), "the same in JSON"


REPLIES: dict[str, Reply] = {
    "register_ret": RegisterRet(extra_config={"heartbeat_url": "10.0.0.9:8082"}),
    "heartbeat_ret_empty": HeartbeatRet(),
    "heartbeat_ret_fullsync": HeartbeatRet(commands=[FullSyncCommand(reason="controller_restart")]),
    "full_sync_start_ret": FullSyncStartRet(sync_id="sync-1", accepted=True),
    "full_sync_status_ret": FullSyncStatusRet(
        sync_id="sync-1",
        is_complete=False,
        global_progress=0.5,
        can_exit_freeze=False,
        missing_batches=[1],
    ),
    "error": Error(error="boom"),
}


@pytest.mark.parametrize("case", REPLIES)
def test_what_is_answered_is_the_controllers_answer(case: str) -> None:
    (payload,) = (payload for name, payload, _ in CAPTURED if name == case)
    assert msgpack.unpackb(encode(REPLIES[case])) == msgpack.unpackb(payload)


def test_a_miss_is_one_empty_place() -> None:
    assert msgpack.unpackb(encode(NOT_FOUND)) == {
        "type": "BatchedP2PLookupRetMsg",
        "layout_info": [["", "", 0, ""]],
    }


def test_fields_that_are_not_known_are_ignored() -> None:
    fields = {"instance_id": "a", "worker_id": 0, "ip": "h", "port": 1, "later": {"x": [1]}}
    found = decode(msgpack.packb({"type": "HeartbeatMsg"} | fields))
    assert found == Heartbeat(instance_id="a", worker_id=0, ip="h", port=1)
    assert isinstance(found, Register)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"\xc1",
        b"{}",
        msgpack.packb([1]),
        msgpack.packb({"type": "ClearMsg"}),
        msgpack.packb({"type": "HeartbeatMsg"}),
        msgpack.packb({"type": "DeRegisterMsg", "instance_id": "", "worker_id": 0}),
        msgpack.packb({"type": "DeRegisterMsg", "instance_id": "a" * 100_000, "worker_id": 0}),
        msgpack.packb({"type": "DeRegisterMsg", "instance_id": "a", "worker_id": -1}),
        msgpack.packb({"type": "DeRegisterMsg", "instance_id": "a", "worker_id": 2**40}),
        msgpack.packb(
            {"type": "BatchedP2PLookupMsg", "instance_id": "a", "worker_id": 0}
            | {"hashes": [1] * (LMCACHE_OPERATIONS_MAX + 1)}
        ),
        b'{"type":"DeRegisterMsg","instance_id":"\xff","worker_id":0}',
    ],
)
def test_what_is_no_message_is_refused_in_words(payload: bytes) -> None:
    with pytest.raises(MessageError) as raised:
        decode(payload)
    assert raised.value.reason == "malformed"
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    ("number", "expected"), [(0, 0), (-1, 2**64 - 1), (2**63, 2**63), (-(2**63), 2**63)]
)
def test_a_key_is_its_64_bits(number: int, expected: int) -> None:
    assert key_of(number) == expected
