from typing import Any

import msgspec
import pytest

from query_api.http.answers import services_document
from query_api.http.models import Service, Services
from reprise.application import create_app
from reprise.discovery.engines import Engine, bodies, read_pod
from reprise.discovery.plan import make_plan
from tests.fakes import AsgiClient, FakeTable
from tests.kubernetes import NAMESPACE, pod


@pytest.fixture
def table() -> FakeTable:
    return FakeTable()


@pytest.fixture
def client(table: FakeTable) -> AsgiClient:
    return AsgiClient(create_app(table, table))


def engine(**fields: Any) -> Engine:
    found = read_pod(pod(**fields))
    assert found is not None
    return found


def wanted(*engines: Engine) -> list[dict[str, Any]]:
    return [body for one in engines for body in bodies(one, "", 0)]


def registered(client: AsgiClient, table: FakeTable, *some: dict[str, Any]) -> list[Service]:
    """As the service shows them once it was told."""
    for body in some:
        reply = client.post_json("/register", body)
        assert reply.status == 200, reply.body
    document = services_document(table.services())
    return msgspec.convert(document, Services).services


def test_what_is_wanted_and_not_there_is_registered() -> None:
    plan = make_plan(wanted(engine()), [], NAMESPACE)
    assert (plan.unregister, plan.register) == ([], wanted(engine()))


def test_what_is_there_is_left_as_it_is(client: AsgiClient, table: FakeTable) -> None:
    some = wanted(engine(data_parallel_size="2", replay_port="5600", tenant="acme"))
    services = registered(client, table, *some)
    assert make_plan(some, services, NAMESPACE) == ([], [])


def test_what_is_wanted_no_more_is_unregistered(client: AsgiClient, table: FakeTable) -> None:
    services = registered(client, table, *wanted(engine(tenant="acme")))
    plan = make_plan([], services, NAMESPACE)
    assert plan.register == []
    (one,) = plan.unregister
    reply = client.post_json("/unregister", one)
    assert reply.status == 200, reply.body
    assert table.services() == []


def test_what_others_have_registered_is_left_alone(client: AsgiClient, table: FakeTable) -> None:
    (body,) = wanted(engine())
    for labels in ({}, {"k8s-namespace": "other"}):
        services = registered(client, table, body | {"labels": labels})
        assert make_plan([], services, NAMESPACE) == ([], [])
        table.registrations.clear()


def test_a_pod_made_anew_is_another_one_though_name_and_address_are_the_same(
    client: AsgiClient, table: FakeTable
) -> None:
    services = registered(client, table, *wanted(engine(uid="1")))
    plan = make_plan(wanted(engine(uid="2")), services, NAMESPACE)
    assert [one["instance_id"] for one in plan.unregister] == ["vllm-0"]
    assert [one["labels"]["k8s-uid"] for one in plan.register] == ["2"]


def test_a_setting_that_has_changed_is_registered_anew(
    client: AsgiClient, table: FakeTable
) -> None:
    services = registered(client, table, *wanted(engine()))
    for fields in ({"replay_port": "1"}, {"events_port": "1"}, {"block_size": "32"}):
        plan = make_plan(wanted(engine(**fields)), services, NAMESPACE)
        assert (len(plan.unregister), len(plan.register)) == (1, 1), fields


def test_what_a_pod_says_of_its_engine_later_is_registered_in_place(
    client: AsgiClient, table: FakeTable
) -> None:
    said = {"kv_offloading": "native", "kv_partial_reuse": "none", "kv_cache_groups": "one"}
    said |= {"reads": "b,a"}
    for fields in ({**said, "lora_reload": "none"}, *({name: said[name]} for name in said), {}):
        services = registered(client, table, *wanted(engine()))
        some = wanted(engine(**fields))
        plan = make_plan(some, services, NAMESPACE)
        due = [body | {"replace": True} for body in some] if fields else []
        assert (plan.unregister, plan.register) == ([], due)
        services = registered(client, table, *plan.register)
        assert make_plan(some, services, NAMESPACE) == ([], [])
        unset = {"KvCacheGroups": msgspec.UNSET, "Reads": msgspec.UNSET}
        older = [msgspec.structs.replace(one, **unset) for one in services]
        rest = make_plan(wanted(engine(**fields | {"kv_cache_groups": ""})), older, NAMESPACE)
        assert rest == ([], [])
        table.registrations.clear()
