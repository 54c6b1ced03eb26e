"""`reprise get` against a service."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reprise.cli.main import main
from tests.unit.reprise.cli.answering import Handler, answering

DOCUMENT = {"count": 2, "rows": [{"name": "a", "n": 1}, {"name": "b", "n": 2}]}


@pytest.fixture
def url() -> Iterator[str]:
    Handler.answer = 200, json.dumps(DOCUMENT).encode()
    with answering() as url:
        yield url


def get(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["get", *arguments])


def test_a_document_is_shown_as_a_table(url: str) -> None:
    result = get("--url", url, "/promises?by=policy")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "count  2",
        "rows (2)",
        "  name  n",
        "  a     1",
        "  b     2",
    ]
    assert Handler.asked == [("/promises?by=policy", "application/json")]


def test_rows_and_columns_are_chosen_and_sorted(url: str) -> None:
    shown = get("--url", url, "/rows", "--sort", "n", "-c", "name").output
    assert shown.splitlines() == ["rows (2)", "  name", "  b", "  a"]
    shown = get("--url", url, "/rows", "--filter", '"b"', "--json").output
    assert json.loads(shown) == {"count": 2, "rows": [{"name": "b", "n": 2}]}


def test_json_is_the_document(url: str) -> None:
    assert json.loads(get("--url", url, "/rows", "--json").output) == DOCUMENT


def test_it_is_asked_again_and_an_error_meanwhile_is_said(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [(503, b'{"error":"not yet"}'), (200, b'{"count":3}')]

    def sleep(seconds: float) -> None:
        assert seconds == 0.5
        Handler.answer = answers.pop(0)

    monkeypatch.setattr("reprise.cli.get.time.sleep", sleep)
    result = get("--url", url, "/rows", "--every", "0.5", "--looks", "3", "--json")
    assert result.exit_code == 0
    assert [json.loads(line)["count"] for line in result.stdout.splitlines()] == [2, 3]
    assert result.stderr == "not yet\n"


def test_a_last_look_that_fails_is_an_error() -> None:
    result = get("--url", "http://127.0.0.1:1", "/rows", "--every", "0.25", "--looks", "2")
    assert result.exit_code == 1
    assert result.stderr.count("Is the service up") == 2


def test_a_service_that_refuses_is_an_error(url: str) -> None:
    Handler.answer = 404, b"not found"
    result = get("--url", url, "/rows")
    assert (result.exit_code, "not found" in result.output) == (1, True)


def test_what_is_no_path_is_refused(url: str) -> None:
    result = get("--url", url, "promises")
    assert (result.exit_code, Handler.asked) == (2, [])
    assert "Expected a path as /promises, got: promises" in result.stderr


def test_a_body_that_has_no_end_or_no_bottom_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.write_bytes(b"[" * 100_000)
    for path in ("/dev/zero", str(deep)):
        result = get("/explain", "--body", path)
        assert result.exit_code == 1
        assert "Expected the JSON body of a request in" in result.stderr


@pytest.mark.parametrize("name", ["top", "memory", "promises", "prefixes", "advice", "explain"])
def test_a_command_that_it_replaced_is_answered_with_what_to_type(name: str) -> None:
    result = CliRunner().invoke(main, [name])
    assert result.exit_code == 2
    assert f"got: {name}. `reprise get /" in result.stderr
