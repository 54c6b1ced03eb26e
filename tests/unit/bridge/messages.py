"""Messages as engines send them, and the captured ones."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bridge.wire import KINDS
from schemas.registration import PublisherKind, Registration

VECTORS = Path(__file__).parents[2] / "vectors"

ENDPOINT = "tcp://127.0.0.1:5557"

VLLM = PublisherKind("vLLM")


class Captured(NamedTuple):
    """One live message of a released publisher, and what it meant."""

    name: str
    kind: PublisherKind
    frames: list[bytes]
    decoded: Any

    @property
    def rank(self) -> int:
        """That the batch names, where it is one of `[ts, events, rank]`; else 0."""
        if not isinstance(self.decoded, list) or len(self.decoded) < 3:
            return 0
        rank = self.decoded[2]
        return rank if isinstance(rank, int) else 0


def captured_messages() -> Iterator[Captured]:
    """Those of all `<kind>-<version>.jsonl`, the kind in small letters; a file of no kind fails."""
    for path in sorted(VECTORS.glob("*.jsonl")):
        kinds = [kind for kind in KINDS if path.name.startswith(f"{kind.lower()}-")]
        assert kinds, f"{path}: expected a name that begins with one of {KINDS}"
        for line in path.read_text().splitlines():
            vector = json.loads(line)
            if vector["kind"] == "live":
                frames = [bytes.fromhex(frame) for frame in vector["frames_hex"]]
                name = f"{path.stem}/{vector['case']}"
                yield Captured(name, max(kinds, key=len), frames, vector["decoded"])


def registration(
    *,
    kind: PublisherKind = VLLM,
    dp_rank: int = 0,
    lora_name: str = "",
    instance_id: str = "w-1",
    endpoint: str = ENDPOINT,
) -> Registration:
    return Registration(
        endpoint=endpoint,
        kind=kind,
        model_name="m",
        instance_id=instance_id,
        block_size=4,
        dp_rank=dp_rank,
        lora_name=lora_name,
    )


def frames_of(batch: object, sequence: int = 0) -> list[bytes]:
    return [b"topic", sequence.to_bytes(8, "big"), msgspec.msgpack.encode(batch)]


def map_event(tag: str, **fields: object) -> Mapping[str, object]:
    return {"type": tag, **fields}
