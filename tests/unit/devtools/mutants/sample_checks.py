"""Run by test_mutants.py alone; it leaves the bound of `Window.take` untested on purpose."""

from tests.unit.devtools.mutants.sample import Window


def test_a_window_takes_what_is_not_below() -> None:
    window = Window()
    assert [window.take(number) for number in (0, 5, 7)] == [False, True, True]
    assert window.seen == [5, 7]
    assert window.size == 2
