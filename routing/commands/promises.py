"""`reprise promises`."""

from typing import TYPE_CHECKING, Final

import click

from console.asking import asked, url_option
from console.terminal import printable, say_json, table_lines

if TYPE_CHECKING:
    from routing.http.models import PromiseRow, PromisesDocument

_HEADER: Final = (
    *("TENANT", "NAME", "DECISIONS", "REPORTED", "PROMISED", "ACTUAL"),
    *("WORKLOAD", "ROUTING", "INDEX", "TTFT", "EXPECTED", "IN P90"),
)
_WORDS: Final = frozenset({"TENANT", "NAME"})
_NUMBERS: Final = frozenset(_HEADER) - _WORDS


@click.command()
@url_option("Where the service answers.")
@click.option(
    "--by",
    type=click.Choice(["instance", "policy", "model"]),
    default="instance",
    show_default=True,
    help="What a line is of.",
)
@click.option(
    "--since",
    type=float,
    help="Unix seconds; whole minutes from the one on in which it lies.  [default: all there is]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the document of GET /promises.")
def promises(url: str, by: str, since: float | None, as_json: bool) -> None:
    """Say what decisions promised, what came of it, and where the tokens went that were computed.

    Of each prompt's tokens: promised and actual are those that were to be in the cache, and were.
    The others no instance held (workload), another instance held (routing), or the index said were
    held and the engine did not have (index).

    \b
    reprise promises --by policy
    """  # noqa: D301
    from routing.http.models import PromisesDocument

    document = asked(url, "/promises", {"by": by, "since": since}, PromisesDocument)
    if as_json:
        say_json(document)
        return
    for line in lines_of(document):
        click.echo(printable(line))


def lines_of(document: "PromisesDocument") -> list[str]:
    """The document for people."""
    lines = list(table_lines(_HEADER, map(_cells, document.rows), _NUMBERS))
    notes = {
        "decisions are under way": document.open,
        "rows of earlier minutes are not kept": document.forgotten,
        "reports found no row": document.crowded_out,
    }
    return [*lines, *(f"{count} {what}" for what, count in notes.items() if count)]


def _cells(row: "PromiseRow") -> tuple[str, ...]:
    total, first = row.tokens.prompt, row.ttft

    def share(tokens: int) -> str:
        return f"{100 * tokens / total:.1f} %" if total else "-"

    return (
        row.tenant_id,
        row.name or "(refused)",
        f"{row.decisions:,}",
        f"{row.reported:,}",
        share(row.tokens.promised),
        share(row.tokens.actual),
        share(row.lost.workload.tokens),
        share(row.lost.routing.tokens),
        share(row.lost.index.tokens),
        f"{first.actual_ms:,.0f} ms" if first.count else "-",
        f"{first.promised_ms:,.0f} ms" if first.count else "-",
        f"{100 * first.within_p90:.0f} %" if first.count else "-",
    )
