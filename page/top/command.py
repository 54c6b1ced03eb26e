"""`reprise top`."""

import sys
import time
from typing import Final

import click

from console.asking import url_option
from console.param_types import Amount
from console.terminal import say_json

TOP_PERIOD_S: Final = 2.0  # between two looks of `reprise top`: seven requests to a service
TOP_PERIOD_MIN_S: Final = 0.25  # the shortest period that may be set
TOP_PERIOD_MAX_S: Final = 60.0  # the longest period that may be set

assert TOP_PERIOD_MIN_S <= TOP_PERIOD_S <= TOP_PERIOD_MAX_S, "the default must be allowed"

_ORDERS = ("name", "state", "blocks", "hits", "wait", "requests", "kv", "pressure", "lost")


@click.command()
@url_option("Where any replica answers.")
@click.option(
    "--interval",
    "-n",
    type=Amount(TOP_PERIOD_MIN_S, TOP_PERIOD_MAX_S),
    default=TOP_PERIOD_S,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Print it once.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON a look.")
@click.option("--looks", type=click.IntRange(min=1), help="With --json: stop after this many.")
@click.option(
    "--sort", type=click.Choice(_ORDERS), default="name", show_default=True, help="By what."
)
@click.option("--filter", "wanted", default="", help="Only lines whose words have this in them.")
def top(
    url: str,
    interval: float,
    once: bool,
    as_json: bool,
    looks: int | None,
    sort: str,
    wanted: str,
) -> None:
    """Show every instance: how far it can be trusted, what it holds and carries, what it lost.

    HITS and PROMISED are the cached share of the prompts that were sent there by POST /route in the
    last minute, as reported and as foretold. WAIT, REQUESTS and KV are known of instances that are
    routed to, or report their load. Below are the memory segments of kvcached, if there are any.

    Keys: q quits, s sorts by the next column, r reverses, / filters, arrows scroll.

    \b
    reprise top --url http://10.0.0.2:13333
    reprise top --once --sort lost
    reprise top --once --json | jq '.instances[] | select(.state != "exact")'
    """  # noqa: D301
    if as_json:
        _print_json(url, interval, 1 if once else looks)
        return
    if once:
        _print_once(url, sort, wanted)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "Expected a terminal to draw on, got a file or a pipe: use --once or --json there"
        )
    _follow(url, interval, sort, wanted)


def _print_json(url: str, interval: float, looks: int | None) -> None:
    from page.top.fleet import ask_fleet

    number = 0
    while True:
        number += 1
        try:
            fleet = ask_fleet(url)
        except click.ClickException as error:
            if number == looks:
                raise
            click.echo(error.format_message(), err=True)  # it may come back
        else:
            say_json(fleet)
        if number == looks:
            return
        time.sleep(interval)


def _print_once(url: str, sort: str, wanted: str) -> None:
    from page.top.fleet import ask_fleet
    from page.top.lines import Order, chosen_of, head_of, rows_of, segments_of

    fleet = ask_fleet(url)
    rows = chosen_of(fleet.instances, Order(sort), wanted=wanted)
    for line in (*head_of(fleet), *rows_of(rows, fleet.at), *segments_of(fleet.segments)):
        click.echo(line.text)


def _follow(url: str, interval: float, sort: str, wanted: str) -> None:
    try:
        import curses
    except ImportError as error:
        message = "This Python has no curses to draw with: use --once or --json"
        raise click.ClickException(message) from error
    from page.top.lines import Order
    from page.top.screen import Screen
    from page.top.watching import Watcher

    watcher = Watcher(url, interval)
    watcher.start()
    try:
        curses.wrapper(lambda window: Screen(window, Order(sort), wanted).follow(watcher))
    except curses.error as error:
        message = f"Cannot draw on this terminal ({error}): use --once or --json"
        raise click.ClickException(message) from error
    finally:
        watcher.stop()
