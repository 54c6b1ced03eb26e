"""What a row of the table counts."""

import msgspec
import pytest

from devtools.publishers.sample_events import batches, removed, stored
from devtools.publishers.trial_row import Frames, ReplayDiffersError, TrialRow, try_messages
from schemas.registration import PublisherKind

VLLM = PublisherKind("vLLM")
END = [b"", b"", b"\xff" * 8, b""]


def message(sequence: int, *events: object, rank: int = 0) -> Frames:
    payload = msgspec.msgpack.encode([1.5, events, rank])
    return [b"topic", sequence.to_bytes(8, "big"), payload]


def reply(of: Frames) -> Frames:
    return [b"", *of]


def tried(live: list[Frames], replies: list[Frames]) -> TrialRow:
    return try_messages(VLLM, "1.0", code=True, live=live, replies=replies)


def test_messages_events_and_blocks_are_counted() -> None:
    live = [message(0, stored([1, 2, 3])), message(1, removed([2]), {"type": "AllBlocksCleared"})]
    found = tried(live, [reply(live[1]), END])
    assert (found.live, found.replayed) == (2, 1)
    assert (found.stored, found.removed, found.cleared, found.blocks) == (1, 1, 1, 3)
    assert (found.form, found.replies) == ("map, up to 5 fields", "topic, sequence, payload")
    assert found.unused == 0


def test_what_cannot_be_used_is_counted_live_and_replayed_the_same() -> None:
    live = [message(0, stored([1]), {"type": "BlockPinned"}), [b"", bytes(8), b"\xc1"]]
    assert tried(live, []).unused == 2


def test_each_rank_has_a_decoder_of_its_own() -> None:
    live = [message(0, stored([1]), rank=3), message(0, stored([1]), rank=2)]
    assert (tried(live, []).stored, tried(live, []).unused) == (2, 0)


def test_replies_without_a_topic_are_told_from_those_with_one() -> None:
    live = message(0, ["BlockRemoved", [1]])
    found = tried([live], [[b"", *live[1:]], [b"", b"\xff" * 8, b""]])
    assert (found.replies, found.replayed) == ("sequence, payload", 1)
    assert found.form == "array, up to 1 fields"


def test_a_batch_that_is_replayed_as_another_one_is_no_row() -> None:
    live = message(0, stored([1]))
    with pytest.raises(ReplayDiffersError, match=r"vLLM 1\.0: batch 0"):
        tried([live], [reply(message(0, stored([2]))), END])


def test_a_release_says_all_that_its_fields_can_say() -> None:
    first = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"]
    oldest = batches({"BlockStored": first})
    newer = batches({"BlockStored": [*first, "medium", "lora_name", "extra_keys", "group_idx"]})
    assert len(oldest) < len(newer)
    said = {name for batch in newer for event in batch for name in event}
    assert {"medium", "lora_name", "extra_keys", "group_idx"} <= said
    assert not {"locality", "cache_salt"} & said
