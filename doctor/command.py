"""`reprise doctor`."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click
import msgspec

from console.asking import asked, url_option
from console.terminal import printable

if TYPE_CHECKING:
    from doctor.document import DoctorDocument, Finding

FOUND: Final = 1
"""Exit code where something is wrong."""

NOT_ASKED: Final = 2
"""Exit code where the service cannot be asked."""


@click.command()
@url_option("Where any replica answers.")
@click.option("--json", "as_json", is_flag=True, help="Print the document of GET /doctor.")
def doctor(url: str, as_json: bool) -> None:
    """Say what is wrong with a running service and its engines, and what to do about it.

    It finds what makes answers empty or wrong: a block size, model name or salt that differs,
    engines that are not reached, publish nothing, lose batches or never remove, caches that hold
    other tokens than are asked about, full disks, replicas that are behind.

    Exit code: 0 where nothing is wrong, 1 where something is, 2 where the service cannot be asked.
    What is so of a model and no mistake, as of a hybrid one, is told as a note, and fails nothing.
    A finding's CODE stays the same from release to release: docs/observe.md has a row of each.

    \b
    reprise doctor --url http://10.0.0.2:13333
    reprise doctor --json | jq '.findings[].code'
    """  # noqa: D301
    from doctor.document import DoctorDocument

    try:
        document = asked(url, "/doctor", {}, DoctorDocument)
    except click.ClickException as error:
        error.exit_code = NOT_ASKED
        raise
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
        sys.stdout.buffer.flush()
    else:
        for line in lines_of(document):
            click.echo(printable(line))
    if document.findings:
        sys.exit(FOUND)


def lines_of(document: "DoctorDocument") -> Iterator[str]:
    """The document for people."""
    count = len(document.instances)
    instances = "1 instance" if count == 1 else f"{count} instances"
    for finding in document.findings:
        yield from _told(finding)
    for note in document.notes:
        yield from _told(note, "note: ")
    if not document.findings:
        yield f"Nothing is wrong: {instances} examined at {document.position}."
        return
    found = len(document.findings)
    findings = "1 finding" if found == 1 else f"{found} findings"
    yield f"{findings}, {instances} examined at {document.position}."


def _told(finding: "Finding", before: str = "") -> Iterator[str]:
    yield f"{before}{finding.code}: {_whose(finding)}"
    yield f"  {_sentence(finding.cause)}"
    if finding.expected or finding.got:
        yield f"  expected: {finding.expected or '-'}   got: {finding.got or '-'}"
    yield f"  remedy: {finding.remedy}"
    yield ""


def _whose(finding: "Finding") -> str:
    if not finding.instance_id:
        return "the service"
    ranks = ""
    if finding.dp_ranks not in ([], [0]):
        ranks = f", rank {', '.join(map(str, finding.dp_ranks))}"
    return f"{finding.tenant_id}/{finding.instance_id} ({finding.model_name}{ranks})"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
