"""Kafka away and back: said once each, at whichever place of a role it is noticed first."""

import logging
import time
from typing import Final

logger = logging.getLogger(__name__)

_OTHER_REASON_S: Final = 10.0


class Outage:
    """Whether Kafka is away, as one role knows it. One loop.

    A role says that it waits when Kafka goes, and that it goes on when Kafka is back; nothing
    between the two, but for another reason that shows after a while, as when brokers are back that
    are too few for the copies of a topic.

    Args:
        servers: named in both lines.
        meanwhile: what the role does until Kafka is back, in words.
        level: of what is said of the beginning; DEBUG where somebody else says it.
    """

    def __init__(self, servers: str, meanwhile: str = "", *, level: int = logging.WARNING) -> None:
        self._servers = servers
        self._meanwhile = f"; until it answers {meanwhile}" if meanwhile else ""
        self._level = level
        self._reason = ""
        self._begun_at = 0.0
        self._say_at = 0.0

    @property
    def problem(self) -> str:
        """What was said last while Kafka is away, or ""."""
        return f"waiting for Kafka at {self._servers}: {self._reason}" if self._reason else ""

    def note(self, reason: str) -> None:
        """Kafka is away, or cannot be used yet."""
        now = time.monotonic()
        if not self._reason:
            self._begun_at = self._say_at = now
        if now < self._say_at or reason == self._reason:
            return
        logger.log(
            self._level, "Waiting for Kafka at %s: %s%s", self._servers, reason, self._meanwhile
        )
        self._reason = reason
        self._say_at = now + _OTHER_REASON_S

    def end(self) -> None:
        """Kafka answers."""
        if self._reason:
            away_s = time.monotonic() - self._begun_at
            level = min(self._level, logging.INFO)
            logger.log(level, "Kafka at %s answers again after %.1f s", self._servers, away_s)
            self._reason = ""
