"""The script of docs/offline.md that makes a trace of request logs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import schemas
from replay.traces.reader import read_trace

DOCUMENT = (Path(schemas.__file__).parents[1] / "docs" / "offline.md").read_text()
SECTION = DOCUMENT[DOCUMENT.index("### A trace from your own request logs") :]


def test_the_script_makes_a_trace_in_which_equal_prefixes_have_equal_ids(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", SECTION, re.DOTALL)
    assert found is not None
    head = list(range(512))
    prompts = [(10.5, [*head, *range(700)]), (10.0, [*head, *range(512), 7]), (12.0, [5, *head])]
    log = "".join(
        json.dumps({"time": time, "token_ids": tokens, "output_tokens": 3}) + "\n"
        for time, tokens in prompts
    )
    script = [sys.executable, "-c", found[1]]
    made = subprocess.run(script, input=log, capture_output=True, text=True, check=True)
    path = tmp_path / "trace.jsonl"
    path.write_text(made.stdout)
    trace = read_trace(path)
    assert trace.notes == []
    assert [one.timestamp for one in trace.requests] == [0, 500, 2000]
    first, second, third = (one.hash_ids for one in trace.requests)
    assert first[:2] == second[:2], "also where the last block differs"
    assert first[2] != second[2]
    assert not set(third) & {*first, *second}, "the same tokens behind another one"
