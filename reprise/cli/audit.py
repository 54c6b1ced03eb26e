"""`reprise audit`."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from brokers.broker_settings import KafkaSettings
from console.terminal import printable
from reprise.cli.data_option import existing_data
from reprise.cli.kafka_options import is_by_flag, kafka_options
from schemas.errors import RepriseError

if TYPE_CHECKING:
    from routing.audit import DecisionDisagreement, VerifiedDecisions
    from schemas.answer_records import AnsweredInstance
    from streams.audit.verification import Disagreement, VerificationResult

_DATA: Final = Path("data")

_DIFFERENCES_SHOWN: Final = 8  # of one decision

ResultT = TypeVar("ResultT")


@click.group()
def audit() -> None:
    """Prove what was answered and decided: answers that were kept by audit.rate, and all
    decisions of POST /route.
    """


@audit.command()
@existing_data("The data directory of `reprise up`, which may be running.  [default: data]")
@kafka_options()
@click.pass_context
def verify(context: click.Context, /, data: Path | None, kafka: KafkaSettings | None) -> None:
    """Derive every kept answer again from the log, and every decision from its record, and compare
    them number for number.

    Answers and decisions of `reprise up` are in its data directory, those of all replicas of
    `reprise serve` in the topics PREFIX.answers and PREFIX.routing.

    Exit code 1 where one disagrees, or a record of them cannot be read. Answers whose position
    the log and its history no longer reach are counted, and prove nothing.

    \b
    reprise audit verify --data DIR
    reprise audit verify --kafka HOST:PORT
    """  # noqa: D301
    by_flag = is_by_flag(context)
    if data is not None and by_flag:
        raise click.UsageError("Expected one of --data and --kafka, got both")
    if data is None and kafka is None:
        data = _found_data()
    decisions = _run(lambda tell: _decisions(data, kafka, tell))
    try:
        answers = _run(lambda tell: _answers(data, kafka, tell))
    except RepriseError:
        if not (decisions.decisions or decisions.unreadable) or (
            data is not None and (data / "answers").exists()
        ):
            raise
        answers = None
    lines = [] if answers is None else lines_of(answers)
    for line in lines + decision_lines(decisions):
        click.echo(printable(line))
    if not (decisions.is_proven and (answers is None or answers.is_proven)):
        sys.exit(1)


Tell = Callable[[int, int], None]


def _answers(data: Path | None, kafka: KafkaSettings | None, tell: Tell) -> "VerificationResult":
    from streams.audit.topics_verification import verify_topics
    from streams.audit.verification import verify_answers

    if data is not None:
        return verify_answers(data, tell)
    assert kafka is not None
    return verify_topics(kafka, tell)


def _decisions(data: Path | None, kafka: KafkaSettings | None, tell: Tell) -> "VerifiedDecisions":
    from routing.audit import verify_decisions
    from routing.audit_topic import verify_routing_topic

    if data is not None:
        return verify_decisions(data, tell)
    assert kafka is not None
    return verify_routing_topic(kafka, tell)


def _run(run: Callable[[Tell], ResultT]) -> ResultT:
    """Calls it with what shows on a terminal how far it is."""
    from streams.audit.topics_verification import silent

    if sys.stderr.isatty():
        with click.progressbar(length=0, label="verifying", file=sys.stderr) as bar:

            def show(done: int, total: int) -> None:
                if bar.length != total:
                    bar.length = total
                bar.update(done - bar.pos)

            return run(show)
    return run(silent)


def _found_data() -> Path:
    """The data directory where none is named."""
    if not _DATA.is_dir():
        raise click.UsageError(f"Expected --data or --kafka, got neither, and no directory {_DATA}")
    return _DATA


def lines_of(verified: "VerificationResult") -> list[str]:
    """What came of it, for people."""
    lines = []
    for shown in verified.shown:
        lines += _disagreement(shown)
    hidden = verified.disagreed - len(
        {(one.replica, one.run, one.answer.sequence) for one in verified.shown}
    )
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
            " record was half folded, or a flush half applied"
        )
    where = ""
    if verified.answers:
        lowest, highest = (
            positions_text(found.items()) for found in (verified.lowest, verified.highest)
        )
        where = f", positions {lowest} to {highest}"
    lines.append(
        f"answers {verified.answers}{where}: agreed {verified.agreed}, disagreed"
        f" {verified.disagreed}, beyond the log {verified.beyond}"
    )
    return lines


def decision_lines(verified: "VerifiedDecisions") -> list[str]:
    """What came of decisions, for people; nothing where there are none."""
    lines = [line for shown in verified.shown for line in _decision(shown)]
    hidden = verified.disagreed - len(verified.shown)
    if hidden > 0:
        lines.append(f"and {hidden} more decisions that disagree")
    if verified.unreadable:
        lines.append(
            f"{verified.unreadable} records of the routing log cannot be read:"
            f" {verified.unreadable_reason}"
        )
    if verified.decisions:
        lines.append(
            f"decisions {verified.decisions}: agreed {verified.agreed}, disagreed"
            f" {verified.disagreed}; who decodes is taken as it stands in {verified.decoding}"
        )
    return lines


def _decision(found: "DecisionDisagreement") -> list[str]:
    lines = [
        f"disagrees: decision {found.name} in record {found.offset} of the routing log, policy"
        f" {found.policy}"
    ]
    for one in found.differences[:_DIFFERENCES_SHOWN]:
        lines.append(f"  {one.field}: said {one.said!r}, is so {one.found!r}")
    if len(found.differences) > _DIFFERENCES_SHOWN:
        lines.append(f"  and {len(found.differences) - _DIFFERENCES_SHOWN} more values")
    return lines


def positions_text(positions: Iterable[tuple[int, int]]) -> str:
    """As `Reprise-Position` has them."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions))


def _disagreement(found: "Disagreement") -> list[str]:
    given = found.answer
    scope = " / ".join(map(str, given.scope))
    of = f" of {found.replica}" if found.replica else ""
    which = (
        f"disagrees: answer {found.run}.{given.sequence}{of} at position"
        f" {positions_text(given.positions)}, scope {scope}"
    )
    if found.detail:
        return [f"{which}: {found.detail}"]
    return [
        f"{which}, instance {found.instance_id}",
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
