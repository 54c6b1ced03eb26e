"""Each policy by hand."""

import pytest

from routing.costs import Costs
from routing.interface import Candidate, Choice, Request
from routing.policies.hot_classes import HotClasses
from routing.policies.ranking import not_overloaded, tie_break
from routing.policies.table import POLICIES, PolicyError, find_policy, parse_policy

COSTS = Costs(prefill_tokens_per_s=1000.0, token_squared_s=0.0, fetch_tokens_per_s=10_000.0)
"""A token takes 1 ms to compute, and 0.1 ms to fetch."""


def rank(
    policy: str, candidates: list[Candidate], request: Request, costs: Costs = COSTS
) -> list[Choice]:
    name, parameters = parse_policy(policy)
    return find_policy(name).rank(request, candidates, costs, parameters)


def names(choices: list[Choice]) -> str:
    return "".join(choice.candidate.instance_id for choice in choices)


def holding(*cached: int, waits: tuple[float, ...] = ()) -> list[Candidate]:
    """Candidates a, b, c, ..., all on their GPUs."""
    each = waits or (0.0,) * len(cached)
    return [
        Candidate("abcdefgh"[place], tokens, tokens, wait)
        for place, (tokens, wait) in enumerate(zip(cached, each, strict=True))
    ]


def test_round_robin_goes_by_the_number_of_the_decision() -> None:
    order = [rank("round-robin", holding(0, 9, 0), Request(number, 10)) for number in range(4)]
    assert [names(choices) for choices in order] == ["abc", "bca", "cab", "abc"]


def test_random_takes_all_and_repeats_itself() -> None:
    candidates = holding(*[0] * 8)
    first = [names(rank("random", candidates, Request(n, 10, tie=n))) for n in range(400)]
    again = [names(rank("random", candidates, Request(n, 10, tie=n))) for n in range(400)]
    assert first == again
    chosen = [order[0] for order in first]
    assert all(30 <= chosen.count(name) <= 75 for name in "abcdefgh")


def test_least_loaded_begins_first() -> None:
    candidates = holding(9, 5, 0, waits=(2.0, 1.0, 0.5))
    assert names(rank("least-loaded", candidates, Request(0, 10))) == "cba"


def test_longest_prefix_looks_at_nothing_else() -> None:
    candidates = holding(5, 9, 7, waits=(0.0, 99.0, 0.0))
    assert names(rank("longest-prefix", candidates, Request(0, 10))) == "bca"


def test_longest_prefix_leaves_out_the_overloaded_where_it_is_told_to() -> None:
    candidates = holding(5, 9, 7, waits=(0.0, 99.0, 0.0))
    assert names(rank("longest-prefix:overload_s=30", candidates, Request(0, 10))) == "ca"


def test_nobody_is_left_out_where_all_are_overloaded() -> None:
    candidates = holding(5, 9, waits=(50.0, 99.0))
    assert not_overloaded(candidates, 30.0) == candidates
    assert not_overloaded(candidates, 50.0) == candidates[:1]  # the bound is allowed


class TestWeighted:
    """The example that goes round with the score: matches of a prompt of 8000 tokens."""

    MATCHES = (6000, 5000, 4096, 2048, 2048)

    def test_at_equal_load_the_longest_match_wins(self) -> None:
        choices = rank("weighted", holding(*self.MATCHES), Request(0, 8000))
        assert names(choices)[:3] == "abc"
        assert [-choice.key for choice in choices] == [
            pytest.approx(1 + share) for share in (0.75, 0.625, 0.512, 0.256, 0.256)
        ]

    def test_a_load_of_an_eighth_makes_up_for_a_thousand_tokens(self) -> None:
        # a: 0.75 + 1 - 0.125 = 1.625 = b's 0.625 + 1.
        just_less = holding(*self.MATCHES, waits=(1.249, 0.0, 0.0, 0.0, 0.0))
        just_more = holding(*self.MATCHES, waits=(1.251, 0.0, 0.0, 0.0, 0.0))
        assert names(rank("weighted", just_less, Request(0, 8000)))[0] == "a"
        assert names(rank("weighted", just_more, Request(0, 8000)))[0] == "b"

    def test_weights(self) -> None:
        candidates = holding(*self.MATCHES, waits=(9.0, 0.0, 0.0, 0.0, 0.0))
        request = Request(0, 8000)
        assert names(rank("weighted:beta=0", candidates, request))[0] == "a"
        assert names(rank("weighted:alpha=0", candidates, request))[-1] == "a"
        (best, *_) = rank("weighted:alpha=2,beta=0.5", candidates, request)
        assert -best.key == pytest.approx(2 * 0.625 + 0.5)

    def test_load_ends_at_one(self) -> None:
        candidates = holding(100, 0, waits=(10.0, 29.0))
        keys = [-choice.key for choice in rank("weighted", candidates, Request(0, 100))]
        assert keys == [1.0, 0.0]

    def test_the_overloaded_are_left_out(self) -> None:
        candidates = holding(100, 0, waits=(30.1, 29.0))
        assert names(rank("weighted", candidates, Request(0, 100))) == "b"

    def test_an_empty_prompt_goes_by_load(self) -> None:
        candidates = holding(0, 0, waits=(3.0, 1.0))
        assert names(rank("weighted", candidates, Request(0, 0))) == "ba"


