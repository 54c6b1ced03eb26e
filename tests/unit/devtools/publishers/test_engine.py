"""The harness makes the events of whatever release it runs, and hands them to its publisher."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from devtools.publishers import stubs
from devtools.publishers.engine import Batch, Engine, load

PATH = Path(__file__).with_name("released_publisher.py")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, and afterwards none of what it left out."""
    before = set(sys.modules)
    yield load(PATH)
    for name in set(sys.modules) - before:
        monkeypatch.delitem(sys.modules, name, raising=False)
        sys.modules.pop(name, None)


@pytest.fixture
def engine(module: ModuleType, tmp_path: Path) -> Iterator[Engine]:
    running = Engine(module, dp_rank=3, endpoint=f"ipc://{tmp_path}/live", topic="")
    yield running
    running.close()


def sent(engine: Engine) -> list[Any]:
    return [msgspec.msgpack.decode(one) for one in engine._publisher.sent]


def only(engine: Engine) -> Any:
    """The one event that was sent."""
    [[_, [event], _]] = sent(engine)
    return event


def test_events_have_the_fields_of_the_release(engine: Engine) -> None:
    fields = {"type": "BlockStored", "block_hashes": [1], "token_ids": [2], "block_size": 1}
    engine.publish(Batch(1.5, [{**fields, "lora_name": "unknown to it"}]))
    [batch] = sent(engine)
    assert batch == [
        1.5,
        [fields | {"parent_block_hash": None, "lora_id": None, "medium": None}],
        None,
    ]


def test_a_salt_is_metadata_where_the_release_has_it_so(engine: Engine) -> None:
    stored = {"type": "BlockStored", "block_hashes": [1], "token_ids": [2], "block_size": 1}
    engine.publish(Batch(1.5, [stored | {"cache_salt": "s"}]))
    assert only(engine)["metadata"] == {"cache_salt": "s"}
    assert "cache_salt" in engine.describe().fields["BlockStored"]


def test_hashes_in_hex_are_bytes(engine: Engine) -> None:
    stored = {"type": "BlockStored", "block_hashes": ["0102"], "token_ids": [], "block_size": 1}
    engine.publish(Batch(1.5, [stored]))
    assert only(engine)["block_hashes"] == [b"\x01\x02"]


def test_the_rank_is_given_under_the_name_that_the_release_has_for_it(engine: Engine) -> None:
    assert (engine._publisher.rank, engine._publisher.settings) == (3, {"topic": ""})


def test_what_is_left_out_of_an_engine_says_so(module: ModuleType) -> None:
    assert module.__name__ in sys.modules
    with pytest.raises(NotImplementedError, match="not here"):
        stubs._left_out()
