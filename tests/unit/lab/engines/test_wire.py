import json
from pathlib import Path

import msgspec
import pytest

from lab.engines.wire import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineEvent,
    EventEncoder,
    parse_release,
)
from tests.unit.lab.event_batch import EventBatch

VECTORS = Path(__file__).parents[3] / "vectors"
RELEASES = {
    "vllm-0.9.0": "0.9",
    "vllm-0.9.2": "0.9.2",
    "vllm-0.10.2": "0.10.2",
    "vllm-0.17.0": "0.17",
    "vllm-0.20.0": "0.20",
    "vllm-0.24.0": "0.24",
    "vllm-0.26.0": "0.26",
    "vllm-0.33.0": "0.33",
    "vllm-0.33.0-dp3-emptytopic": "0.33",
}
TYPES: dict[str, type[EngineEvent]] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}
# Of vLLM 0.33.0, case 00_stored_root: two root blocks of 16 tokens.
STORED_ROOT = (
    "93cb41d954fc4010000091de0009a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573"
    "92cf27778ea5fcc821eecf9ad59a6622ef1ad1b1706172656e745f626c6f636b5f68617368c0a9746f6b656e"
    "5f696473dc0020cd03e8cd03e9cd03eacd03ebcd03eccd03edcd03eecd03efcd03f0cd03f1cd03f2cd03f3cd"
    "03f4cd03f5cd03f6cd03f7cd03f8cd03f9cd03facd03fbcd03fccd03fdcd03fecd03ffcd0400cd0401cd0402"
    "cd0403cd0404cd0405cd0406cd0407aa626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756da3"
    "475055a96c6f72615f6e616d65c0a967726f75705f6964780000"
)
# Of vLLM 0.33.0, case 08_removed.
REMOVED = (
    "93cb41d954fc421000009184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657392cf"
    "9ad59a6622ef1ad1cf27778ea5fcc821eea66d656469756da3475055a967726f75705f6964780000"
)


def event_from(decoded: object) -> EngineEvent:
    """A captured event, in array or map form, as one of ours."""
    if isinstance(decoded, dict):
        fields = dict(decoded)
        return msgspec.convert(fields, TYPES[fields["type"]])
    assert isinstance(decoded, list)
    event_type = TYPES[decoded[0]]
    names = event_type.__struct_fields__[: len(decoded) - 1]
    fields = dict(zip(names, decoded[1:], strict=True))
    return msgspec.convert({"type": decoded[0], **fields}, event_type)


@pytest.mark.parametrize("capture", RELEASES)
def test_every_captured_payload_is_encoded_to_the_same_bytes(capture: str) -> None:
    encoder = EventEncoder(RELEASES[capture])
    cases = [json.loads(line) for line in (VECTORS / f"{capture}.jsonl").read_text().splitlines()]
    live = [bytes.fromhex(case["frames_hex"][2]) for case in cases if case["kind"] == "live"]
    assert live
    for payload in live:
        timestamp_s, events, *rank = msgspec.msgpack.decode(payload)
        ours = encoder.encode(
            [event_from(event) for event in events],
            timestamp_s=timestamp_s,
            dp_rank=rank[0] if rank else 0,
        )
        assert ours.hex() == payload.hex()


def test_stored_event_of_an_engine_encodes_as_captured() -> None:
    event = BlockStored(
        block_hashes=[2843898533269479918, 11156993415343708881],
        token_ids=range(1000, 1032),
        block_size=16,
        medium="GPU",
        group_idx=0,
    )
    event = msgspec.structs.replace(event, token_ids=list(event.token_ids))
    payload = EventEncoder().encode([event], timestamp_s=1700000000.25, dp_rank=0)
    assert payload.hex() == STORED_ROOT


def test_captured_batch_decodes() -> None:
    batch = msgspec.msgpack.decode(bytes.fromhex(REMOVED), type=EventBatch)
    removed = BlockRemoved(
        block_hashes=[11156993415343708881, 2843898533269479918], medium="GPU", group_idx=0
    )
    assert batch == EventBatch(1700000008.25, [removed], 0)


def test_fields_that_a_release_does_not_know_are_dropped() -> None:
    event = BlockStored(
        block_hashes=[1], token_ids=[5], block_size=1, medium="GPU", kv_cache_spec_kind="mamba"
    )
    payload = EventEncoder("0.9.0").encode([event], timestamp_s=1.0, dp_rank=3)
    assert msgspec.msgpack.decode(payload) == [1.0, [["BlockStored", [1], None, [5], 1, None]]]


@pytest.mark.parametrize("wire", ["", "0", "0.8.5", "0.33.0.1", "v0.33", "0.x"])
def test_releases_without_events_and_nonsense_are_refused(wire: str) -> None:
    with pytest.raises(ValueError, match="Expected a vLLM release"):
        parse_release(wire)


def test_replay_gained_its_topic_in_0_26() -> None:
    assert not parse_release("0.25.9").replay_has_topic
    assert parse_release("0.26").replay_has_topic