class TestAlgorithm1:
    """Prompt of 1000 tokens; 1 ms to compute one, 0.1 ms to fetch one."""

    def test_without_a_fetch_it_is_wait_and_prefill(self) -> None:
        candidates = holding(800, 500, 0, waits=(0.5, 0.0, 0.0))
        choices = rank("algorithm-1:fetch=off", candidates, Request(0, 1000))
        terms = [(c.candidate.instance_id, c.queue_s, c.prefill_s, c.key) for c in choices]
        # b: 0 + 500 ms; a: 500 + 200 ms; c: 1000 ms.
        assert terms == [
            ("b", 0.0, 0.5, 0.5),
            ("a", 0.5, pytest.approx(0.2), pytest.approx(0.7)),
            ("c", 0.0, 1.0, 1.0),
        ]
        assert all(choice.fetch_from == "" for choice in choices)

    def test_who_has_much_less_fetches_the_difference(self) -> None:
        candidates = holding(800, 500, 0, waits=(0.5, 0.0, 0.0))
        choices = rank("algorithm-1", candidates, Request(0, 1000))
        terms = [(c.candidate.instance_id, c.fetch_from, c.prefix, c.transfer_s) for c in choices]
        # b: 30 ms to fetch 300, 200 to compute; c: 80 to fetch 800, 200; a: 500 to wait, 200.
        assert terms == [
            ("b", "a", 800, pytest.approx(0.03)),
            ("c", "a", 800, pytest.approx(0.08)),
            ("a", "", 800, 0.0),
        ]
        keys = [choice.key for choice in choices]
        assert keys == [pytest.approx(0.23), pytest.approx(0.28), pytest.approx(0.7)]

    def test_the_threshold_is_a_ratio_and_must_be_exceeded(self) -> None:
        at = rank("algorithm-1", holding(750, 500), Request(0, 1000))  # 750 = 1.5 * 500
        above = rank("algorithm-1", holding(751, 500), Request(0, 1000))
        assert [c.fetch_from for c in at] == ["", ""]
        assert {c.candidate.instance_id: c.fetch_from for c in above} == {"a": "", "b": "a"}

    def test_another_threshold(self) -> None:
        spec = "algorithm-1:kvcache_balancing_threshold=4"
        choices = rank(spec, holding(800, 201, 199), Request(0, 1000))
        assert {c.candidate.instance_id: c.fetch_from for c in choices} == {
            "a": "",
            "b": "",
            "c": "a",
        }

    def test_nobody_fetches_where_nobody_has_anything(self) -> None:
        choices = rank("algorithm-1", holding(0, 0, waits=(0.1, 0.0)), Request(0, 1000))
        assert [(c.candidate.instance_id, c.fetch_from) for c in choices] == [("b", ""), ("a", "")]

    def test_it_fetches_even_where_computing_is_cheaper(self) -> None:
        slow = Costs(prefill_tokens_per_s=1000, token_squared_s=0, fetch_tokens_per_s=100)
        choices = rank("algorithm-1", holding(800, 100, waits=(1.0, 0.0)), Request(0, 1000), slow)
        assert {c.candidate.instance_id: c.key for c in choices} == {
            "a": pytest.approx(1.2),
            "b": pytest.approx(7.2),  # 900 ms if it computed
        }


