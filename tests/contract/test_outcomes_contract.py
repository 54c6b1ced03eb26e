"""What outcomes contradict is not `exact`: over HTTP, in both forms."""

import time

import pytest

from lab.engines.publisher import Publisher
from lab.engines.wire import BlockStored
from routing.observed.contradictions import QUIET_S
from schemas.limits import OUTCOMES_MIN
from tests.contract.deployments import Tenant

PROMPT = list(range(2000, 2160))


def serve(tenant: Tenant, times: int, *, cached: int) -> None:
    """Requests that come one by one to an engine that has nothing else to do."""
    body = {"model": "m", "block_size": 16, "token_ids": PROMPT, "tenant_id": tenant.tenant_id}
    tenant.await_candidate()
    for number in range(times):
        time.sleep(1.5 * QUIET_S)
        body["token_ids"] = [*PROMPT[:144], *[number + 1] * 16]
        status, routed = tenant.api.post("/route", body)
        assert status == 200, routed
        told = {"decision_id": routed["decision_id"], "event": "first_token"}
        assert tenant.api.post("/feedback", told | {"cached_tokens": cached})[0] == 202
        ended = {"decision_id": routed["decision_id"], "event": "completed"}
        assert tenant.api.post("/feedback", ended)[0] == 202


def reason(tenant: Tenant) -> str:
    (service,) = tenant.services()
    found: str = service["Reason"]
    return found


@pytest.mark.both_forms
def test_outcomes_that_contradict_make_answers_unconfirmed_until_they_agree(
    tenant: Tenant, publisher: Publisher
) -> None:
    """Also behind `kill -9` of every process."""
    tenant.connect(publisher, replay_endpoint=publisher.replay_endpoint)
    blocks = BlockStored(block_hashes=[*range(9)], token_ids=PROMPT[:144], block_size=16)
    publisher.publish([blocks])
    tenant.await_longest(PROMPT, 144)
    tenant.until(lambda: tenant.state() == "exact", "exact answers")
    serve(tenant, OUTCOMES_MIN + 1, cached=0)
    tenant.until(lambda: tenant.state() == "unconfirmed", "the contradiction")
    assert reason(tenant) == "outcomes_differ"
    tenant.deployment.restart()
    tenant.until(lambda: reason(tenant) == "outcomes_differ", "what was known before")
    assert tenant.state() == "unconfirmed"
    ask = {"model": "m", "block_size": 16, "token_ids": PROMPT, "tenant_id": tenant.tenant_id}
    assert tenant.api.post("/query?only=exact", ask)[1] == {}
    detail = tenant.api.post("/query?detail=1", ask)[1]
    assert detail[tenant.tenant_id]["a"]["state"] == "unconfirmed", detail
    # Of the first ones, after a restart, it may not be known yet that nothing else is doubted.
    serve(tenant, OUTCOMES_MIN + 6, cached=144)
    tenant.until(lambda: tenant.state() == "exact", "outcomes that agree")
    assert reason(tenant) == ""
