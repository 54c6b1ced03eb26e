"""What engines say of themselves.

The constants are what the engines' own released code answered: vLLM 0.33.0's route over two of its
publishers, and SGLang 0.5.23's description of its publisher for a page of 64 tokens and two ranks.
"""

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from bridge.engine_http.address import read_base_url
from bridge.engine_http.answers import (
    Process,
    PublisherSource,
    read_kv_event_sources,
    read_kv_events,
    read_server_info_process,
    read_start_time,
)
from schemas.errors import RegistrationError

URL = read_base_url("http://10.0.0.7:8000")
VLLM_0_33 = (
    b'{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:25557",'
    b'"replay_endpoint":"tcp://*:25567","buffer_steps":10000,"hwm":100000,'
    b'"max_queue_size":100000,"topic":"kv-events"},'
    b'"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:25558",'
    b'"replay_endpoint":"tcp://*:25568","buffer_steps":10000,"hwm":100000,'
    b'"max_queue_size":100000,"topic":"kv-events"}}'
)
SGLANG_0_5_23 = (
    b'{"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557,'
    b' "topic": "kv-events", "block_size": 64, "dp_size": 2, "replay_endpoint_port_base": 6000}'
)
KV_EVENTS: dict[str, Any] = {
    "publisher": "zmq",
    "endpoint_host": "*",
    "endpoint_port_base": 5557,
    "topic": "",
    "block_size": 64,
    "dp_size": 2,
    "replay_endpoint_port_base": 6000,
    "load_endpoint_port_base": 5559,
    "load_topic": "load",
}


def encode(value: object) -> bytes:
    return json.dumps(value).encode()


# The process


def test_the_start_of_a_process_is_found_in_its_metrics() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    found = read_start_time(generate_latest(registry))
    assert found is not None
    assert found.started_at > 1e9
    assert not found.is_given


def test_metrics_without_a_start_say_nothing() -> None:
    for metrics in (
        b"",
        b"process_start_time_seconds",
        b"process_start_time_seconds nan",
        b"process_start_time_seconds x\n",
        b'x{y="process_start_time_seconds 7"} 1\n',
        b"# HELP process_start_time_seconds Start time.\n",
        b"process_start_time_seconds_total 17\n",
        b"process_start_time_seconds -1\n",
    ):
        assert read_start_time(metrics) is None, metrics


def test_what_was_measured_at_the_start_tells_processes_apart() -> None:
    took = {"load_weight": 12.25, "scheduler_e2e": 23.5, "cuda_graph": {"decode": 3.125}}
    one = read_server_info_process(encode({"startup_time": took, "random_seed": 7}))
    other = read_server_info_process(encode({"startup_time": took | {"scheduler_e2e": 23.75}}))
    assert one is not None
    assert other is not None
    assert one.mark != other.mark
    assert not one.is_given
    assert read_server_info_process(encode({"startup_time": took, "random_seed": 8})) == one


def test_a_seed_may_be_given_and_so_proves_only_another_process() -> None:
    assert read_server_info_process(encode({"random_seed": 7})) == Process("seed 7", is_given=True)


def test_an_older_release_says_nothing_of_its_process() -> None:
    for body in (b"", b"[]", b"{}", encode({"random_seed": None}), encode({"startup_time": {}})):
        assert read_server_info_process(body) is None


# Where it publishes


def test_what_is_no_start_of_an_engine_says_nothing() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    large = b"[" + b"0.5," * 100_000 + b"0.5]"
    for value in (deep, large, b"true", b'"x"', b"{"):
        assert read_server_info_process(b'{"startup_time": ' + value + b"}") is None
    assert read_server_info_process(b'{"x": ' + b"[" * 500_000) is None


def test_vllm_says_where_each_rank_publishes() -> None:
    assert read_kv_event_sources(VLLM_0_33, URL) == [
        PublisherSource(0, "tcp://10.0.0.7:25557", "tcp://10.0.0.7:25567", None),
        PublisherSource(1, "tcp://10.0.0.7:25558", "tcp://10.0.0.7:25568", None),
    ]


def test_a_rank_of_vllm_that_publishes_nothing_is_left_out() -> None:
    assert read_kv_event_sources(VLLM_0_33.replace(b'"zmq"', b'"null"', 1), URL) == [
        PublisherSource(1, "tcp://10.0.0.7:25558", "tcp://10.0.0.7:25568", None),
    ]
    assert read_kv_event_sources(b"{}", URL) == []


