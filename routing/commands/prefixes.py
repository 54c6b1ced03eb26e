"""`reprise prefixes`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from console.asking import asked, url_option
from console.terminal import printable, say_json, table_lines

if TYPE_CHECKING:
    from routing.http.models import PrefixDocument, PrefixesDocument

_HEADER: Final = (
    *("PREFIX", "TOKENS", "PER SECOND", "ASKED", "REPLICAS", "PROMISED", "CHECKED", "CONFIRMED"),
    *("SAVED", "MISSED"),
)
_NUMBERS: Final = frozenset(_HEADER)


@click.command()
@url_option("Where the service answers.")
@click.option(
    "--hot",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="At most this many of each scope.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    default=0,
    help="Only prefixes of at least this many tokens.",
)
@click.option("--instance", default="", help="Only prefixes that this instance holds.")
@click.option("--json", "as_json", is_flag=True, help="Print the document of GET /prefixes.")
def prefixes(url: str, hot: int, depth: int, instance: str, as_json: bool) -> None:
    """List the prefixes that are asked for most: how often, who holds them, what they saved.

    \b
    reprise prefixes --hot 10 --depth 1024
    """  # noqa: D301
    from routing.http.models import PrefixesDocument

    wanted = {"hot": hot, "depth": depth or "", "instance": instance}
    document = asked(url, "/prefixes", wanted, PrefixesDocument)
    if as_json:
        say_json(document)
        return
    for line in lines_of(document):
        click.echo(printable(line))


def lines_of(document: "PrefixesDocument") -> Iterator[str]:
    """The document for people."""
    for scope in document.scopes:
        names = (
            *(scope.tenant_id, scope.model_name, scope.lora_name),
            *(scope.block_size, scope.additional_salt),
        )
        yield " / ".join(map(str, names))
        for line in table_lines(_HEADER, map(_cells, scope.prefixes), _NUMBERS):
            yield f"  {line}"


def _cells(one: "PrefixDocument") -> tuple[str, ...]:
    return (
        one.prefix_hash,
        f"{one.tokens:,}",
        f"{one.rate:.3f}",
        f"{one.asked:,}",
        str(one.replicas),
        *(f"{count:,}" for count in (one.hits_promised, one.hits_checked, one.hits_confirmed)),
        *(f"{count:,}" for count in (one.saved_tokens, one.missed_tokens)),
    )
