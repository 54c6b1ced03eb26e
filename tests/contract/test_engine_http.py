"""Engines that are asked over HTTP, in both forms of the service: where they publish, which process
they are, and whether they are there.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from tests.contract.deployments import Tenant, tenant_of
from tests.contract.test_service_contract import TOKENS, chain
from tests.engine_http import EngineServer, engine_server

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def engine() -> Iterator[EngineServer]:
    with engine_server() as server:
        yield server


def register(tenant: Tenant, endpoint: str, **fields: object) -> None:
    body = {"endpoint": endpoint, "type": "vLLM", "modelname": "m", "instance_id": "a"}
    more = {"block_size": 16, "dp_rank": 0, "tenant_id": tenant.tenant_id}
    status, answer = tenant.api.post("/register", body | more | fields)
    assert status == 200, answer


def service(tenant: Tenant, dp_rank: int = 0) -> dict[str, Any]:
    (one,) = [one for one in tenant.services() if one["DPRank"] == dp_rank]
    return one


def told(tenant: Tenant, **wanted: object) -> None:
    """Waits until `/services` says so of rank 0."""
    try:
        tenant.until(lambda: service(tenant).items() >= wanted.items(), f"{wanted}")
    except AssertionError as error:
        raise AssertionError(f"{error}\nIt is {service(tenant)}") from error


@pytest.mark.both_forms
def test_an_engine_is_found_by_its_base_url_and_found_again_where_it_is_after_a_restart(
    tenant: Tenant, engine: EngineServer
) -> None:
    began = time.time()
    ranks = [Publisher(PublisherOptions(), dp_rank=rank) for rank in (0, 1)]
    for rank in (0, 1):
        register(tenant, engine.url, dp_rank=rank)
    for one in ranks:
        one.publish([chain(1, TOKENS[:32])])  # before anybody knows where
    engine.starts(began, *ranks)
    tenant.until(
        lambda: tenant.query(TOKENS).get("a", {}).get("DP") == {"0": 32, "1": 32}, "both ranks"
    )
    told(tenant, Endpoint=engine.url, State="exact", Activity="silent")

    engine.ends()
    for one in ranks:
        one.close()
    told(tenant, Activity="disconnected")
    strangers = [Publisher(PublisherOptions(endpoint=one.endpoint)) for one in ranks]
    again = [Publisher(PublisherOptions(), dp_rank=rank) for rank in (0, 1)]
    for stranger in strangers:
        stranger.publish([chain(1, TOKENS)])
    for one in again:
        one.publish([chain(1, TOKENS[:48])])
    engine.starts(began + 1000.0, *again)
    tenant.until(
        lambda: tenant.query(TOKENS).get("a", {}).get("DP") == {"0": 48, "1": 48}, "both again"
    )
    told(tenant, State="exact", Incarnation=2)
    for one in (*strangers, *again):
        one.close()


def test_a_base_url_of_the_configuration_file_is_as_good(
    tenant: Tenant, engine: EngineServer, tmp_path: Path
) -> None:
    publisher = Publisher(PublisherOptions())
    engine.starts(time.time(), publisher)
    publisher.publish([chain(1, TOKENS)])
    entry = {"type": "vLLM", "modelname": "m", "block_size": 16, "tenant_id": tenant.tenant_id}
    config = tmp_path / "conductor_config.json"
    entries = {"node1": entry | {"endpoint": engine.url}}
    config.write_text(json.dumps({"http_server_port": 1, "kvevent_instance": entries}))
    configured = tenant.deployment.configured(config, tmp_path)
    try:
        with tenant_of(configured, tenant.tenant_id) as here:
            here.await_longest(TOKENS, 64, instance_id="node1")
    finally:
        configured.close()
        publisher.close()


def test_an_engine_that_restarted_and_passed_its_old_number_leaves_no_ghosts(
    tenant: Tenant, engine: EngineServer
) -> None:
    options = PublisherOptions(replay_endpoint="")
    first = Publisher(options)
    began = time.time()
    engine.starts(began, first)
    register(tenant, first.endpoint, http_endpoint=engine.url)
    tenant.await_links(first)
    first.publish([chain(1, TOKENS)])
    first.publish([chain(100, TOKENS[:16], parent=4)])
    tenant.await_longest(TOKENS, 64)
    told(tenant, State="exact")

    engine.ends()
    first.close()
    told(tenant, Activity="disconnected")
    second = Publisher(options._replace(endpoint=first.endpoint))
    for number in range(5):  # more than the first one had, and nobody has heard them
        second.publish([chain(1000 + number, TOKENS[:16])], lost=True)
    engine.starts(began + 1000.0, second)
    tenant.await_links(second)
    second.publish([chain(2000, TOKENS[:32])])
    tenant.await_longest(TOKENS, 32)
    told(tenant, Incarnation=2, State="degraded")  # what it sent before is lost, and that is known
    second.close()


def test_an_idle_engine_is_told_from_one_that_hangs(tenant: Tenant, engine: EngineServer) -> None:
    publisher = Publisher(PublisherOptions(replay_endpoint=""))
    began = time.time()
    engine.starts(began, publisher)
    register(tenant, publisher.endpoint, http_endpoint=engine.url)
    tenant.await_links(publisher)
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    told(tenant, State="exact", Activity="silent", Reason="")
    silent_since = service(tenant)["ActivitySince"]
    assert 0 < silent_since <= time.time() + 1

    engine.ends()
    told(tenant, State="unconfirmed", Activity="silent", Reason="engine_away")
    assert service(tenant)["ActivitySince"] == silent_since
    assert tenant.state() == "unconfirmed"
    engine.starts(began, publisher)
    publisher.publish([chain(10, TOKENS[:16], parent=4)])
    told(tenant, State="exact", Reason="")
    publisher.close()


def test_an_engine_that_does_not_say_where_it_publishes_is_told_with_the_reason(
    tenant: Tenant, engine: EngineServer
) -> None:
    register(tenant, engine.url)
    told(tenant, State="unconfirmed", Reason="no_endpoint", Activity="disconnected")
    assert "vLLM says it from 0.31.0 on" in tenant.deployment.log()


def test_addresses_that_cannot_be_asked_are_refused(tenant: Tenant) -> None:
    body = {"type": "vLLM", "modelname": "m", "instance_id": "a", "block_size": 16, "dp_rank": 0}
    for fields in (
        {"endpoint": "http://"},
        {"endpoint": "http://127.0.0.1:1/?x=y"},
        {"endpoint": "tcp://127.0.0.1:1", "http_endpoint": "ftp://127.0.0.1"},
        {"endpoint": "tcp://127.0.0.1:1", "http_endpoint": "http://a b"},
    ):
        status, answer = tenant.api.post(
            "/register", body | fields | {"tenant_id": tenant.tenant_id}
        )
        assert (status, "Expected a" in answer["error"]) == (400, True), answer
    assert tenant.services() == []


def test_two_instances_cannot_have_one_engines_rank(tenant: Tenant, engine: EngineServer) -> None:
    register(tenant, engine.url)
    register(tenant, engine.url, dp_rank=1)
    body = {"type": "vLLM", "modelname": "m", "instance_id": "b", "block_size": 16, "dp_rank": 1}
    status, answer = tenant.api.post(
        "/register", body | {"endpoint": engine.url, "tenant_id": tenant.tenant_id}
    )
    assert (status, answer["error"].partition(". GET /services")[0]) == (
        400,
        f"conflicting active registration for endpoint: {engine.url}",
    )