class TestLeastDelay:
    def test_where_nothing_comes_it_is_the_time(self) -> None:
        candidates = holding(800, 500, waits=(0.5, 0.0))
        choices = rank("least-delay", candidates, Request(0, 1000))
        assert names(choices) == "ba"
        assert [choice.key for choice in choices] == pytest.approx([0.55, 0.72])

    def test_where_others_come_their_waits_count(self) -> None:
        candidates = [one._replace(others=8.0) for one in holding(800, 500, waits=(0.5, 0.0))]
        choices = rank("least-delay", candidates, Request(0, 1000))
        # 0.2 s behind 0.5: 8 * 0.2 * 0.6; 0.5 s behind nothing: 8 * 0.5 * 0.25.
        assert [choice.key for choice in choices] == pytest.approx([0.55 + 1.0, 0.72 + 0.96])
        assert names(choices) == "ba"
        assert names(rank("least-delay:others=9", candidates, Request(0, 1000))) == "ab"

    def test_of_equals_the_one_to_which_less_comes(self) -> None:
        a, b, c = holding(0, 0, 0)
        candidates = [a._replace(others=2.0), b._replace(others=1.0), c._replace(others=3.0)]
        assert names(rank("least-delay", candidates, Request(0, 100))) == "bac"

    def test_what_is_fetched_keeps_it_busy_too(self) -> None:
        a, b = holding(800, 700, waits=(5.0, 0.0))
        candidates = [a, b._replace(others=10.0)]
        (best, _) = rank("least-delay:fetch=on", candidates, Request(0, 1000))
        assert (best.candidate.instance_id, best.fetch_from) == ("b", "a")
        assert best.key == pytest.approx(0.01 + 1.1 * 0.2 + 10 * 0.21 * 0.105)


class TestWaitAndWork:
    def test_computing_counts_twice(self) -> None:
        candidates = holding(800, 500, waits=(0.5, 0.0))
        choices = rank("wait-and-work", candidates, Request(0, 1000))
        assert names(choices) == "ab"
        # 0.5 + 2 * 0.2, and 2 * 0.5; by time alone b would win.
        assert [choice.key for choice in choices] == pytest.approx([0.9, 1.0])

    def test_without_a_charge_for_work_it_is_the_time(self) -> None:
        candidates = holding(800, 500, waits=(0.5, 0.0))
        assert names(rank("wait-and-work:work=0", candidates, Request(0, 1000))) == "ba"

    def test_it_fetches_where_that_is_cheaper(self) -> None:
        candidates = holding(800, 700, waits=(5.0, 0.0))
        (best, _) = rank("wait-and-work:fetch=on", candidates, Request(0, 1000))
        assert (best.candidate.instance_id, best.fetch_from, best.prefix) == ("b", "a", 800)
        slow = Costs(prefill_tokens_per_s=1000, token_squared_s=0, fetch_tokens_per_s=100)
        (best, _) = rank("wait-and-work:fetch=on", candidates, Request(0, 1000), slow)
        assert (best.candidate.instance_id, best.fetch_from) == ("b", "")


class TestBlocks:
    """The example of Conductor's guide for routers: 64 blocks of 16 tokens."""

    A = Candidate("a", 896, gpu=512, disk=128, pending=512, active=1024, shared=896)
    B = Candidate("b", 512, gpu=256, pending=0, active=512, shared=512)

    def test_who_holds_less_wins_where_the_other_has_more_to_do(self) -> None:
        choices = rank("blocks", [self.A, self.B], Request(0, 1024))
        assert [(choice.candidate.instance_id, choice.key) for choice in choices] == [
            ("b", 100.0),
            ("a", 122.0),
        ]

    def test_what_is_cached_lowers_the_work_of_this_request_alone(self) -> None:
        busy = Candidate("a", 1024, gpu=1024, pending=160)
        (choice,) = rank("blocks:gpu=1", [busy], Request(0, 512))
        assert choice.key == 160 / 16 + 512 / 16  # and the prompt is held afterwards

    def test_weights(self) -> None:
        (choice,) = rank("blocks:cpu=0,disk=0,scale=2,block=1", [self.A], Request(0, 1024))
        assert choice.key == 2 * (512 + 1024 - 512) + 1024 + 1024 - 896

    def test_the_prompt_is_held_by_whoever_gets_it(self) -> None:
        idle = Candidate("idle")
        decoding = Candidate("decoding", cached=400, gpu=400, active=700, shared=400)
        choices = rank("blocks:block=1", [idle, decoding], Request(0, 1000))
        keys = {choice.candidate.instance_id: choice.key for choice in choices}
        assert keys == {"idle": 1000 + 1000, "decoding": 600 + 700 + 600}


