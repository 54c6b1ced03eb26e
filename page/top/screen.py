"""A terminal's screen that follows a service, with keys."""

import curses
import time
from contextlib import suppress
from typing import Final

from console.terminal import printable
from page.top.fleet import Fleet
from page.top.lines import (
    Line,
    Order,
    Tone,
    chosen_of,
    duration,
    head_of,
    rows_of,
    segments_of,
)
from page.top.watching import Look, Watcher

TOP_STALE_S: Final = 5.0  # longer without an answer is said
TOP_TURN_S: Final = 0.1  # until a key, or a newer answer, shows

_ENTER: Final = frozenset({10, 13, curses.KEY_ENTER})
_ERASE: Final = frozenset({8, 127, curses.KEY_BACKSPACE})
_ESCAPE: Final = 27
_KEYS: Final = "q quit  s sort  r reverse  / filter  arrows, PgUp, PgDn, Home: scroll"


class Screen:
    """What is shown, and by which keys that changes."""

    def __init__(self, window: "curses.window", order: Order, wanted: str) -> None:
        """Args:
        window: of the terminal.
        order, wanted: see `chosen_of`.
        """
        self._window = window
        self._order = order
        self._wanted = wanted
        self._is_reversed = False
        self._typed: str | None = None  # while a filter is typed
        self._top = 0  # instances that are scrolled away
        self._styles = _styles()
        window.timeout(round(1000 * TOP_TURN_S))
        with suppress(curses.error):
            curses.curs_set(0)

    def follow(self, watcher: Watcher) -> None:
        """Until `q`."""
        shown: tuple[object, ...] = ()
        while True:
            look = watcher.look
            state = (look, self._order, self._is_reversed, self._wanted, self._typed, self._top)
            now = (*state, self._window.getmaxyx(), int(time.time()))
            if now != shown:
                self._draw(look, time.time())
                shown = now
            key = self._window.getch()
            if key != -1 and not self._take(key):
                return

    def _take(self, key: int) -> bool:
        """Whether it goes on after that key."""
        if self._typed is not None:
            self._type(key)
            return True
        page = max(self._window.getmaxyx()[0] // 2, 1)
        steps = {
            curses.KEY_DOWN: 1,
            curses.KEY_UP: -1,
            curses.KEY_NPAGE: page,
            curses.KEY_PPAGE: -page,
        }
        if key in (ord("q"), ord("Q")):
            return False
        if key == ord("s"):
            orders = list(Order)
            self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        elif key == ord("r"):
            self._is_reversed = not self._is_reversed
        elif key == ord("/"):
            self._typed = ""
        elif key == _ESCAPE:
            self._wanted = ""
        elif key == curses.KEY_HOME:
            self._top = 0
        elif key in steps:
            self._top = max(self._top + steps[key], 0)
        return True

    def _type(self, key: int) -> None:
        typed = self._typed or ""
        if key in _ENTER:
            self._wanted, self._typed, self._top = typed, None, 0
        elif key == _ESCAPE:
            self._typed = None
        elif key in _ERASE:
            self._typed = typed[:-1]
        elif 32 <= key < 127:
            self._typed = typed + chr(key)

    def _draw(self, look: Look, now: float) -> None:
        height, _ = self._window.getmaxyx()
        self._window.erase()
        above = _above(look, now)
        below = [Line(self._foot(), Tone.HEAD)]
        table: list[Line] = []
        if look.fleet is not None:
            below = [*segments_of(look.fleet.segments)[: max(height // 3, 1)], *below]
            table = self._table(look.fleet, height - len(above) - len(below), now)
        for place, line in enumerate(above + table):
            self._put(place, line, height - len(below))
        for place, line in enumerate(below):
            self._put(height - len(below) + place, line, height)
        self._window.refresh()

    def _table(self, fleet: Fleet, room: int, now: float) -> list[Line]:
        rows = chosen_of(
            fleet.instances, self._order, is_reversed=self._is_reversed, wanted=self._wanted
        )
        self._top = min(self._top, max(len(rows) - max(room - 1, 1), 0))
        lines = rows_of(rows, now)
        return [lines[0], *lines[1 + self._top :]]

    def _foot(self) -> str:
        if self._typed is not None:
            return f"filter (Enter, Escape): {self._typed}_"
        way = ", reversed" if self._is_reversed else ""
        only = printable(f", only: {self._wanted} (Escape: all)") if self._wanted else ""
        return f"by {self._order}{way}{only}   {_KEYS}"

    def _put(self, place: int, line: Line, end: int) -> None:
        if not 0 <= place < end:
            return
        width = self._window.getmaxyx()[1]
        # The terminal may have become smaller since, and its last cell cannot be written.
        with suppress(curses.error):
            self._window.addnstr(place, 0, line.text, max(width - 1, 1), self._styles[line.tone])


def _above(look: Look, now: float) -> list[Line]:
    fleet = look.fleet
    lines = [] if fleet is None else head_of(fleet)
    if look.problem:
        old = "" if fleet is None else f" This is {duration(now - fleet.at)} old."
        lines = [Line(printable(f"{look.problem}{old}"), Tone.BAD), *lines]
    elif fleet is None:
        lines = [Line("Waiting for the first answer")]
    elif now - fleet.at > TOP_STALE_S:
        text = f"It has not answered for {duration(now - fleet.at)}"
        lines = [Line(text, Tone.DOUBT), *lines]
    return lines


def _styles() -> dict[Tone, int]:
    styles = {tone: curses.A_NORMAL for tone in Tone} | {Tone.HEAD: curses.A_BOLD}
    with suppress(curses.error):  # a terminal without colours: words say it, too
        curses.start_color()
        curses.use_default_colors()
        colours = {
            Tone.GOOD: curses.COLOR_GREEN,
            Tone.DOUBT: curses.COLOR_YELLOW,
            Tone.BAD: curses.COLOR_RED,
        }
        for number, (tone, colour) in enumerate(colours.items(), 1):
            curses.init_pair(number, colour, -1)
            styles[tone] = curses.color_pair(number)
    return styles
