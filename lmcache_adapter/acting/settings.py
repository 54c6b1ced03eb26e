"""Whether a service acts on its own advice."""

from schemas import limits
from schemas.errors import ConfigurationError
from schemas.setting import part, setting


@part
class ActingSettings:
    """What the table `acting` says."""

    is_on: bool = setting(
        "acting.on",
        "Do what GET /advice says: have LMCache's workers copy and pin hot prefixes. Of several"
        " replicas give it to one.",
        flag="--act",
        default=False,
    )
    period_s: float = setting(
        "acting.period_s",
        "How often acting looks at what is advised.",
        flag="--act-period",
        metavar="SECONDS",
        bounds=(limits.ACT_PERIOD_MIN_S, limits.ACT_PERIOD_MAX_S),
        default=limits.ACT_PERIOD_S,
    )

    def __post_init__(self) -> None:
        """Raises ConfigurationError where the period is none."""
        least, most = limits.ACT_PERIOD_MIN_S, limits.ACT_PERIOD_MAX_S
        if not least <= self.period_s <= most:
            raise ConfigurationError(
                f"Expected to look at advice each {least:g} to {most:g} s, got: {self.period_s}"
            )
