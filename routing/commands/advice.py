"""`reprise advice`."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from console.asking import asked, url_option
from console.terminal import printable, say_json

if TYPE_CHECKING:
    from routing.http.models import (
        ActDocument,
        AdviceDocument,
        AdvicesDocument,
        AdviceTarget,
    )


@click.command()
@url_option("Where the service answers.")
@click.option("--all", "shows_all", is_flag=True, help="Also hot prefixes that are well as is.")
@click.option("--json", "as_json", is_flag=True, help="Print the document of GET /advice.")
def advice(url: str, shows_all: bool, as_json: bool) -> None:
    """Say which hot prefixes should be copied to another instance, or pinned where they are.

    Each advice names the request that would do it. A service with acting.on does it itself: what it
    has done is shown below, and of each advice why it was not done at the last look.
    """
    from routing.http.models import AdvicesDocument

    document = asked(url, "/advice", {}, AdvicesDocument)
    if as_json:
        say_json(document)
        return
    for line in lines_of(document, shows_all=shows_all):
        click.echo(printable(line))


def lines_of(document: "AdvicesDocument", *, shows_all: bool) -> Iterator[str]:
    """The document for people."""
    done = [one for one in document.advice if one.action != "none"]
    for one in document.advice if shows_all else done:
        yield from _lines(one)
    yield f"{len(document.advice)} hot prefixes, {len(done)} to be copied or pinned"
    for act in document.acted:
        yield _done_line(act)


def _lines(one: "AdviceDocument") -> Iterator[str]:
    to = f" to {_names(one.targets)}" if one.action == "copy" else ""
    at = f" at {_names(one.targets)}" if one.action == "pin" else ""
    yield (
        f"{one.action}{to}{at} ({one.why}): prefix {one.prefix_hash} of {one.depth_tokens:,}"
        f" tokens, {one.rate:.3f} a second, model {one.model_name}"
    )
    yield (
        f"  held by {_names(one.holders) or 'nobody'}; saves {one.gain_s:.3f} s of prefill in"
        f" 300 s, costs {one.cost_s:.3f} s"
    )
    if one.held_back:
        yield f"  not done at the last look: {one.held_back}"
    if one.command:
        yield f"  {one.command}"


def _done_line(one: "ActDocument") -> str:
    at = datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    where = f"{one.source} to {one.target}" if one.action == "copy" else f"at {one.target}"
    why = f" ({one.reason})" if one.reason else ""
    tokens = f", {one.tokens:,} tokens" if one.tokens else ""
    return (
        f"{at} {one.action} {where}: prefix {one.prefix_hash}: {one.result}{tokens}{why}:"
        f" /commands/{one.command_id}"
    )


def _names(targets: "list[AdviceTarget]") -> str:
    return ", ".join(
        f"{one.instance_id} rank {one.dp_rank}" if one.dp_rank else one.instance_id
        for one in targets
    )
