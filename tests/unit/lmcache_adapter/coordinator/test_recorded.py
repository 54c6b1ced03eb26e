"""What LMCache's own coordinator was asked by its own servers, and by hand, and what it answered;
ours is asked the same. `devtools/lmcache/coordinator_process.py` has written it down.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.lmcache_adapter.coordinator.scene import Coordinator, run

RECORDED = sorted((Path(__file__).parents[3] / "vectors" / "lmcache").glob("coordinator-*.jsonl"))

UNKNOWN = {"token_ids", "num_tokens", "access_count", "blend"}
"""Contents of chunks are not kept, and accesses not counted."""

OWN = {"registration_time"}
"""What each run has of its own."""


def comparable(answer: Any) -> Any:
    """What must be the same: of lists without an order, sorted; of refusals, that they are."""
    if isinstance(answer, dict):
        if "detail" in answer:
            return {"detail"}
        shown = {
            name: comparable(value) for name, value in answer.items() if name not in UNKNOWN | OWN
        }
        for unordered in shown.keys() & {"keys", "placements"}:
            shown[unordered].sort(key=str)
        if counted := shown.get("l1_keys_by_instance"):  # LMCache's has those that hold nothing
            shown["l1_keys_by_instance"] = {one: n for one, n in counted.items() if n}
        return shown
    return [comparable(one) for one in answer] if isinstance(answer, list) else answer


def test_there_are_vectors() -> None:
    assert RECORDED


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_it_answers_as_lmcaches_own(path: Path, tmp_path: Path) -> None:
    exchanges = [json.loads(line) for line in path.read_text().splitlines()]
    assert {one["path"].split("/")[1].split("?")[0] for one in exchanges} >= {
        *("instances", "events", "directory", "quota", "cache", "config", "healthz")
    }

    async def replay() -> None:
        async with Coordinator(tmp_path) as coordinator:
            for number, one in enumerate(exchanges):
                status, answer = await coordinator.ask(one["method"], one["path"], one["body"])
                said = f"{number}: {one['method']} {one['path']} {str(one['body'])[:500]}"
                assert status == one["status"], f"{said}: {answer}"
                if "limit=" in one["path"] and status == 200:  # a page, of another order
                    assert answer["total"] == one["answer"]["total"], said
                    assert len(answer["keys"]) == len(one["answer"]["keys"]), said
                    continue
                assert comparable(answer) == comparable(one["answer"]), said

    run(replay())
