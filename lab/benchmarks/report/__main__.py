"""`python -m lab.benchmarks.report REPORT.json...`: prints the table of aims of a run again, or
writes it into docs/benchmarks.md.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from lab.benchmarks.report.document import BenchmarkReport
from lab.benchmarks.report.markers import DOCUMENT, put_between
from lab.benchmarks.report.table import markdown_lines, table_lines

WHOLE_RUN: Final = "whole run"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "reports",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--markdown", is_flag=True, help="As docs/benchmarks.md has it: one whole run.")
@click.option("--write", is_flag=True, help="Write that into docs/benchmarks.md instead.")
def main(reports: Sequence[Path], markdown: bool, write: bool) -> None:
    """Prints the table of aims of REPORTS, which `python -m lab.benchmarks --json REPORT` wrote.

    Where several have the same measurement, the last one counts.
    """
    merged = merge([_read(path) for path in reports])
    if write:
        DOCUMENT.write_text(written(DOCUMENT.read_text(), merged))
        return
    for line in (markdown_lines if markdown else table_lines)(merged):
        click.echo(line)


def written(text: str, report: BenchmarkReport) -> str:
    """The document with that run."""
    begin, end = f"<!-- {WHOLE_RUN} -->", f"<!-- end of {WHOLE_RUN} -->"
    return put_between(text, WHOLE_RUN, begin, end, markdown_lines(report))


def _read(path: Path) -> BenchmarkReport:
    try:
        return msgspec.json.decode(path.read_bytes(), type=BenchmarkReport)
    except msgspec.DecodeError as error:
        raise click.ClickException(
            f"Expected a report of `python -m lab.benchmarks --json`, got {path}: {error}"
        ) from error


def merge(reports: Sequence[BenchmarkReport]) -> BenchmarkReport:
    """All of them as one; machine and date are the last one's."""
    last = reports[-1]
    by_name = {result.measurement: result for one in reports for result in one.results}
    peers = {name: said for one in reports for name, said in one.peers.items()}
    missing = {name: why for one in reports for name, why in one.missing_peers.items()}
    skipped = {name: why for one in reports for name, why in one.skipped.items()}
    return msgspec.structs.replace(
        last,
        quick=any(one.quick for one in reports),
        results=list(by_name.values()),
        skipped={name: why for name, why in skipped.items() if name not in by_name},
        peers=peers,
        missing_peers={name: why for name, why in missing.items() if name not in peers},
    )


if __name__ == "__main__":
    main()
