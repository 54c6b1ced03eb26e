"""Other routers' policies, by hand."""

import pytest

from lab.whatif.policies.table import COMPARED_ONLY, parse
from routing.costs import Costs
from routing.interface import Candidate, Request
from routing.policies.table import POLICIES, PolicyError, parse_policy


def order(policy: str, prompt: int, *candidates: tuple[int, int]) -> str:
    """Candidates a, b, c, ... by what they hold and how many requests they have."""
    found, parameters = parse(policy)
    given = [
        Candidate("abcd"[place], cached, cached, requests=requests)
        for place, (cached, requests) in enumerate(candidates)
    ]
    choices = found.rank(Request(0, prompt), given, Costs(), parameters)
    return "".join(choice.candidate.instance_id for choice in choices)


def test_nobody_routes_by_them() -> None:
    assert not set(COMPARED_ONLY) & set(POLICIES)
    for name in COMPARED_ONLY:
        with pytest.raises(PolicyError, match="Expected a policy of"):
            parse_policy(name)


def test_two_tier_goes_by_the_prefix_where_it_is_long_and_counts_are_even() -> None:
    assert order("two-tier", 100, (0, 0), (51, 32), (60, 32)) == "cba"
    assert order("two-tier", 100, (0, 0), (50, 32), (20, 1)) == "acb"
    assert order("two-tier", 100, (0, 0), (90, 33), (20, 1)) == "acb"
    assert order("two-tier", 100, (90, 7), (90, 5), (0, 0)) == "bac"  # equals by their requests
    assert order("two-tier:ratio=9", 100, (0, 10), (90, 60)) == "ba"


def test_loadaware_weighs_the_share_against_the_load() -> None:
    # The mean is 2: shares of 0, 0.5 and 1 against loads of -0.5, 0 and 0.5.
    assert order("loadaware:beta=0.9", 100, (0, 1), (50, 2), (100, 3)) == "cba"
    assert order("loadaware:beta=1.1", 100, (0, 1), (50, 2), (100, 3)) == "abc"


def test_kvaware_looks_at_load_only_where_much_is_missing() -> None:
    assert order("kvaware", 5_000, (3_000, 99), (2_999, 0)) == "ab"
    assert order("kvaware", 5_001, (3_000, 99), (2_999, 0)) == "ba"
    assert order("kvaware", 1_000, (0, 5), (0, 4)) == "ba"


def test_aibrix_leaves_out_those_that_are_far_busier() -> None:
    assert order("aibrix", 100, (0, 0), (90, 9)) == "ab"
    assert order("aibrix", 100, (0, 0), (90, 8), (50, 4)) == "c"  # 8 > 4 + 3.3
    assert order("aibrix:deviations=2", 100, (0, 0), (90, 8), (50, 4)) == "bc"
    assert order("aibrix", 100, (0, 3), (0, 2)) == "ba"
