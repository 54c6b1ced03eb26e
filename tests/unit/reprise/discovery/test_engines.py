from typing import Any

import pytest

from reprise.discovery.engines import Engine, UnusableError, bodies, read_pod, read_slice
from tests.kubernetes import NAMESPACE, endpoint_slice, pod


def engine(**fields: Any) -> Engine:
    found = read_pod(pod(**fields))
    assert found is not None
    return found


def test_a_pod_is_registered_as_its_annotations_say() -> None:
    one = engine(
        data_parallel_size="2",
        events_port="6000",
        replay_port="7000",
        http_port="9000",
        tenant="acme",
        lora="l",
        namespace="n",
        role="prefill",
        instance="i",
        kv_offloading="none",
        kv_partial_reuse="none",
        kv_cache_groups="one",
        lora_reload="none",
        reads="pool-a,engine-3,",
    )
    first, second = bodies(one, "", 0)
    assert first == {
        "endpoint": "tcp://127.0.0.1:6000",
        "replay_endpoint": "tcp://127.0.0.1:7000",
        "http_endpoint": "http://127.0.0.1:9000",
        "type": "vLLM",
        "modelname": "m",
        "instance_id": "i",
        "block_size": 16,
        "dp_rank": 0,
        "tenant_id": "acme",
        "lora_name": "l",
        "additionalsalt": "n",
        "role": "prefill",
        "kv_offloading": "none",
        "kv_partial_reuse": "none",
        "kv_cache_groups": "one",
        "lora_reload": "none",
        "reads": ["engine-3", "pool-a"],
        "labels": {
            "k8s-namespace": NAMESPACE,
            "k8s-pod": "vllm-0",
            "k8s-uid": "uid-0",
            "host": "node-1",
        },
    }
    assert (second["endpoint"], second["dp_rank"]) == ("tcp://127.0.0.1:6001", 1)
    assert second["replay_endpoint"] == "tcp://127.0.0.1:7001"


def test_what_annotations_do_not_say_has_the_engines_own_defaults() -> None:
    (body,) = bodies(engine(), "", 0)
    assert body["endpoint"] == "tcp://127.0.0.1:5557"
    assert body["http_endpoint"] == "http://127.0.0.1:8000"
    assert "replay_endpoint" not in body
    assert body["instance_id"] == "vllm-0"
    assert "http_endpoint" not in bodies(engine(http_port="0"), "", 0)[0]


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    (body,) = bodies(engine(address="fd00::7"), "", 0)
    assert body["endpoint"] == "tcp://[fd00::7]:5557"
    assert body["http_endpoint"] == "http://[fd00::7]:8000"


@pytest.mark.parametrize(
    "fields",
    [{"label": None}, {"address": ""}, {"phase": "Succeeded"}, {"phase": "Failed"}, {"uid": ""}],
)
def test_of_some_pods_there_is_nothing_to_register(fields: dict[str, Any]) -> None:
    assert read_pod(pod(**fields)) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data_parallel_size", "0"),
        ("data_parallel_size", "1025"),
        ("data_parallel_size", "-1"),
        ("data_parallel_size", "1e9"),
        ("data_parallel_size", "9" * 30),
        ("data_parallel_size", "٣"),
        ("events_port", "65536"),
        ("block_size", "0"),
        ("block_size", "sixteen"),
        ("http_port", "http"),
    ],
)
def test_a_setting_that_cannot_be_is_named(name: str, value: str) -> None:
    with pytest.raises(UnusableError, match=name.replace("_", "-")):
        bodies(engine(**{name: value}), "", 0)


def test_the_ports_of_all_ranks_are_ports() -> None:
    with pytest.raises(UnusableError, match="65536"):
        bodies(engine(events_port="65530", data_parallel_size="8"), "", 0)


def test_long_annotations_are_refused_by_length_and_not_shown() -> None:
    with pytest.raises(UnusableError, match="got 5000") as refused:
        read_pod(pod(model="x" * 5000))
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"metadata": None, "status": []},
        {"metadata": {"labels": {"reprise.dev/engine": "vllm"}}},
        {"metadata": {"labels": []}, "status": {"podIP": "1.2.3.4"}},
    ],
)
def test_what_is_no_pod_is_nothing(document: dict[str, Any]) -> None:
    assert read_pod(document) is None


def test_a_slice_names_the_pods_of_its_service_and_their_ports() -> None:
    found = endpoint_slice(pod("a", "1"), pod("b", "2"), kv_events=6000, kv_replay=6100, http=80)
    one, two = read_slice(found)
    assert (one.pod, one.uid, two.pod, two.uid) == ("a", "1", "b", "2")
    (body,) = bodies(one, "", 0)
    assert body["endpoint"] == "tcp://127.0.0.1:6000"
    assert body["replay_endpoint"] == "tcp://127.0.0.1:6100"
    assert body["http_endpoint"] == "http://127.0.0.1:80"
    assert body["labels"]["zone"] == "z1"


def test_endpoints_that_are_no_pods_are_left_out() -> None:
    found = endpoint_slice(pod("a", "1"), pod("b", "2"))
    found["endpoints"][0]["targetRef"]["kind"] = "Node"
    del found["endpoints"][1]["targetRef"]
    assert read_slice(found) == []
    assert read_slice(endpoint_slice(pod()) | {"addressType": "FQDN"}) == []


def test_an_endpoint_that_says_nothing_of_readiness_is_ready() -> None:
    found = endpoint_slice(pod("a", "1"), pod("b", "2"))
    found["endpoints"][0]["conditions"] = {"ready": None}
    found["endpoints"][1]["conditions"] = {"ready": False}
    assert [one.is_ready for one in read_slice(found)] == [True, False]
