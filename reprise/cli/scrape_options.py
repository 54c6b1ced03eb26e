"""The option of the commands that ask engines for their load."""

from typing import Final

import click

from console.param_types import Amount
from console.settings import Setting
from schemas import limits

scrape_load_option: Final = click.option(
    "--scrape-load",
    "scrape_load_s",
    cls=Setting,
    key="load.scrape_s",
    is_seldom_set=True,
    envvar="REPRISE_SCRAPE_LOAD",
    show_envvar=True,
    type=Amount(0, limits.LOAD_PERIOD_MAX_S),
    default=limits.LOAD_PERIOD_S,
    show_default=True,
    metavar="SECONDS",
    help="How often engines with an HTTP address are asked how much they carry; 0 for never.",
)
"""Gives the command `scrape_load_s`."""
