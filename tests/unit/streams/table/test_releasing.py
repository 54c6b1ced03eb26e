"""How much of a large clear is released at once."""

from streams.table.releasing import MAINTAINED_S, release_some


def released(entries: int, *, left: int, step_s: float) -> tuple[int, int]:
    """How many calls, and what is left."""
    now, calls = 0.0, 0

    def release(most: int) -> int:
        nonlocal now, calls, left
        assert 0 < most <= 2048
        now += step_s
        calls += 1
        left = max(left - most, 0)
        return left

    release_some(release, entries, clock=lambda: now)
    return calls, left


def test_no_more_is_released_than_asked_for() -> None:
    assert released(5000, left=9000, step_s=0.0) == (3, 9000 - 5000)
    assert released(2, left=9000, step_s=0.0) == (1, 8998)


def test_it_ends_where_nothing_is_left() -> None:
    assert released(100_000, left=4096, step_s=0.0) == (2, 0)


def test_it_ends_where_it_takes_long() -> None:
    assert released(100_000, left=100_000, step_s=MAINTAINED_S) == (1, 100_000 - 2048)
    assert released(100_000, left=100_000, step_s=MAINTAINED_S / 2.5)[0] == 3
