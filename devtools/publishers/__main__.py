"""See the package."""

import argparse
import sys

from devtools.publishers import lmcache
from devtools.publishers.releases import RELEASES, FetchError, fetch
from devtools.publishers.table import CODE, in_document, render, row, write
from devtools.publishers.trial import captured_files, try_captured, try_release


def fetch_all() -> int:
    """Fetches what is missing; how many could not be had."""
    failed = 0
    for release in RELEASES:
        try:
            fetch(release)
        except FetchError as error:
            failed += 1
            print(f"left out: {error}", file=sys.stderr)
    return failed


def make_table(*, into_document: bool) -> None:
    """Prints the table, or puts it into the document; rows of releases that are not here stay as
    they stand there.
    """
    rows = [row(try_captured(path)) for path in captured_files()]
    rows += [row(lmcache.try_captured(path)) for path in lmcache.captured_files()]
    rows += [row(try_release(release)) for release in RELEASES if release.is_fetched]
    missing = {(release.kind, release.version): release for release in RELEASES}
    for release in RELEASES:
        if release.is_fetched:
            del missing[release.kind, release.version]
    rows += [one for one in in_document() if one.how == CODE and (one.kind, one.version) in missing]
    if missing:
        names = ", ".join(map(str, missing.values()))
        print(f"not here, so not tried again (`make engines`): {names}", file=sys.stderr)
    if into_document:
        write(rows)
    else:
        print(render(rows), end="")


def main() -> None:
    """See the package."""
    parser = argparse.ArgumentParser(prog="python -m devtools.publishers")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="fetch the engines' own publishers")
    table = commands.add_parser("table", help="try all publishers")
    table.add_argument("--write", action="store_true", help="put it into docs/compatibility.md")
    options = parser.parse_args()
    if options.command == "fetch":
        sys.exit(fetch_all())
    make_table(into_document=options.write)


if __name__ == "__main__":
    main()
