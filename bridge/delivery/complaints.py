"""Which of the things that go wrong again and again are worth a line in the log. Pure."""

from collections.abc import Hashable
from typing import NamedTuple

from schemas.limits import CONDITION_REPEAT_S


class Complaint(NamedTuple):
    """Something that goes wrong.

    Attributes:
        text: of its last line in the log.
        since: when it first went wrong; `last_at`: when it last did; `said_at`: when that line was
            written. Monotonic seconds.
    """

    text: str
    since: float
    last_at: float
    said_at: float
    times: int


class Complaints:
    """As `schemas.conditions` logs a condition: once when it begins, and while it lasts only where
    another text says why, CONDITION_REPEAT_S or more after the last line. It lasts until it has not
    gone wrong for so long: a disk that is full takes something now and then.

    As many are kept as went wrong within that time; call `ended` now and then.
    """

    def __init__(self) -> None:
        self._lasting: dict[Hashable, Complaint] = {}

    def is_news(self, about: Hashable, text: str, now: float) -> bool:
        """It went wrong: whether that is to be logged.

        Args:
            now: monotonic seconds.
        """
        before = self._lasting.get(about)
        if before is None or now >= before.last_at + CONDITION_REPEAT_S:
            self._lasting[about] = Complaint(text, now, now, now, 1)
            return True
        is_news = text != before.text and now >= before.said_at + CONDITION_REPEAT_S
        if is_news:
            before = before._replace(text=text, said_at=now)
        self._lasting[about] = before._replace(last_at=now, times=before.times + 1)
        return is_news

    def ended(self, now: float) -> dict[Hashable, Complaint]:
        """What no longer goes wrong; each is given once."""
        ended = {
            about: one
            for about, one in self._lasting.items()
            if now >= one.last_at + CONDITION_REPEAT_S
        }
        for about in ended:
            del self._lasting[about]
        return ended
