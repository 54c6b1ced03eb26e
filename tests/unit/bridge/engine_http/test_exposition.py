"""Series out of an exposition: all that were asked for, whatever stands around them."""

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bridge.engine_http.bounds import LOAD_LINES_MAX
from bridge.engine_http.exposition import (
    LOAD_HEAD_BYTES_MAX,
    LOAD_LINE_BYTES_MAX,
    Series,
    read_series,
)
from bridge.engine_http.load_answers import LOAD_METRICS_BYTES

A, B = b"engine:a", b"engine:b"


def read(text: bytes, *names: bytes) -> tuple[list[Series], dict[str, int]]:
    dropped: Counter[str] = Counter()
    return read_series(text, names or (A, B), dropped), dict(dropped)


def test_only_the_lines_of_the_names_are_read() -> None:
    text = (
        b"# HELP engine:a engine:a 7\n# TYPE engine:a gauge\n"
        b'engine:a{engine="0",model_name="m"} 3.0\n'
        b'engine:a_by_reason{reason="x"} 9\nmy_engine:a 8\n'
        b"engine:b 1e2 1700000000000\nother 1\n"
    )
    found = [Series(A, {"engine": "0", "model_name": "m"}, 3.0), Series(B, {}, 100.0)]
    assert read(text) == (found, {})
    assert read(b"engine:a 1\n") == ([Series(A, {}, 1.0)], {}), "the first line of all"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"engine:a NaN\n", "bad_number"),
        (b"engine:a +Inf\n", "bad_number"),
        (b"engine:a -1\n", "bad_number"),
        (b"engine:a 1e999\n", "bad_number"),
        (b"engine:a \n", "bad_line"),
        (b"engine:a x\n", "bad_line"),
        (b"engine:a 1_0\n", "bad_line"),
        (b"engine:a 1 2 3\n", "bad_line"),
        (b'engine:a{l="x" 1\n', "bad_line"),
        (b'engine:a{l="x\n', "bad_line"),
        (b"engine:a{l=x} 1\n", "bad_line"),
        (b'engine:a{l="\xff"} 1\n', "bad_line"),
        (b"engine:a } 1\n", "bad_line"),
        (b'engine:a{l="x"}} 1\n', "bad_line"),
        (b'engine:a{l="x"}1}\n', "bad_line"),
        (b"engine:a 1", "cut"),
        (b'engine:a{l="' + b"x" * LOAD_LINE_BYTES_MAX + b'"} 1\n', "long_line"),
    ],
)
def test_a_line_that_cannot_be_used_is_counted_and_hides_no_other(line: bytes, reason: str) -> None:
    assert read(b"engine:b 2\n" + line) == ([Series(B, {}, 2.0)], {reason: 1})


def test_of_one_series_the_first_counts_and_of_two_both() -> None:
    text = b'engine:a{l="x"} 1\nengine:a{l="y"} 2\nengine:a{l="x"} 3\n'
    assert read(text) == ([Series(A, {"l": "x"}, 1.0), Series(A, {"l": "y"}, 2.0)], {"repeated": 1})


def test_what_is_too_long_to_be_remembered_is_read_all_the_same() -> None:
    value = "x" * LOAD_HEAD_BYTES_MAX
    text = f'engine:a{{l="{value}"}} 1\n'.encode()
    for _ in range(2):
        assert read(text) == ([Series(A, {"l": value}, 1.0)], {})
    assert read(b"engine:a{} 1\nengine:a 2\n")[0] == [Series(A, {}, 1.0), Series(A, {}, 2.0)]


def test_labels_may_hold_whatever_is_escaped() -> None:
    text = rb'engine:a{ l = "a}\"\\\n,b" , m="" ,} 1' + b"\n"
    assert read(text) == ([Series(A, {"l": 'a}"\\\n,b', "m": ""}, 1.0)], {})


@pytest.mark.parametrize(
    "line",
    [
        b"engine:a 1\n",
        b"engine:a{" + b'l="' * 5000 + b"\n",
        b"engine:a{" + b"\\" * 16_000 + b"\n",
        b"engine:a" + b" " * 16_000 + b"x\n",
        b'engine:a{l="' + b"}" * 16_000 + b"\n",
        b"engine:a{" + b" " * 16_000 + b"\n",
        b"engine:aengine:a",
        b"\nengine:ab",
    ],
)
def test_as_much_as_may_come_costs_a_bounded_time(line: bytes) -> None:
    text = line * (LOAD_METRICS_BYTES // len(line))
    begun = time.thread_time()
    _, dropped = read(text)
    assert time.thread_time() - begun < 2.0  # 10 to 60 ms; quadratic ones take minutes
    assert sum(dropped.values()) <= LOAD_LINES_MAX + 1


values = st.text(max_size=12).filter(lambda text: text.isprintable() or "\n" in text)
labels = st.fixed_dictionaries({"engine": values, "model_name": values})


@settings(max_examples=100)
@given(st.lists(st.tuples(labels, st.floats(0, 1e12)), max_size=6))
def test_what_prometheus_client_writes_is_read_as_by_its_own_parser(
    series: list[tuple[dict[str, str], float]],
) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("engine:a", "engine:a 1\nengine:a 2", ["engine", "model_name"], registry=registry)
    other = Gauge("engine:a_more", "text", ["engine"], registry=registry)
    other.labels("0").set(7)
    for given_labels, value in series:
        gauge.labels(**given_labels).set(value)
    text = generate_latest(registry)
    wanted = [
        Series(A, sample.labels, sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == "engine:a"
    ]
    assert read(text, A) == (wanted, {})


@settings(max_examples=300)
@given(st.lists(st.sampled_from([b"engine:a", b"{", b"}", b'"', b"l=", b"\\", b"\n", b" ", b"1"])))
def test_whatever_comes_nothing_is_raised(parts: list[bytes]) -> None:
    found, _ = read(b"".join(parts))
    assert all(one.value >= 0 for one in found)
