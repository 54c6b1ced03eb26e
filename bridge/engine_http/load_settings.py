"""How often engines are asked for their load."""

from typing import Final

from bridge.engine_http.bounds import LOAD_PERIOD_MAX_S, LOAD_PERIOD_S
from schemas.errors import ConfigurationError
from schemas.setting import part, setting


@part
class LoadSettings:
    """What the table `load` says."""

    scrape_s: float = setting(
        "load.scrape_s",
        "How often engines with an HTTP address are asked how much they carry; 0 for never.",
        flag="--scrape-load",
        metavar="SECONDS",
        bounds=(0, LOAD_PERIOD_MAX_S),
        default=LOAD_PERIOD_S,
    )

    def __post_init__(self) -> None:
        """Raises ConfigurationError where the period is none."""
        if self.scrape_s:
            check_period(self.scrape_s)


def check_period(period_s: float) -> None:
    """Raises ConfigurationError where it cannot be used."""
    if not 0 < period_s <= LOAD_PERIOD_MAX_S:
        raise ConfigurationError(
            f"Expected a period of load from 0 to {LOAD_PERIOD_MAX_S:g} s, got: {period_s:g}"
        )


NOT_ASKED: Final = LoadSettings(scrape_s=0.0)
"""No engine is asked."""