def in_flight(*cached: int, requests: tuple[int, ...]) -> list[Candidate]:
    return [
        one._replace(requests=count) for one, count in zip(holding(*cached), requests, strict=True)
    ]


class TestLmetric:
    def test_it_is_a_product(self) -> None:
        choices = rank("lmetric", in_flight(800, 500, 0, requests=(3, 0, 2)), Request(0, 1000))
        assert [(c.candidate.instance_id, c.key) for c in choices] == [
            ("b", 500.0),
            ("a", 800.0),
            ("c", 3000.0),
        ]

    def test_a_prompt_that_is_cached_whole_still_goes_by_load(self) -> None:
        choices = rank("lmetric", in_flight(1000, 1000, requests=(3, 1)), Request(0, 1000))
        assert [(c.candidate.instance_id, c.key) for c in choices] == [("b", 2.0), ("a", 4.0)]

    def test_those_who_hold_the_beginning_of_a_hot_class_are_left_out(self) -> None:
        candidates = in_flight(800, 64, 63, requests=(0, 0, 9))
        hot = Request(0, 1000, class_tokens=64, is_hot=True)
        assert names(rank("lmetric", candidates, hot)) == "c"
        assert names(rank("lmetric:guard=off", candidates, hot)) == "abc"
        assert names(rank("lmetric", candidates, hot._replace(is_hot=False))) == "abc"

    def test_where_all_hold_it_nobody_is(self) -> None:
        hot = Request(0, 1000, class_tokens=64, is_hot=True)
        assert names(rank("lmetric", holding(800, 64), hot)) == "ab"


class TestHotClasses:
    def test_a_class_is_hot_after_twice_as_many_alarms_as_it_has_holders(self) -> None:
        classes = HotClasses()
        # One of four holds it: above a quarter of the arrivals.
        assert [classes.note("a", 1, 4) for _ in range(5)] == [False, False, True, True, True]
        assert classes.note("a", 0, 4) is False, "nobody can be left out"
        assert [classes.note("a", 2, 4) for _ in range(5)] == [False] * 4 + [True]
        assert classes.note("a", 4, 4) is False, "all hold it"

    def test_one_that_its_holders_can_serve_is_not(self) -> None:
        classes = HotClasses()
        hot = [classes.note(number % 5, 1, 4) for number in range(100)]
        assert not any(hot[20:]), "a fifth each, of which one of four can take a quarter"

    def test_alarms_count_in_a_row(self) -> None:
        classes = HotClasses()
        classes.note("a", 1, 4)
        classes.note("a", 1, 4)
        for _ in range(9):
            classes.note("b", 4, 4)
        assert classes.note("a", 1, 4) is False
        for _ in range(3):
            classes.note("a", 1, 4)
        assert classes.note("a", 1, 4) is True

    def test_only_the_window_counts_and_is_remembered(self) -> None:
        classes = HotClasses(window=4)
        for _ in range(8):
            classes.note("a", 1, 4)
        for number in range(4):
            classes.note(number, 4, 4)
        assert classes.note("a", 1, 4) is False, "a quarter, and its alarms are forgotten"
        assert classes.note("a", 1, 4) is False
        assert len(classes) <= 4


