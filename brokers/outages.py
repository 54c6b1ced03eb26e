"""Kafka away and back, as a condition of the role that waits for it."""

import logging
from collections.abc import Callable
from typing import Final

from schemas.clock import REAL_CLOCK
from schemas.conditions import Conditions, Level, Part

logger = logging.getLogger(__name__)

UNREACHABLE: Final = "unreachable"
"""The reason of the condition; the message has the client's own words."""


class Outage:
    """Sets and clears the condition `kafka` of a role.

    `schemas.conditions` logs once that it begins and once that it ends, and between the two only
    where another reason shows: for example, when too few brokers are back for a topic's replicas.

    Args:
        servers: named in the message.
        meanwhile: what the role does until Kafka is back, in words.
        conditions: of the role; None: of this object alone, logged here.
        level: what it means for the role.
        unix: Unix seconds, for conditions of this object alone.
    """

    def __init__(
        self,
        servers: str,
        meanwhile: str = "",
        *,
        conditions: Conditions | None = None,
        level: Level = Level.DEGRADED,
        unix: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        self._servers = servers
        self._meanwhile = f"; meanwhile {meanwhile}" if meanwhile else ""
        self._level = level
        self._conditions = Conditions(unix, logger) if conditions is None else conditions

    def begin(self, reason: str) -> None:
        """Kafka is away, or cannot be used yet; may be called again, with another reason."""
        message = f"cannot use Kafka at {self._servers}: {reason}{self._meanwhile}"
        self._conditions.set(Part.KAFKA, UNREACHABLE, message, self._level)

    def end(self) -> None:
        """Kafka answers."""
        self._conditions.clear(Part.KAFKA)
