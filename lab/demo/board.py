"""Where a demonstration shows its table: redrawn in place on a terminal, else printed below."""

import logging
from collections.abc import Callable
from typing import Final

from lab.traffic.stats import Stats

WARM_UP_S: Final = 20.0
FIRST_AFTER_S: Final = 10.0
PRINTED_EVERY_S: Final = 30.0
REDRAWN_EVERY_S: Final = 3.0

_UP_AND_CLEAR: Final = "\x1b[{lines}F\x1b[J"


class _Interruptions(logging.Handler):
    """Notes that something was logged, to the same terminal as a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self.seen = True


class Board:
    """Shows what a router's requests met since it is warm. For one thread; times are of one clock.

    Args:
        say: prints its lines.
        in_place: whether a table takes the place of the one before, where nothing came between.
        warm_up_s: requests of so long at the start do not count: caches are empty, and nothing is
            known of how fast engines are.
        first_after_s: when the first table comes, after that.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        in_place: bool = False,
        warm_up_s: float = WARM_UP_S,
        first_after_s: float = FIRST_AFTER_S,
    ) -> None:
        self._say = say
        self._in_place = in_place
        self._warm_up_s = warm_up_s
        self._first_after_s = first_after_s
        self._every_s = REDRAWN_EVERY_S if in_place else PRINTED_EVERY_S
        self._drawn = 0
        self._warm_at: float | None = None
        self._next_at = 0.0
        self._interruptions = _Interruptions()
        if in_place:
            logging.getLogger().addHandler(self._interruptions)

    def close(self) -> None:
        """It shows nothing more."""
        logging.getLogger().removeHandler(self._interruptions)

    def say(self, line: str) -> None:
        """A line that stays."""
        self._drawn = 0
        self._say(line)

    def show(self, now: float, stats: Stats, refresh: Callable[[], None]) -> None:
        """Shows the table where it is time; call it often.

        Args:
            now: the clock of the router's requests.
            stats: of the router.
            refresh: called before a table, to read what is to be shown.
        """
        if self._warm_at is None:
            self.say(
                f"Warming up for {self._warm_up_s:.0f} s: caches are empty, and nothing is known"
                " yet of how fast the engines are. Then come the figures of the last minute."
            )
            self._warm_at = now + self._warm_up_s
            stats.begin(self._warm_at)
            self._next_at = self._warm_at + self._first_after_s
        if now < self._next_at:
            return
        self._next_at = now + self._every_s
        refresh()
        lines = stats.table(now - self._warm_at)
        if self._drawn and not self._interruptions.seen:
            lines[0] = _UP_AND_CLEAR.format(lines=self._drawn) + lines[0]
        self._say("\n".join(lines))
        self._interruptions.seen = False
        self._drawn = len(lines) if self._in_place else 0
