import logging

from lab.demo.board import Board
from lab.traffic.stats import Stats


class Screen:
    """What was said; `refreshed` counts."""

    def __init__(self, *, in_place: bool) -> None:
        self.said: list[str] = []
        self.refreshed = 0
        self.stats = Stats()
        self.board = Board(self.said.append, in_place=in_place, warm_up_s=20.0, first_after_s=10.0)

    def show(self, *times: float) -> None:
        for now in times:
            self.board.show(now, self.stats, self._refresh)

    def _refresh(self) -> None:
        self.refreshed += 1


def test_a_warm_up_is_said_to_be_one_and_its_requests_do_not_count() -> None:
    screen = Screen(in_place=False)
    screen.show(100.0, 110.0, 129.9)
    assert len(screen.said) == 1
    assert screen.said[0].startswith("Warming up for 20 s")
    assert screen.stats._begins_at == 120.0
    screen.show(130.0)
    assert screen.said[1].startswith("\nThe last 10 s:")
    assert screen.refreshed == 1


def test_a_table_comes_now_and_then_where_it_stays() -> None:
    screen = Screen(in_place=False)
    screen.show(0.0, 30.0, 33.0, 59.0, 60.0)
    assert len(screen.said) == 3
    assert not any("\x1b" in said for said in screen.said)


def test_on_a_terminal_it_is_redrawn_where_nothing_came_between() -> None:
    screen = Screen(in_place=True)
    screen.show(0.0, 30.0, 33.0)
    lines = screen.said[1].count("\n") + 1
    assert screen.said[2] == f"\x1b[{lines}F\x1b[J{screen.said[1].replace('10 s', '13 s')}"
    screen.board.say("Try it")
    screen.show(36.0)
    assert "\x1b" not in screen.said[-1]
    logging.getLogger("of.a.service").warning("for a test")
    screen.show(39.0)
    assert "\x1b" not in screen.said[-1]
    screen.show(42.0)
    assert screen.said[-1].startswith("\x1b[")
    screen.board.close()
    assert screen.board._interruptions not in logging.getLogger().handlers
