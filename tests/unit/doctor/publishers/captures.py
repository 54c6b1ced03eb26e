"""Captures of frames, as `reprise capture --from-zmq` writes them."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from doctor.publishers.check import Given, check_capture
from doctor.publishers.document import PublisherCheck
from replay.capture.format import (
    CapturedPublisher,
    CaptureEntry,
    CaptureKind,
    Header,
    encode_frames,
)
from replay.capture.reader import Capture
from replay.capture.writer import CaptureWriter
from tests.unit.bridge.messages import ENDPOINT

NOTHING = Given()


def write_frames(path: Path, *publishers: Iterable[Sequence[bytes]]) -> Path:
    """A capture of each publisher's messages."""
    publisher = CapturedPublisher(endpoint=ENDPOINT, replay_endpoint="", registration=None)
    header = Header(
        kind=CaptureKind.FRAMES,
        created_at=1.0,
        created_by="test",
        source="test",
        publishers=(publisher,) * len(publishers),
    )
    with CaptureWriter(path, header) as writer:
        for lane, messages in enumerate(publishers):
            for number, frames in enumerate(messages):
                value = encode_frames(list(frames))
                writer.add(CaptureEntry(lane, number, 1.0 + number, value, 0))
    return path


def checked(
    path: Path, messages: Iterable[Sequence[bytes]], given: Given = NOTHING
) -> PublisherCheck:
    """What a check says of them."""
    with Capture(write_frames(path, messages)) as capture:
        [one] = check_capture(capture, given).publishers
    return one


def batches(*events: object, first: int = 0) -> list[list[bytes]]:
    """A message for each event, as vLLM frames them, numbered from `first` on."""
    return [
        [b"", number.to_bytes(8, "big"), msgspec.msgpack.encode([1.0 + number, [event], 0])]
        for number, event in enumerate(events, first)
    ]


def stored(
    hashes: Sequence[int | str],
    tokens: Sequence[int],
    parent: int | str | None = None,
    **more: object,
) -> dict[str, object]:
    """A store of vLLM's."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": len(tokens) // max(len(hashes), 1),
        "lora_id": None,
        "medium": "GPU",
    } | more


def removed(hashes: Sequence[int], **more: object) -> dict[str, object]:
    """A removal of vLLM's."""
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"} | more


CLEARED = {"type": "AllBlocksCleared"}


def borealis() -> list[list[bytes]]:
    """What an engine sends that no kind knows: JSON, pages of 32 tokens, hashes as text."""
    messages = []
    before = None
    for number in range(6):
        tokens = list(range(32 * number, 32 * number + 32))
        page = hashlib.sha256(f"{before}{tokens}".encode()).hexdigest()
        event = {"kind": "cached", "pages": [page], "follows": before, "ids": tokens}
        items = [event | {"page_len": 32, "where": "hbm", "pinned": False}]
        before = page
        payload = json.dumps({"at": 1.5 + number, "items": items}).encode()
        messages.append([b"borealis", number.to_bytes(8, "big"), payload])
    gone = {"at": 9.5, "items": [{"kind": "evicted", "pages": [before], "where": "hbm"}]}
    messages.append([b"borealis", (6).to_bytes(8, "big"), json.dumps(gone).encode()])
    return messages
