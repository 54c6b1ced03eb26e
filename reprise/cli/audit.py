"""`reprise audit`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reprise.cli.terminal import printable
from schemas.errors import RepriseError

if TYPE_CHECKING:
    from schemas.answer_records import AnsweredInstance
    from streams.audit.verification import Disagreement, Verified


@click.group()
def audit() -> None:
    """Prove the answers that `reprise up --audit RATE` has kept."""


@audit.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("data"),
    show_default=True,
    help="The data directory; the service that uses it may be running.",
)
def verify(data: Path) -> None:
    """Derive every kept answer again from the log, and compare it number for number.

    Exit code 1 where one disagrees, or a record of answers cannot be read. Answers whose position
    the log and its history no longer reach are counted, and prove nothing.
    """
    from streams.audit.verification import verify_answers

    try:
        if sys.stderr.isatty():
            with click.progressbar(length=0, label="verifying", file=sys.stderr) as bar:

                def show(done: int, total: int) -> None:
                    if bar.length != total:
                        bar.length = total
                    bar.update(done - bar.pos)

                verified = verify_answers(data, show)
        else:
            verified = verify_answers(data)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error
    for line in lines_of(verified):
        click.echo(printable(line))
    if not verified.is_proven:
        sys.exit(1)


def lines_of(verified: "Verified") -> list[str]:
    """What came of it, for people."""
    lines = []
    for shown in verified.shown:
        lines += _disagreement(shown)
    hidden = verified.disagreed - len({(one.run, one.answer.sequence) for one in verified.shown})
    if hidden > 0:
        lines.append(f"and {hidden} more answers that disagree")
    if verified.unreadable:
        lines.append(
            f"{verified.unreadable} records of answers cannot be read: {verified.unreadable_reason}"
        )
    if verified.beyond:
        lines.append(
            f"{verified.beyond} answers are beyond what the log and its history have:"
            f" {verified.beyond_reason}"
        )
    if verified.missing:
        lines.append(
            f"{verified.missing} answers between these were not kept: dropped, or given while a"
            " record was half folded"
        )
    where = f", positions 0:{verified.first} to 0:{verified.last}" if verified.answers else ""
    lines.append(
        f"answers {verified.answers}{where}: agreed {verified.agreed}, disagreed"
        f" {verified.disagreed}, beyond the log {verified.beyond}"
    )
    return lines


def _disagreement(found: "Disagreement") -> list[str]:
    given = found.answer
    scope = " / ".join(map(str, given.scope))
    positions = ",".join(f"{partition}:{offset}" for partition, offset in given.positions)
    return [
        f"disagrees: answer {found.run}.{given.sequence} at position {positions}, scope {scope},"
        f" instance {found.instance_id}",
        f"  said   {_numbers(found.said)}",
        f"  is so  {_numbers(found.found)}",
    ]


def _numbers(instance: "AnsweredInstance | None") -> str:
    if instance is None:
        return "no such instance"
    ranks = "  ".join(
        f"rank {rank.dp_rank}: {rank.matched} (GPU {rank.gpu_walk} CPU {rank.cpu_walk}"
        f" DISK {rank.disk_walk})"
        for rank in instance.ranks
    )
    return (
        f"longest {instance.longest}  GPU {instance.gpu} CPU {instance.cpu} DISK {instance.disk}"
        f"  {ranks}"
    ).rstrip()
