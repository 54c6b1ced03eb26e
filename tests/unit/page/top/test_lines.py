"""What `reprise top` shows, from documents as the API answers them."""

from typing import Any

import pytest

from page.fleet import InstanceRow
from page.top.fleet import Fleet
from page.top.lines import (
    Order,
    Tone,
    chosen_of,
    duration,
    head_of,
    rows_of,
    segments_of,
)
from query_api.http.memory_models import MemorySegment
from query_api.http.models import Alive, ConditionDocument

NOW = 10_000.0


def row(name: str, **fields: Any) -> InstanceRow:
    given: dict[str, Any] = {
        "tenant_id": "default",
        "models": ["m"],
        "publishers": 1,
        "state": "exact",
        "reason": "",
        "since": NOW - 90.0,
        "activity": "active",
    }
    return InstanceRow(instance_id=name, **(given | fields))


def segment(used: int, preallocated: int, total: int) -> MemorySegment:
    return MemorySegment(
        host="h",
        segment="kvcached_a",
        state="live",
        total=total,
        used=used,
        preallocated=preallocated,
        pressure=(used + preallocated) / total if total else 0.0,
        instances=[],
        writer="alive",
        age=0.0,
        observed_at=NOW,
        changed_at=NOW,
        since=NOW,
        inode=1,
        bridge="",
    )


def fleet(*rows: InstanceRow, **fields: Any) -> Fleet:
    service = Alive(
        status="alive",
        ready=fields.pop("ready", True),
        role="embedded",
        problem="",
        conditions=fields.pop("conditions", []),
        kernel="rust",
        seed=1337,
        version="1.2.3",
        position="0:7",
    )
    given: dict[str, Any] = {"url": "http://here", "segments": [], "missing": {}} | fields
    return Fleet(at=NOW, service=service, instances=list(rows), **given)


ROWS = [
    row("a", blocks=5, prompt_tokens=100, cached_tokens=50, wait_ms=10.0, lost_batches=0),
    row("b", state="degraded", reason="lost", blocks=7, lost_batches=3, models=["m", "other"]),
    row("c", state="unconfirmed", kv_usage=0.5, requests=4, prompt_tokens=0, cached_tokens=0),
    row("d", blocks=6, prompt_tokens=100, cached_tokens=75, wait_ms=0.5, pressure=0.25),
]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        (Order.NAME, "abcd"),
        (Order.STATE, "bcad"),
        (Order.BLOCKS, "bdac"),
        (Order.HITS, "dabc"),
        (Order.WAIT, "adbc"),
        (Order.REQUESTS, "cabd"),
        (Order.KV, "cabd"),
        (Order.PRESSURE, "dabc"),
        (Order.LOST, "bacd"),
    ],
)
def test_the_worst_or_the_most_comes_first_and_what_is_not_known_last(
    order: Order, names: str
) -> None:
    assert "".join(one.instance_id for one in chosen_of(ROWS, order)) == names


def test_reversed_what_is_not_known_still_comes_last() -> None:
    found = chosen_of(ROWS, Order.BLOCKS, is_reversed=True)
    assert "".join(one.instance_id for one in found) == "adbc"
    found = chosen_of(ROWS, Order.NAME, is_reversed=True)
    assert "".join(one.instance_id for one in found) == "dcba"


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("", "abcd"),
        ("DEGRADED", "b"),
        ("other", "b"),
        ("lost", "b"),
        ("default", "abcd"),
        ("nowhere", ""),
    ],
)
def test_a_filter_looks_at_all_words(wanted: str, names: str) -> None:
    found = chosen_of(ROWS, Order.NAME, wanted=wanted)
    assert "".join(one.instance_id for one in found) == names


def test_each_row_says_what_is_known_and_a_dash_for_the_rest() -> None:
    header, first, second, *_ = rows_of(ROWS, NOW)
    assert header.text.split()[:3] == ["TENANT", "INSTANCE", "STATE"]
    assert first.text.split() == [
        *("default", "a", "exact", "-", "2", "min", "active", "5", "50.0", "%", "-"),
        *("10", "ms", "-", "-", "-", "0"),
    ]
    assert second.text.split()[:4] == ["default", "b", "degraded", "lost"]
    assert (first.tone, second.tone) == (Tone.GOOD, Tone.BAD)


def test_no_name_draws_on_the_terminal() -> None:
    hostile = row("\x1b[2J\nforged\u2028", tenant_id="t\x07")
    lines = [*rows_of([hostile], NOW), *head_of(fleet(hostile, missing={"/gaps": "\x1b[31m"}))]
    assert all(line.text.isprintable() for line in lines)


def test_the_head_says_what_is_wrong_and_what_is_missing() -> None:
    wrong = ConditionDocument(
        part="log", reason="disk", message="no space", since=1.0, level="unavailable"
    )
    lines = head_of(fleet(*ROWS, ready=False, conditions=[wrong], missing={"/gaps": "gone"}))
    assert "4 instances: 2 exact, 1 unconfirmed, 1 degraded" in lines[0].text
    assert [line.text for line in lines[1:]] == [
        "It is not ready: it cannot do its work",
        "log: no space",
        "Not shown, for want of /gaps: gone",
    ]


@pytest.mark.parametrize(
    ("used", "preallocated", "total", "bar", "tone"),
    [
        (0, 0, 32, "-" * 32, Tone.GOOD),
        (8, 4, 32, "########====" + "-" * 20, Tone.GOOD),
        (16, 0, 32, "#" * 16 + "-" * 16, Tone.DOUBT),
        (20, 12, 32, "#" * 20 + "=" * 12, Tone.BAD),
        (64, 64, 32, "#" * 32, Tone.BAD),
        (0, 0, 0, "-" * 32, Tone.GOOD),
    ],
)
def test_a_bar_has_what_is_used_reserved_and_free(
    used: int, preallocated: int, total: int, bar: str, tone: Tone
) -> None:
    _, line = segments_of([segment(used, preallocated, total)])
    assert f"[{bar}]" in line.text
    assert line.tone is tone


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1.0, "0 s"), (59.0, "59 s"), (60.0, "1 min"), (7200.0, "2 h"), (200_000.0, "2 d")],
)
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
