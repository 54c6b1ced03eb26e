from brokers.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.take() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_success_makes_the_next_pause_the_first_again() -> None:
    backoff = Backoff(0.5, 3.0)
    backoff.take()
    backoff.take()
    backoff.reset()
    assert backoff.take() == 0.5


def test_pauses_may_stay_the_same() -> None:
    backoff = Backoff(1.0, 1.0)
    assert [backoff.take() for _ in range(3)] == [1.0, 1.0, 1.0]
