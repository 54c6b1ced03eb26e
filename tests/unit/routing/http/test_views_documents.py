"""Documents of folds, and what is left out of them."""

from collections.abc import Sequence

import msgspec
import pytest

from routing.advice.advice import AdviceRules, HeldPrefix, Instance, advise
from routing.http.models import PrefixHolder
from routing.http.views_documents import (
    advice_document,
    prefixes_document,
    promises_document,
)
from routing.observed.decay import HOT_RATE_S, per_second
from routing.observed.hot_prefixes import view
from routing.observed.observations import Observations
from routing.observed.promise_totals import GroupBy
from schemas.routing_records import CandidateRecord, DecidedScope, OutcomeEvent, Target
from tests.unit.routing.observed.records import (
    RUN,
    SCOPE,
    a_decision,
    an_outcome,
    marks_of,
)

OTHERS = SCOPE._replace(tenant_id="acme")
MARKS = marks_of((1, 11), (2, 2**64 - 1))


def seen() -> Observations:
    """Of `a` three decisions for 1000 tokens, of another tenant one, and one that is refused."""
    found = Observations()
    found.advance(600.0)
    candidates = [CandidateRecord("a", 0, cached=480, predicted=80, prefix=480)]
    for number, state in enumerate(["exact", "stale", "exact"]):
        found.decided(
            RUN,
            a_decision(
                number,
                candidates=candidates,
                held=640,
                state=state,
                predicted_s=1.0,
                p90=1.5,
                marks=MARKS,
            ),
        )
    found.decided(RUN, a_decision(3, scope=OTHERS))
    found.decided(RUN, a_decision(4, chosen=-1))
    for number, cached in enumerate([480, 160]):
        outcome = an_outcome(
            number, OutcomeEvent.COMPLETED, cached_tokens=cached, ttft_s=1.0 + number
        )
        found.reported(RUN, outcome)
    return found


def test_the_promises_of_an_instance_are_sums_and_shares_of_its_prompts() -> None:
    document = promises_document(seen(), GroupBy.INSTANCE)
    assert (document.by, document.open) == ("instance", 2)
    names = [(row.tenant_id, row.name, row.decisions, row.refused) for row in document.rows]
    assert names == [("acme", "a", 1, 0), ("default", "", 1, 1), ("default", "a", 3, 0)]
    row = document.rows[2]
    assert (row.reported, row.tokens.prompt, row.tokens.promised, row.tokens.actual) == (
        *(2, 2000, 960, 640),
    )
    lost = row.lost
    assert (lost.workload.tokens, lost.routing.tokens, lost.index.tokens) == (720, 320, 320)
    assert (lost.index.stale, lost.index.predicted, lost.index.evicted) == (240, 80, 0)
    assert (lost.workload.share, lost.index.share) == (0.36, 0.16)
    assert [(bucket.le, bucket.count) for bucket in row.over_promises if bucket.count] == [
        (0.0, 1),
        (0.5, 1),
    ]
    assert row.over_promises[-1].le is None


def test_times_are_means_with_the_share_within_the_90th_percentile() -> None:
    first = promises_document(seen(), GroupBy.MODEL, admits="default".__eq__).rows[0].ttft
    assert (first.count, first.promised_ms, first.actual_ms) == (2, 1000.0, 1500.0)
    assert first.within_p90 == 0.5
    assert first.error == pytest.approx(1 / 3, abs=1e-6)


def test_of_nothing_there_are_no_shares() -> None:
    (row,) = promises_document(seen(), GroupBy.POLICY, admits="acme".__eq__).rows
    assert row.name == "wait-and-work"
    assert (row.lost.workload.share, row.ttft.actual_ms, row.ttft.within_p90) == (0.0, 0.0, 0.0)
    assert promises_document(Observations(), GroupBy.POLICY).rows == []


def test_only_minutes_since_then_count() -> None:
    assert promises_document(seen(), GroupBy.MODEL, since=659.0).rows
    assert not promises_document(seen(), GroupBy.MODEL, since=660.0).rows


def nobody(scope: DecidedScope, prefix: int) -> Sequence[PrefixHolder]:
    return ()


def test_prefixes_have_their_hashes_as_text_and_who_holds_them() -> None:
    def holders_of(scope: DecidedScope, prefix: int) -> Sequence[PrefixHolder]:
        ranks = [0, 1] if prefix == 11 else [0]
        return [PrefixHolder(instance_id="a", dp_rank=rank, medium="GPU") for rank in ranks]

    scopes = view(seen().hot, 600.0)
    document = prefixes_document(scopes, holders_of, hot=10, admits="default".__eq__)
    (scope,) = document.scopes
    assert (scope.model_name, scope.block_size) == ("llama", 16)
    first, second = scope.prefixes
    assert (first.prefix_hash, first.parent_hash, first.tokens) == ("11", "", 16)
    assert (second.prefix_hash, second.parent_hash) == (str(2**64 - 1), "11")
    assert (first.replicas, len(first.holders)) == (1, 2)
    assert (first.asked, first.hits_promised, first.hits_checked, first.hits_confirmed) == (
        *(3, 3, 2, 2),
    )
    assert first.rate == pytest.approx(per_second(3.0, HOT_RATE_S), rel=0.02)
    assert msgspec.json.decode(msgspec.json.encode(document), type=type(document)) == document


def test_prefixes_are_chosen_by_number_depth_holder_and_tenant() -> None:
    def holders_of(scope: DecidedScope, prefix: int) -> Sequence[PrefixHolder]:
        return [PrefixHolder(instance_id=f"of-{prefix}", dp_rank=0, medium="CPU")]

    scopes = view(seen().hot, 600.0)

    def found(**given: object) -> list[str]:
        options: dict[str, object] = {"hot": 10, "admits": "default".__eq__, **given}
        document = prefixes_document(scopes, holders_of, **options)  # type: ignore[arg-type]
        return [one.prefix_hash for scope in document.scopes for one in scope.prefixes]

    deep = str(2**64 - 1)
    assert found() == ["11", deep]
    assert found(hot=1) == ["11"]
    assert found(hot=0) == []
    assert found(depth_tokens=17) == [deep]
    assert found(instance_id="of-11") == ["11"]
    assert found(instance_id="other") == []
    assert found(admits="nobody".__eq__) == []


def test_a_scope_without_a_prefix_is_shown_empty() -> None:
    document = prefixes_document(view(seen().hot, 600.0), nobody, hot=5, admits="acme".__eq__)
    assert [scope.prefixes for scope in document.scopes] == [[]]


def test_an_advice_says_what_would_do_it() -> None:
    hot = Observations().hot
    for _ in range(200):
        hot.asked(0.0, SCOPE, marks_of((64, 5)))
    (scope,) = view(hot, 0.0).values()
    a, b = Target("default", "a", 0), Target("default", "b", 1)
    held = [HeldPrefix(one, (a,)) for one in scope.prefixes]
    advice = advise(held, [Instance(a, 9.0), Instance(b, 1.0)], 1.0, AdviceRules())
    (one,) = advice_document(advice).advice
    assert (one.action, one.why, one.prefix_hash, one.depth_tokens) == (
        *("copy", "overload", "5", 1024),
    )
    assert [(target.instance_id, target.dp_rank) for target in one.targets] == [("b", 1)]
    assert one.command.startswith('POST /move {"prefix_hash":"5"')
