import pytest

from lab.traffic.scoring import Scorer, Target, Weights

A, B, C = Target("a", 0), Target("b", 0), Target("b", 1)


def test_longest_prefix_wins_among_equally_loaded_targets() -> None:
    scorer = Scorer([A, B, C])
    assert scorer.choose({A: 16, C: 64}, 100) == C


def test_idle_target_wins_where_nothing_is_cached() -> None:
    scorer = Scorer([A, B, C], Weights(overload=10))
    scorer.record(A, 100)
    scorer.record(C, 50)
    assert scorer.choose({}, 100) == B


def test_a_prefix_that_all_share_does_not_send_everything_to_one() -> None:
    scorer = Scorer([A, B, C])
    chosen = []
    for _ in range(30):
        # Only A holds the shared system prompt: the others were never asked.
        target = scorer.choose({A: 90}, 100)
        scorer.record(target, 10 if target == A else 100)
        chosen.append(target)
    assert {A, B, C} == set(chosen)


def test_overloaded_target_is_left_out_whatever_it_holds() -> None:
    scorer = Scorer([A, B], Weights(alpha=100, overload=1.5))
    scorer.record(A, 1000)
    assert scorer.choose({A: 100}, 100) == B


def test_score_is_cached_share_less_load() -> None:
    scorer = Scorer([A, B], Weights(alpha=1.0, beta=0.5, fade=0.5))
    assert scorer.score(A, 50, 100) == 0.5 + 0.5
    scorer.record(A, 100)
    assert scorer.score(A, 50, 100) == 0.5
    scorer.record(B, 100)
    assert scorer.score(A, 50, 100) == 0.5 + 0.5 * (1 - 0.5)


def test_empty_prompt_has_a_score() -> None:
    assert Scorer([A]).choose({}, 0) == A


def test_impossible_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected at least one target"):
        Scorer([])
    with pytest.raises(ValueError, match="Expected overload"):
        Scorer([A], Weights(overload=0.5))
