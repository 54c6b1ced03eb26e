"""What one tenant reports moves nothing that another tenant is told."""

from routing.costs import Costs
from routing.estimates.classes import ClassKey
from routing.estimates.links import LOAD, READ
from routing.fold.fold import RoutingFold
from routing.policies.decide import model_of_costs
from schemas.routing_records import (
    CostModel,
    DecidedScope,
    DecisionsRecord,
    OutcomeEvent,
    OutcomesRecord,
)
from tests.unit.routing.sample_decisions import SCOPE, candidate, decision, outcome

COSTS: CostModel = model_of_costs(Costs())
KEY = ClassKey(SCOPE.tenant_id, SCOPE.model_name, "a")


def teach(fold: RoutingFold, scope: DecidedScope, start: int, seconds: float, output: int) -> None:
    """Forty outcomes of the instance `a` and the model `m`, whose names any tenant may use."""
    for number in range(start, start + 40):
        made = decision(
            number,
            scope=scope,
            costs=(COSTS,),
            candidates=(candidate("a", cached=500, gpu=0, cpu=0, disk=500),),
            kv_bytes=1 << 20,
        )
        told = outcome(
            number,
            OutcomeEvent.COMPLETED,
            ttft_s=seconds,
            queue_s=0.0,
            prefill_s=seconds / 2,
            output_tokens=output,
        )
        fold.apply(2 * number, DecisionsRecord(run=1, time=100.0 + number, decisions=(made,)))
        fold.apply(2 * number + 1, OutcomesRecord(run=1, time=100.5 + number, outcomes=(told,)))


def learned(fold: RoutingFold) -> tuple[object, ...]:
    """All that decisions of the tenant of SCOPE go by."""
    estimates = fold.estimates
    links = estimates.links(SCOPE.tenant_id)
    return (
        estimates.costs(KEY, Costs()),
        estimates.p90(KEY),
        estimates.output_tokens(SCOPE.tenant_id, SCOPE.model_name),
        estimates.known_decode_s(SCOPE.tenant_id, SCOPE.model_name),
        links.bytes_per_s(LOAD),
        links.bytes_per_s(READ),
    )


def test_another_tenant_with_the_same_names_teaches_nothing() -> None:
    fold = RoutingFold()
    teach(fold, SCOPE, 0, seconds=0.2, output=50)
    before = learned(fold)
    assert before != learned(RoutingFold())
    teach(fold, SCOPE._replace(tenant_id="other"), 100, seconds=3000.0, output=2**30)
    assert learned(fold) == before
    assert learned(RoutingFold.load(fold.dump())) == before
    rows = fold.estimates.rows()
    assert [row.tenant_id for row in rows.prefill] == ["default", "other"]
    assert [row.tenant_id for row in rows.outputs] == ["default", "other"]
    assert {row.tenant_id for row in rows.links} == {"default", "other"}
