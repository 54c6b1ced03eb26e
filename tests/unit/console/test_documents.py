"""Any JSON document as lines for people."""

from typing import Any

from console.documents import chosen_of, document_lines

GAPS: dict[str, Any] = {
    "position": "0:13",
    "publishers": [
        {"instance_id": "a", "totals": {"lost": {}, "repaired": {"missed": 3}}, "intervals": []},
        {
            "instance_id": "b",
            "totals": {"lost": {"missed": 2}, "repaired": {}},
            "intervals": [
                {"first": 3, "last": 4, "at": 1764063303.5, "share": 0.5, "why": None},
                {"first": 11, "last": 11, "at": 0.0, "share": 12.0, "why": None},
            ],
        },
    ],
}


def words(document: Any, **options: Any) -> list[list[str]]:
    return [line.split() for line in document_lines(document, **options)]


def test_values_have_the_names_of_the_objects_that_they_are_in() -> None:
    document: Any = {"health": {"ready": True, "lag": {"seconds": 0.25}}, "reason": None, "of": []}
    assert list(document_lines(document)) == [
        "health.ready        true",
        "health.lag.seconds  0.25",
        "reason",
        "of",
    ]


def test_a_list_of_objects_is_a_table_and_one_below_names_its_row() -> None:
    assert words(GAPS) == [
        ["position", "0:13"],
        ["publishers", "(2)"],
        ["#", "instance_id", "totals.repaired.missed", "totals.lost.missed"],
        ["1", "a", "3"],
        ["2", "b", "2"],
        ["publishers.intervals", "(2)"],
        ["#", "first", "last", "at", "share"],
        ["2.1", "3", "4", "2025-11-25T09:35:03.500Z", "0.5"],
        ["2.2", "11", "11", "0", "12"],
    ]


def test_rows_have_no_numbers_where_none_is_needed() -> None:
    assert words([{"a": 1, "b": "x"}, {"a": 20, "b": "y"}]) == [
        ["list", "(2)"],
        ["a", "b"],
        ["1", "x"],
        ["20", "y"],
    ]


def test_numbers_are_flush_right_and_words_left() -> None:
    lines = list(document_lines({"rows": [{"n": 1, "w": "x"}, {"n": 200, "w": "long"}]}))
    assert lines[1:] == ["    n  w", "    1  x", "  200  long"]


def test_columns_choose_and_order() -> None:
    columns = ("totals.lost.missed", "instance_id", "first")
    assert words(GAPS, columns=columns) == [
        ["publishers", "(2)"],
        ["#", "totals.lost.missed", "instance_id"],
        ["1", "a"],
        ["2", "2", "b"],
        ["publishers.intervals", "(2)"],
        ["#", "first"],
        ["2.1", "3"],
        ["2.2", "11"],
    ]
    assert words(GAPS, columns=("position", "first"))[:2] == [
        ["position", "0:13"],
        ["publishers.intervals", "(2)"],
    ], "a table without any of them is left out"


def test_a_table_that_is_wider_than_the_terminal_is_a_block_for_each_row() -> None:
    rows = {"rows": [{"name": "a" * 30, "n": 1}, {"name": "b", "n": None}]}
    assert words(rows, width=35)[1] == ["name", "n"]
    assert list(document_lines(rows, width=34)) == [
        "rows (2)",
        f"  name  {'a' * 30}",
        "  n     1",
        "",
        "  name  b",
        "",
    ]


def test_names_from_elsewhere_cannot_write_to_the_terminal() -> None:
    text = "\x1b]0;owned\x07\n\u202e"
    document = {text: text, "rows": [{text: text, "list": [text, {}], "of": [[text]]}], "l": [text]}
    lines = list(document_lines(document)) + list(document_lines(document, width=1))
    assert all(line.isprintable() for line in lines)
    assert any("owned" in line for line in lines)


def test_what_is_wanted_is_looked_for_in_all_of_a_row() -> None:
    assert [one["instance_id"] for one in chosen_of(GAPS, wanted="2}")["publishers"]] == ["b"]
    assert [one["instance_id"] for one in chosen_of(GAPS, wanted="MISSED")["publishers"]] == [
        *("a", "b")
    ]
    assert chosen_of(GAPS, wanted="nothing") == {"position": "0:13", "publishers": []}


def test_rows_are_sorted_by_the_largest_numbers_and_what_has_none_is_last() -> None:
    rows = [{"k": {"n": number}} for number in (1, None, 30, 4.5)]
    found = chosen_of({"rows": [*rows, {"k": {}}]}, sort="k.n")["rows"]
    assert [one["k"].get("n") for one in found] == [30, 4.5, 1, None, None]
    names = chosen_of([{"w": "b"}, {"w": ""}, {"w": "a"}], sort="w")
    assert [one["w"] for one in names] == ["a", "b", ""]


def test_a_moment_beyond_all_calendars_is_a_number() -> None:
    assert words({"at": 1e300})[0][1].startswith("1000000")
