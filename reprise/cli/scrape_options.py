"""The option of the commands that ask engines for their load."""

from typing import Final

from console.param_types import Amount
from console.settings import setting
from schemas import limits

# What of an answer is left out: reprise_bridge_load_dropped_total; where nothing of it could be
# used: reprise_bridge_load_failures_total; both by reason.
LOAD_PERIOD_S: Final = 1.0  # how often an engine is asked; from 80 to 120 % of it

scrape_load_option: Final = setting(
    "--scrape-load",
    "scrape_load_s",
    key="load.scrape_s",
    is_seldom_set=True,
    envvar="REPRISE_SCRAPE_LOAD",
    type=Amount(0, limits.LOAD_PERIOD_MAX_S),
    default=LOAD_PERIOD_S,
    show_default=True,
    metavar="SECONDS",
    help="How often engines with an HTTP address are asked how much they carry; 0 for never.",
)
"""Gives the command `scrape_load_s`."""
