"""The tables of docs/benchmarks.md: printed, or written between its markers."""

import click

from lab.benchmarks.report.markers import DOCUMENT
from lab.benchmarks.scaling.document import SECTIONS, written
from lab.benchmarks.scaling.model import Model


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--write", is_flag=True, help=f"Write them into {DOCUMENT.name} instead.")
def main(write: bool) -> None:
    """Prints the tables of docs/benchmarks.md as they are computed now."""
    model = Model()
    if write:
        DOCUMENT.write_text(written(DOCUMENT.read_text(), model))
        return
    for name, lines in SECTIONS.items():
        click.echo(f"{name}\n")
        for line in lines(model):
            click.echo(line)
        click.echo()


if __name__ == "__main__":
    main()
