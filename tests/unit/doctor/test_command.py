"""`reprise doctor` against a service."""

import json
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from click.testing import CliRunner, Result

from doctor.document import DoctorDocument, Finding
from reprise.cli.main import main
from tests.unit.reprise.cli.answering import Handler, answering


@pytest.fixture
def url() -> Iterator[str]:
    with answering() as url:
        yield url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def answers(*findings: Finding, notes: Sequence[Finding] = ()) -> DoctorDocument:
    document = DoctorDocument(
        at=1.0,
        role="embedded",
        position="0:7",
        findings=list(findings),
        notes=list(notes),
        instances=[],
    )
    Handler.answer = 200, msgspec.json.encode(document)
    return document


WRONG = Finding(
    code="block_size",
    tenant_id="acme",
    instance_id="node-1",
    model_name="m",
    dp_ranks=[1],
    cause="it publishes blocks of 32 tokens",
    expected="16",
    got="32",
    remedy="register again",
)


def test_without_findings_it_is_one_line_and_success(url: str) -> None:
    answers()
    result = run("--url", url)
    assert (result.exit_code, result.output.splitlines()) == (
        0,
        ["Nothing is wrong: 0 instances examined at 0:7."],
    )


def test_a_finding_is_said_with_its_remedy_and_fails(url: str) -> None:
    answers(WRONG)
    result = run("--url", url)
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "block_size: acme/node-1 (m, rank 1)",
        "  It publishes blocks of 32 tokens.",
        "  expected: 16   got: 32",
        "  remedy: register again",
        "",
        "1 finding, 0 instances examined at 0:7.",
    ]


def test_a_note_is_said_and_fails_nothing(url: str) -> None:
    answers(notes=[WRONG])
    result = run("--url", url)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "note: block_size: acme/node-1 (m, rank 1)",
        "  It publishes blocks of 32 tokens.",
        "  expected: 16   got: 32",
        "  remedy: register again",
        "",
        "Nothing is wrong: 0 instances examined at 0:7.",
    ]


def test_the_document_can_be_had_as_it_is(url: str) -> None:
    document = answers(WRONG)
    result = run("--url", url, "--json")
    assert result.exit_code == 1
    assert json.loads(result.output) == msgspec.to_builtins(document)


def test_a_service_that_cannot_be_asked_is_another_failure() -> None:
    result = run("--url", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "Is the service up?" in result.output
