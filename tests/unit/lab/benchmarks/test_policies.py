"""What is made of the requests of a drive; that all of it works is in `tests/integration`."""

import pytest

from lab.benchmarks.embedded import policies
from lab.benchmarks.routing.drive import load_of
from lab.benchmarks.routing.outcomes import Drive, SentRequest, figures_of, promise_errors
from routing.costs import Costs
from routing.policies.assignments import parse_assignments


def sent(number: int, **fields: object) -> SentRequest:
    values = {"prompt_tokens": 100, "at": 0.0, "instance_id": "a", "is_done": True, **fields}
    return SentRequest(number=number, **values)  # type: ignore[arg-type]


def drive(*requests: SentRequest) -> Drive:
    return Drive(list(requests), [0.001], 0.0)


def test_the_same_seed_asks_the_same_at_the_same_times() -> None:
    first, again, other = (load_of(seed, 10.0, 30, 5) for seed in (1, 1, 2))
    assert first == again != other
    assert (len(first.turns), len(first.at_s), first.warmup) == (35, 35, 5)
    assert list(first.at_s) == sorted(first.at_s)


def test_a_longer_load_begins_as_a_shorter_one() -> None:
    short, long = load_of(1, 10.0, 10, 0), load_of(1, 10.0, 20, 0)
    assert list(long.turns[:10]) == list(short.turns)
    assert list(long.at_s[:10]) == list(short.at_s)


def test_hit_rates_are_of_tokens_that_engines_have_told_of() -> None:
    one = drive(
        sent(0, cached_tokens=80, promised_tokens=96),
        sent(1, prompt_tokens=300, cached_tokens=40),
        sent(2, is_done=False, ttft_s=9.0),
    )
    assert one.hit_rate == 0.3
    assert one.promised_hit_rate == 0.24


def test_what_was_never_done_counts_with_its_time_so_far() -> None:
    one = drive(sent(0, ttft_s=1.0), sent(1, is_done=False, ttft_s=9.0))
    assert one.mean_ttft_s == 5.0
    first = figures_of("any", one)[0]
    assert "1 had no first token in the end" in first.note


def test_shares_are_of_all_requests() -> None:
    one = drive(
        sent(0, ttft_s=5.0),
        sent(1, ttft_s=5.1),
        sent(2, is_done=False, ttft_s=3.0),
        sent(3, is_done=False, refused=True, would_have_had_s=5.0),
        sent(4, is_done=False, refused=True, would_have_had_s=6.0),
    )
    assert (one.within(5.0), one.refused(), one.refused_needlessly(5.0)) == (0.2, 0.4, 0.2)
    shares = {
        figure.name.partition(": ")[2]: figure.value for figure in policies.refusal_figures(one)
    }
    assert shares["sent, and late"] == 20.0
    assert len(one.served) == 3


def test_errors_of_promises_are_of_those_that_were_kept_or_not() -> None:
    requests = [sent(0, ttft_s=2.0, promised_s=1.0), sent(1, ttft_s=2.0), sent(2, is_done=False)]
    assert promise_errors(requests) == [0.5]


def test_outcomes_are_counted_for_each_engine() -> None:
    requests = [sent(n, instance_id="ab"[n % 2]) for n in range(7)]
    assert [one.number for one in policies._after(requests, 2)] == [4, 5, 6]


def test_costs_are_told_as_the_command_line_takes_them() -> None:
    told = parse_assignments(policies._text_of(policies.COSTS), Costs)
    assert told == policies.COSTS


@pytest.mark.parametrize("part", [policies.POLICIES, (policies.QUERY,)])
def test_a_machine_that_is_too_busy_is_said(part: tuple[str, ...]) -> None:
    late = Drive([sent(0, ttft_s=1.0)], [0.001], late_s=9.0)
    for name in part:
        assert figures_of(name, late)[0].limited == 1
        assert figures_of(name, drive(sent(0)))[0].limited == 0
