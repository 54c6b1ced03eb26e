"""`docs/offline.md` has the columns, and queries that run."""

import re
from pathlib import Path
from typing import Any

import pytest

import schemas
from lab.exports.columns import COLUMNS
from lab.miss_ratio.accesses import use_capture
from lab.miss_ratio.miss_ratio import MissRatios
from lab.miss_ratio.regret import Regrets
from replay.as_records import CaptureRecords
from replay.block_events import BlockEvents
from replay.capture.reader import Capture
from replay.chains import Chains
from tests.building import BLOCK, STREAM, events_record, removed, stored
from tests.unit.lab.exports.test_parquet import exported
from tests.unit.replay.test_block_events import capture_of

DOCUMENT = (Path(schemas.__file__).parents[1] / "docs" / "offline.md").read_text()
QUERIES = re.findall(r"```sql\n(.*?)```", DOCUMENT, re.DOTALL)
B = STREAM._replace(instance_id="b")


def test_every_column_is_documented_with_its_type_and_meaning() -> None:
    lines = [f"| `{one.name}` | {one.type} | {one.meaning} |" for one in COLUMNS]
    start = DOCUMENT.index("| column | type | meaning |\n|---|---|---|\n")
    table = DOCUMENT[start:].split("\n\n")[0].splitlines()[2:]
    assert table == lines


def records() -> list[bytes]:
    """Times are a record's number: engine a evicts, and stores some of it again."""
    tokens = list(range(3 * BLOCK))
    return [
        events_record(1, 1, [stored(1, [1, 2, 3], tokens)]),
        events_record(1, 1, [stored(1, [8, 9], tokens[: 2 * BLOCK])], stream=B),
        events_record(2, 2, [removed(2, [1, 2, 3])]),
        events_record(50, 50, [stored(50, [1], tokens[:BLOCK])]),
        events_record(90, 90, [stored(90, [2], tokens[BLOCK : 2 * BLOCK], parent=1)]),
    ]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return capture_of(tmp_path / "a.capture", records())


@pytest.fixture
def answers(capture: Path, tmp_path: Path) -> list[list[tuple[Any, ...]]]:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    path = exported(capture, tmp_path / "hour.parquet")
    assert len(QUERIES) == 3
    assert all("'hour.parquet'" in query for query in QUERIES)
    with duckdb.connect() as connection:
        return [
            connection.sql(query.replace("hour.parquet", str(path))).fetchall() for query in QUERIES
        ]


def test_the_queries_answer_what_they_are_said_to(answers: list[list[tuple[Any, ...]]]) -> None:
    by_engine, regret, again = answers
    assert by_engine == [("a", "GPU", 5, 3, 3), ("b", "GPU", 2, 0, 2)]
    assert regret == [("a", "GPU", 3, 1)]
    assert again == [("default", "m", 3, 2 * BLOCK)]


def test_regret_is_the_same_by_query_and_by_command(
    capture: Path, answers: list[list[tuple[Any, ...]]]
) -> None:
    regrets = Regrets("f", [60.0])
    with Capture(capture) as opened:
        steps = BlockEvents(CaptureRecords(opened))
        use_capture(MissRatios(), regrets, "f", steps, Chains(1337))
    [found] = regrets.results()
    assert answers[1] == [("a", "GPU", found.removed, found.within[0].stored_again)]
