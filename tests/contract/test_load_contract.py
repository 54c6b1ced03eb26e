"""What both forms of the service do alike about instances and their load."""

import time

import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from tests.contract.deployments import Tenant
from tests.engine_http import EngineServer, engine_server

pytestmark = pytest.mark.timeout(180)

LOAD = (
    b'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n'
    b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} NaN\n'
)


def register(tenant: Tenant, publisher: Publisher, **fields: object) -> tuple[int, object]:
    body = {"endpoint": publisher.endpoint, "type": "vLLM", "modelname": "m", "instance_id": "a"}
    more = {"block_size": 16, "dp_rank": 0, "tenant_id": tenant.tenant_id}
    return tenant.api.post("/register", body | more | fields)


def test_what_is_said_of_an_instance_is_shown_and_part_of_its_registration(tenant: Tenant) -> None:
    publisher = Publisher(PublisherOptions())
    said = {
        "role": "prefill",
        "labels": {"rack": "r1", "host": "h7"},
        "kv_bytes_per_token": 327_680,
        "max_num_seqs": 256,
        "kv_capacity_tokens": 400_000,
    }
    for _ in range(2):
        assert register(tenant, publisher, **said)[0] == 200
    assert register(tenant, publisher, **{**said, "role": "decode"})[0] == 400
    tenant.until(lambda: len(tenant.services()) == 1, "the registration")
    (service,) = tenant.services()
    shown = {
        "Role": "prefill",
        "Labels": {"host": "h7", "rack": "r1"},
        "KvBytesPerToken": 327_680,
        "MaxNumSeqs": 256,
        "KvCapacityTokens": 400_000,
    }
    assert shown.items() <= service.items()
    publisher.close()


@pytest.mark.both_forms
def test_an_engine_with_an_http_address_is_asked_how_much_it_carries(tenant: Tenant) -> None:
    metric = tenant.deployment.metric
    samples = metric("reprise_bridge_load_samples_total")
    dropped = metric("reprise_bridge_load_dropped_total", reason="bad_number")
    publisher = Publisher(PublisherOptions())
    with engine_server() as engine:
        _begin(engine, publisher)
        assert register(tenant, publisher, http_endpoint=engine.url)[0] == 200
        tenant.until(
            lambda: metric("reprise_bridge_load_samples_total") >= samples + 2, "two samples"
        )
        tenant.until(lambda: (3, 2) in carried(tenant), "what it carries where it is decided by")
        assert metric("reprise_bridge_load_dropped_total", reason="bad_number") > dropped
        assert metric("reprise_bridge_load_servers") >= 1
        assert metric("reprise_bridge_load_period_seconds") == 1.0
        assert metric("reprise_internal_errors_total") == 0
    publisher.close()


def carried(tenant: Tenant) -> list[tuple[int | None, int | None]]:
    """What runs and what waits at each instance, by the routing log."""
    targets = tenant.api.get("/routing")[1]["targets"]
    own = [one for one in targets if one["tenant_id"] == tenant.tenant_id]
    return [(one["running"], one["waiting"]) for one in own]


def _begin(engine: EngineServer, publisher: Publisher) -> None:
    engine.starts(time.time(), publisher)
    status, body = engine.replies["/metrics"]
    engine.replies["/metrics"] = (status, body + LOAD)