class TestSticky:
    """Who has 80 % of the best is kept to."""

    def test_the_fewest_tokens_in_flight_among_those_who_hold_most(self) -> None:
        candidates = [
            Candidate("a", 1000, pending=900),
            Candidate("b", 800, pending=500),
            Candidate("c", 799, pending=0),
        ]
        assert names(rank("sticky", candidates, Request(0, 2000))) == "ba"
        assert names(rank("sticky:share=1", candidates, Request(0, 2000))) == "a"

    def test_all_are_looked_at_where_those_would_begin_much_later(self) -> None:
        kept = [Candidate("a", 1000, 1000, 3.0, pending=24), Candidate("b", 0, 0, 1.0, pending=8)]
        late = [kept[0], kept[1]._replace(wait_s=0.9)]
        assert names(rank("sticky", kept, Request(0, 2000))) == "a"
        assert names(rank("sticky", late, Request(0, 2000))) == "ba"
        assert names(rank("sticky:max_penalty_s=2.2", late, Request(0, 2000))) == "a"

    def test_where_nobody_holds_anything_it_goes_by_tokens_in_flight(self) -> None:
        candidates = [Candidate("a", pending=9), Candidate("b", pending=3)]
        assert names(rank("sticky", candidates, Request(0, 2000))) == "ba"


def test_what_is_not_on_the_gpu_must_be_loaded() -> None:
    costs = Costs(prefill_tokens_per_s=1000, token_squared_s=0, load_tokens_per_s=2000)
    candidates = [Candidate("a", 800, 200, 0.0), Candidate("b", 600, 600, 0.0)]
    choices = rank("algorithm-1:fetch=off", candidates, Request(0, 1000), costs)
    assert names(choices) == "ba"
    assert [choice.load_s for choice in choices] == pytest.approx([0.0, 0.3])
    assert [choice.key for choice in choices] == pytest.approx([0.4, 0.5])


def test_equals_take_turns_by_the_decision_whatever_their_order() -> None:
    candidates = holding(0, 0, 0)
    chosen = [names(rank("weighted", candidates, Request(n, 10, tie=n))) for n in range(60)]
    assert {order[0] for order in chosen} == set("abc")
    for number, order in enumerate(chosen):
        assert list(order) == sorted("abc", key=lambda name: tie_break(number, name))
        assert order == names(rank("weighted", candidates[::-1], Request(number, 10, tie=number)))


@pytest.mark.parametrize("name", POLICIES)
def test_all_answer_for_one_candidate(name: str) -> None:
    assert names(rank(name, holding(5), Request(3, 10))) == "a"


class TestCosts:
    def test_a_hit_of_half_saves_half_of_the_linear_work_and_a_quarter_of_attention(self) -> None:
        linear = Costs(token_squared_s=0.0)
        assert linear.prefill_s(8000, 4000) == 0.5 * linear.prefill_s(8000, 0) == 0.5
        attention = Costs(prefill_tokens_per_s=float("inf"))
        assert attention.prefill_s(8000, 4000) == pytest.approx(0.75 * attention.prefill_s(8000, 0))

    def test_defaults(self) -> None:
        assert Costs().prefill_s(131_072, 0) == pytest.approx(26.69, abs=0.01)
        assert Costs(fixed_s=0.5).prefill_s(0, 0) == 0.5


class TestTable:
    def test_an_unknown_policy_names_the_known(self) -> None:
        with pytest.raises(PolicyError, match=r"round-robin, random, .*, got: fastest"):
            parse_policy("fastest")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("weighted:gamma=1", "Policy weighted: expected parameters of alpha, beta, .*: gamma"),
            ("weighted:alpha", "expected NAME=VALUE, got: alpha"),
            ("weighted:alpha=1,alpha=2", "expected alpha once"),
            ("weighted:alpha=-1", "alpha must be a number of at least 0, in"),
            ("weighted:alpha=nan", "alpha must be a number of at least 0"),
            ("algorithm-1:fetch=perhaps", "fetch must be true or false"),
            ("algorithm-1:kvcache_balancing_threshold=0.5", "must be a number of at least 1, in"),
            ("round-robin:alpha=1", "expected parameters of none, got: alpha"),
        ],
    )
    def test_a_wrong_parameter_is_named(self, text: str, message: str) -> None:
        with pytest.raises(PolicyError, match=message):
            parse_policy(text)

    def test_parameters_are_read(self) -> None:
        name, parameters = parse_policy("algorithm-1:fetch=off, kvcache_balancing_threshold=2")
        assert name == "algorithm-1"
        assert parameters == POLICIES["algorithm-1"].parameters(
            fetch=False, kvcache_balancing_threshold=2.0
        )