@pytest.mark.parametrize("wrapped", [False, True])
def test_versions_of_vllm_in_development_say_it_as_an_array(wrapped: bool) -> None:
    sources = [
        {
            "data_parallel_rank": 1,
            "endpoint": "tcp://0.0.0.0:41002",
            "replay_endpoint": None,
            "topic": "kv-events",
        },
        {
            "data_parallel_rank": 0,
            "endpoint": "tcp://10.0.0.8:41001",
            "replay_endpoint": "tcp://*:41003",
            "topic": "kv-events",
        },
    ]
    assert read_kv_event_sources(encode({"sources": sources} if wrapped else sources), URL) == [
        PublisherSource(0, "tcp://10.0.0.8:41001", "tcp://10.0.0.7:41003", None),
        PublisherSource(1, "tcp://10.0.0.7:41002", "", None),
    ]


def test_sglang_says_where_its_ranks_publish() -> None:
    assert read_kv_events(b'{"tp_size":2,"kv_events":' + SGLANG_0_5_23 + b"}", URL) == [
        PublisherSource(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:6000", 64),
        PublisherSource(1, "tcp://10.0.0.7:5558", "tcp://10.0.0.7:6001", 64),
    ]


def test_a_host_that_the_engine_names_is_used_for_its_events() -> None:
    for host, expected in (("10.0.0.9", "10.0.0.9"), ("[fd00::9]", "[fd00::9]")):
        events = KV_EVENTS | {"endpoint_host": host, "dp_size": 1}
        (found,) = read_kv_events(encode({"kv_events": events}), URL)
        assert found.endpoint == f"tcp://{expected}:5557"


def test_each_rank_of_an_sglang_over_several_hosts_publishes_on_its_own() -> None:
    publishers = [
        {"dp_rank": 4, "endpoint": "tcp://10.0.0.2:5561"},
        {"dp_rank": 0, "endpoint": "tcp://*:5557"},
    ]
    events = KV_EVENTS | {"dp_size": 8, "publishers": publishers}
    assert read_kv_events(encode({"kv_events": events}), URL) == [
        PublisherSource(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:6000", 64),
        PublisherSource(4, "tcp://10.0.0.2:5561", "tcp://10.0.0.2:6004", 64),
    ]
    twice = KV_EVENTS | {"publishers": [publishers[0], publishers[0]]}
    with pytest.raises(RegistrationError, match="several for one"):
        read_kv_events(encode({"kv_events": twice}), URL)


def test_an_ipv6_host_stands_in_brackets() -> None:
    url = read_base_url("http://[fd00::7]:8000")
    (found,) = read_kv_events(encode({"kv_events": KV_EVENTS | {"dp_size": 1}}), url)
    assert found.endpoint == "tcp://[fd00::7]:5557"


@pytest.mark.parametrize(
    ("host", "is_here"),
    [("127.0.0.1", True), ("localhost", True), ("[::1]", True), ("10.0.0.7", False), ("a", False)],
)
def test_an_address_in_the_file_system_is_of_this_machine(host: str, is_here: bool) -> None:
    url = read_base_url(f"http://{host}:8000")
    body = encode({"0": {"endpoint": "ipc:///run/engine"}})
    if is_here:
        assert read_kv_event_sources(body, url)[0].endpoint == "ipc:///run/engine"
        return
    with pytest.raises(RegistrationError, match="from another machine"):
        read_kv_event_sources(body, url)


def test_an_engine_without_events_has_no_sources() -> None:
    assert read_kv_event_sources(b"[]", URL) == []
    assert read_kv_events(encode({"kv_events": None}), URL) == []


def test_a_release_that_does_not_say_is_told_from_an_engine_without_events() -> None:
    with pytest.raises(RegistrationError, match="register its `endpoint`"):
        read_kv_events(encode({"tp_size": 4}), URL)


@pytest.mark.parametrize(
    "changed",
    [
        {"publisher": "null"},
        {"endpoint_port_base": 0},
        {"endpoint_port_base": 65535},
        {"endpoint_port_base": "5557"},
        {"dp_size": 0},
        {"dp_size": 10**9},
        {"block_size": 0},
        {"endpoint_host": "a b"},
    ],
)
def test_what_cannot_be_connected_to_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(RegistrationError):
        read_kv_events(encode({"kv_events": KV_EVENTS | changed}), URL)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'{"sources": 1}',
        encode([{"endpoint": "inproc://x", "data_parallel_rank": 0}]),
        encode([{"endpoint": "tcp://a:1"}, {"endpoint": "tcp://a:2"}]),
        encode([{"endpoint": f"tcp://a:{rank + 1}"} for rank in range(10_000)]),
        encode({"-1": {"endpoint": "tcp://a:1"}}),
        encode({"0": {"endpoint": 7}}),
        encode({"0": {}}),
        b"[" * 100_000,
        encode([{"endpoint": "tcp://a:1", "data_parallel_rank": -1}]),
        b"\xff\xfe",
    ],
)
def test_what_is_no_such_answer_is_refused(body: bytes) -> None:
    with pytest.raises(RegistrationError):
        read_kv_event_sources(body, URL)
