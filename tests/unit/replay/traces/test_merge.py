"""One trace of many conversations."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from replay.traces import merge as module
from replay.traces.conversations import Conversation, ConversationError, Turn
from replay.traces.merge import ConversationMerge


def conversation(
    name: str, *turns: tuple[float, list[int]], shared_tokens: int = 0
) -> Conversation:
    return Conversation(
        *(name, 64, shared_tokens, 0, [Turn(at, 64 * len(ids), 5, ids, 0) for at, ids in turns])
    )


def merged(*conversations: Conversation, **options: Any) -> list[dict[str, Any]]:
    merge = ConversationMerge(io.BytesIO(), Path("x"), **{"every_s": 10.0} | options)
    for one in conversations:
        merge.take(one, f"{one.name}.json")
    lines = io.BytesIO()
    merge.write(lines.write)
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_conversations_begin_one_after_the_other_and_share_no_block() -> None:
    lines = merged(
        conversation("a", (0.0, [1, 2]), (15.0, [1, 2, 3])),
        conversation("b", (0.5, [1, 9]), (2.0, [1, 9])),
    )
    assert lines == [
        {"timestamp": at, "input_length": length, "output_length": 5, "hash_ids": ids}
        | {"session_id": session}
        for at, length, ids, session in (
            (0.0, 128, [0, 1], "a"),
            (10_500.0, 128, [3, 4], "b"),
            (12_000.0, 128, [3, 4], "b"),
            (15_000.0, 192, [0, 1, 2], "a"),
        )
    ]


def test_a_part_of_the_tools_and_the_system_prompt_is_the_same_in_all() -> None:
    turns = (0.0, [1, 2, 3, 4]), (1.0, [1, 2, 3, 5])
    first, second = (conversation(name, *turns, shared_tokens=256) for name in "ab")
    short = conversation("c", (0.0, [8]), shared_tokens=256)
    ids = [line["hash_ids"] for line in merged(first, second, short, shared=0.75)]
    assert [chain[:3] for chain in ids] == [[0, 1, 2]] * 4 + [[0]]
    assert len({chain[-1] for chain in ids[:4]}) == 4
    assert min(chain[3] for chain in ids[:4]) >= 1_048_576


def test_ids_of_larger_blocks_stand_for_whole_ones() -> None:
    lines = merged(
        conversation("a", (0.0, [1, 2, 3, 4, 5]), (1.0, [1, 2, 3, 9]), (2.0, [1])), block_size=128
    )
    assert [line["hash_ids"] for line in lines] == [[0, 1], [0, 2], []]


def test_conversations_of_one_name_are_two_sessions() -> None:
    lines = merged(conversation("a", (0.0, [1])), conversation("a", (0.0, [1])))
    assert [line["session_id"] for line in lines] == ["a", "a#2"]


def test_what_does_not_go_with_the_others_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = ConversationMerge(io.BytesIO(), Path("x"), every_s=1.0)
    merge.take(conversation("a", (0.0, [1])), "a.json")
    with pytest.raises(ConversationError, match=r"^b\.json: expected a block_size that divides"):
        merge.take(conversation("b", (0.0, [1]))._replace(block_size=48), "b.json")
    monkeypatch.setattr(module, "TRACE_REQUESTS_MAX", 2)
    with pytest.raises(ConversationError, match=r"^b\.json: expected at most 2 requests of all"):
        merge.take(conversation("b", (0.0, [1]), (1.0, [1])), "b.json")
    assert (merge.requests, merge.conversation_requests().count, merge.block_size) == (1, 1, 64)
