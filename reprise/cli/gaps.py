"""`reprise gaps`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from brokers.broker_settings import KafkaSettings
from console.asking import DEFAULT_URL, URL_VARIABLE, asked
from console.documents import document_lines, terminal_width
from console.terminal import say_json
from reprise.cli.data_option import existing_data
from reprise.cli.kafka_options import is_by_flag, kafka_options
from streams.index_settings import seed_from

if TYPE_CHECKING:
    from query_api.gaps import GapsDocument, PublisherFilter


@click.command()
@click.argument(
    "file", type=click.Path(path_type=Path, dir_okay=False, exists=True), required=False
)
@click.option(
    "--url",
    help=f"Where a service answers.  [env var: {URL_VARIABLE}; default: {DEFAULT_URL}]",
)
@existing_data("Fold the log of this data directory of `reprise up`, which may be running.")
@kafka_options()
@click.option("--tenant", default="", help="Only publishers of this tenant.")
@click.option("--model", "--modelname", "model", default="", help="Only publishers of this model.")
@click.option("--instance", default="", help="Only publishers of this instance.")
@click.option("--json", "as_json", is_flag=True, help="Print the document of GET /gaps.")
@click.pass_context
def gaps(
    context: click.Context,
    /,
    file: Path | None,
    url: str | None,
    data: Path | None,
    kafka: KafkaSettings | None,
    tenant: str,
    model: str,
    instance: str,
    as_json: bool,
) -> None:
    """Say of every batch of every publisher what became of it: seen, repaired by a replay, or lost,
    when and why.

    A running service is asked. Or the ledger is made from a log, or from a capture FILE, by folding
    it: both say the same at the same position.

    \b
    reprise gaps
    reprise gaps --data DIR --instance engine-1
    reprise gaps --kafka HOST:PORT --json
    reprise gaps hour.capture

    Exit code 1 where it cannot be had, or a capture cannot be read to its end.
    """  # noqa: D301
    from query_api.gaps import PublisherFilter

    by_flag = is_by_flag(context)
    source = kafka if by_flag else None
    if sum(one is not None for one in (file, url, data, source)) > 1:
        raise click.UsageError("Expected one of --url, --data, --kafka and FILE, got several")
    wanted, is_whole = PublisherFilter(tenant, model, instance), True
    if file is not None:
        document, is_whole = _of_capture(file, wanted)
    elif data is not None or source is not None:
        document = _of_log(data, source, wanted)
    else:
        document = _asked(url or os.environ.get(URL_VARIABLE) or DEFAULT_URL, wanted)
    if as_json:
        say_json(document)
    else:
        for line in document_lines(msgspec.to_builtins(document), width=terminal_width()):
            click.echo(line)
    if not is_whole:
        context.exit(1)


def _asked(url: str, wanted: "PublisherFilter") -> "GapsDocument":
    from query_api.gaps import GapsDocument

    return asked(url, "/gaps", wanted._asdict(), GapsDocument)


def _of_log(
    data: Path | None, kafka: KafkaSettings | None, wanted: "PublisherFilter"
) -> "GapsDocument":
    from query_api.gaps import LedgerView, gaps_document
    from query_api.ports import positions_text
    from streams.audit.ledgers import ledgers_of_log, ledgers_of_topic

    seed = seed_from(os.environ)
    if data is not None:
        found = ledgers_of_log(data, seed)
    else:
        assert kafka is not None
        found = ledgers_of_topic(kafka, seed)
    views = [
        LedgerView(publisher, ledger, found.states.get(publisher))
        for publisher, ledger in found.ledgers.items()
    ]
    return gaps_document(views, positions_text(found.positions), wanted)


def _of_capture(file: Path, wanted: "PublisherFilter") -> "tuple[GapsDocument, bool]":
    """The document, and whether the capture was read to its end."""
    from query_api.gaps import LedgerView, gaps_document
    from query_api.ports import positions_text
    from replay.capture.reader import Capture
    from replay.folding import ReplayedTable, fold_capture
    from reprise.cli.publishing import say_notes
    from reprise.cli.replay import records_of
    from streams.kernel import open_kernel

    with Capture(file) as capture:
        say_notes(capture)
        records = records_of(capture, {})
        table = ReplayedTable(open_kernel(seed_from(os.environ)), records)
        fold_capture(records, table, total=None)
        states = table.publishers
        views = [
            LedgerView(publisher, ledger, states.get(publisher))
            for publisher, ledger in table.ledgers.items()
        ]
        document = gaps_document(views, positions_text(table.positions), wanted)
        return document, capture.damage is None
