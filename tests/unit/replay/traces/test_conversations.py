"""Conversations of coding agents: what is read of a file, and what of a wrong one is said."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from replay.traces.conversations import (
    CONVERSATION_BYTES_MAX,
    ConversationError,
    conversation_files,
    read_conversation,
)


def request(t: float, ids: list[int], **fields: object) -> dict[str, object]:
    """As kv-cache-tester writes one, with fields that are not read."""
    length = 64 * len(ids) + 7
    return {
        **{"t": t, "type": "n", "model": "claude-opus-4-5-20251101", "in": length, "out": 20},
        **{"hash_ids": ids, "input_types": ["text"], "output_types": ["text"], "stop": ""},
        **{"api_time": 2.5, "think_time": 1.0},
        **fields,
    }


def conversation(*requests: dict[str, object], **fields: object) -> dict[str, object]:
    return {
        **{"id": "trace_0001", "models": ["claude-opus-4-5-20251101"], "block_size": 64},
        **{"hash_id_scope": "local", "tool_tokens": 130, "system_tokens": 70},
        "requests": list(requests),
        "totals": {"subagent_count": 0},
        **fields,
    }


def sub_agent(t: float, *requests: dict[str, object]) -> dict[str, object]:
    return {"t": t, "type": "subagent", "agent_id": "agent_001", "requests": list(requests)}


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace_0001.json"


def test_requests_and_those_of_sub_agents_are_read_in_the_order_of_time(path: Path) -> None:
    found = read_conversation(
        write(
            path,
            conversation(
                request(0.0, [1, 2]),
                sub_agent(10.0, request(0.0, [7]), request(25.0, [7, 8], type="s")),
                request(30.0, [1, 2, 3], type="s", ttft=0.4),
            ),
        )
    )
    assert (found.name, found.block_size, found.shared_tokens, found.agents) == (
        *("trace_0001", 64, 200, 1),
    )
    assert found.turns == [
        (0.0, 135, 20, [1, 2], 0),
        (10.0, 71, 20, [7], 1),
        (30.0, 199, 20, [1, 2, 3], 0),
        (35.0, 135, 20, [7, 8], 1),
    ]


def test_gzip_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps(conversation(request(0, [1]))).encode()))
    assert len(read_conversation(path).turns) == 1
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ConversationError, match=r"a\.json\.gz: cannot be read as gzip"):
        read_conversation(path)


GOOD = request(0.0, [1])
MISSING = {name: value for name, value in GOOD.items() if name != "hash_ids"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (conversation(GOOD, MISSING), r"requests\[1\]: expected a request .*field `hash_ids`"),
        (
            conversation(GOOD, sub_agent(1.0, GOOD, {**GOOD, "in": -1})),
            r"requests\[1\]\.requests\[1\]: expected a request .*`int` >= 0.*\$\.in",
        ),
        (conversation({**GOOD, "type": "x"}), r"requests\[0\]: expected .*Invalid value 'x'"),
        (conversation({**GOOD, "t": "now"}), r"requests\[0\]: expected .*got `str`.*\$\.t"),
        (conversation(GOOD, sub_agent(1.0, sub_agent(2.0))), r"requests\[1\]\.requests\[0\]: "),
        (conversation(hash_id_scope="global"), r"expected a conversation .*'global'"),
        (conversation(block_size=0), r"expected a conversation .*\$\.block_size"),
        ({"requests": []}, r"expected a conversation .*required field `id`"),
        ("{", r"expected a conversation .*truncated"),
        ("version https://git-lfs.github.com/spec/v1\n", r"a pointer of Git LFS: `git lfs pull`"),
        (
            '{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}\n{}',
            r"this is a trace already: `reprise simulate` and `reprise miss-ratio` read it",
        ),
    ],
)
def test_a_wrong_file_says_what_was_expected_what_came_and_where(
    path: Path, content: Any, said: str
) -> None:
    with pytest.raises(ConversationError, match=rf"trace_0001\.json: .*{said}"):
        read_conversation(write(path, content))


def test_a_file_that_has_no_end_is_refused(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(CONVERSATION_BYTES_MAX + 1)
    with pytest.raises(ConversationError, match=r"at most 268,435,456 bytes, got more"):
        read_conversation(path)


def test_a_folder_stands_for_its_json_files(tmp_path: Path) -> None:
    for name in ("b.json", "a.json.gz", "README.md"):
        (tmp_path / name).touch()
    other = tmp_path / "README.md"
    assert list(conversation_files([tmp_path, other])) == [
        *(tmp_path / "a.json.gz", tmp_path / "b.json", other)
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConversationError, match=r"empty: expected a folder of conversations"):
        list(conversation_files([tmp_path / "empty"]))
