"""The recipes of docs/topics.md, taken out of the page and fed with records of the topics."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

import schemas
from brokers.broker_settings import KafkaSettings
from reprise.logs import declared_logs
from schemas.events import ClearedBlocks
from schemas.identities import Medium
from schemas.records import EventsRecord, UnusableRun, encode_record
from schemas.routing_records import DecisionsRecord, OutcomesRecord, encode_routing
from tests.building import STREAM, events_record, gap_record, removed, reset_record, stored
from tests.routing import RUN, decision, outcome

DOCUMENT = (Path(schemas.__file__).parents[1] / "docs" / "topics.md").read_text()
RECIPES = dict(re.findall(r"^```python (\w+\.py)\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE))
TOKENS = [1, 2, 3, 4]
OTHER = STREAM._replace(instance_id="other")


def recipe(name: str) -> dict[str, Any]:
    """What the program defines; it runs nothing before `main`."""
    defined: dict[str, Any] = {"__name__": name}
    exec(compile(RECIPES[name], f"docs/topics.md: {name}", "exec"), defined)
    return defined


def fed(name: str, *values: bytes) -> dict[str, Any]:
    defined = recipe(name)
    take: Callable[[bytes], None] = defined["take"]
    for value in values:
        take(value)
    return defined


def test_there_are_three_programs() -> None:
    assert sorted(RECIPES) == ["hits.py", "losses.py", "stored.py"]


def counted(*values: bytes) -> Mapping[tuple[str, str], int]:
    found: Mapping[tuple[str, str], int] = fed("stored.py", *values)["counts"]
    return found


def test_a_block_on_gpu_and_cpu_is_counted_once() -> None:
    both = [stored(1, [7], TOKENS), stored(1, [7], [], medium=Medium.CPU)]
    found = counted(
        events_record(1, 1, both),
        events_record(60, 60, [stored(60, [8], TOKENS), stored(60, [7], TOKENS)]),
    )
    assert found == {("m", "00:00"): 1, ("m", "00:01"): 1}


def test_a_block_of_two_publishers_is_two() -> None:
    records = [events_record(1, 1, [stored(1, [7], TOKENS)], stream=one) for one in (STREAM, OTHER)]
    assert counted(*records) == {("m", "00:00"): 2}


def test_a_batch_that_came_twice_is_counted_once() -> None:
    first = events_record(1, 1, [stored(1, [7], TOKENS)])
    gone = events_record(2, 2, [removed(2, [7])])
    assert counted(first, gone, first, gone) == {("m", "00:00"): 1}


def test_a_block_that_was_gone_is_counted_again() -> None:
    again = [stored(9, [7], TOKENS)]
    first = events_record(1, 1, [stored(1, [7], TOKENS)])
    for between, incarnation in (
        (events_record(2, 2, [removed(2, [7])]), 1),
        (events_record(2, 2, [ClearedBlocks(sequence=2)]), 1),
        (events_record(2, 2, [ClearedBlocks(sequence=2, medium=Medium.GPU)]), 1),
        (reset_record(2), 2),
    ):
        last = events_record(9, 9, again, incarnation=incarnation)
        assert counted(first, between, last) == {("m", "00:00"): 2}
    other = events_record(2, 2, [ClearedBlocks(sequence=2, medium=Medium.DISK)])
    assert counted(first, other, events_record(9, 9, again)) == {("m", "00:00"): 1}


def test_what_is_no_record_is_passed_over() -> None:
    for name in RECIPES:
        fed(name, b"", b"\xc1", b"\x81\xa4kind\xa4none")


def rated(*records: DecisionsRecord | OutcomesRecord) -> Mapping[str, float]:
    found: Mapping[str, float] = fed("hits.py", *map(encode_routing, records))["rates"]()
    return found


def test_hit_rates_are_by_tenant() -> None:
    blue = decision(1)
    blue = msgspec.structs.replace(blue, scope=blue.scope._replace(tenant_id="blue"))
    decided = DecisionsRecord(run=RUN, time=0.0, decisions=(decision(0), blue, decision(2)))
    replies = (
        msgspec.structs.replace(outcome(0), cached_tokens=400),
        msgspec.structs.replace(outcome(1), cached_tokens=90, prompt_tokens=100),
        outcome(2, "failed"),
    )
    told = OutcomesRecord(run=RUN, time=0.0, outcomes=replies)
    expected = {"default": 0.5, "blue": 0.9}
    assert rated(decided, told) == expected
    assert rated(told, decided, told, decided) == expected
    assert rated(told) == {}


def test_losses_are_by_instance_and_reason() -> None:
    unusable = (UnusableRun(5, 6, "undecodable", is_whole=True), UnusableRun(7, 7, "unknown_event"))
    whole = msgspec.msgpack.decode(events_record(5, 7, []), type=EventsRecord)
    incomplete = encode_record(msgspec.structs.replace(whole, incomplete=7, unusable=unusable))
    found = fed("losses.py", gap_record(1, 4), incomplete, gap_record(1, 4), incomplete)
    name = (STREAM.tenant_id, STREAM.instance_id)
    assert found["batches_of"] == {
        (*name, "lost", "missed"): 4,
        (*name, "lost", "undecodable"): 2,
        (*name, "incomplete", "unknown_event"): 1,
    }


def test_the_document_names_the_topics_as_they_are_made() -> None:
    settings = KafkaSettings(bootstrap="b:1")
    for spec in (settings.topic(shape) for one in declared_logs() for shape in one.topics):
        (row,) = re.findall(rf"^\| `{re.escape(spec.name)}` \|.*$", DOCUMENT, re.MULTILINE)
        assert f"| {spec.partitions} | {spec.cleanup}" in row
        # The commands that make them by hand say the same.
        for key, value in spec.configs.items():
            assert f"--config {key}={value}" in DOCUMENT
