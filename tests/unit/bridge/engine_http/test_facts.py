"""What answers of engines say of their settings."""

import json

import pytest

from bridge.engine_http.facts import sglang_facts, vllm_facts
from schemas.engine_facts import EngineFacts

CACHE = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="%s",engine="%d",'
VLLM_METRICS = (
    (CACHE % ("True", 0)).encode()
    + b'num_gpu_blocks="70"} 1.0\n'
    + (CACHE % ("False", 1)).encode()
    + b"""num_gpu_blocks="None"} 1.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"} 0.0
vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="awake"} 0.0
"""
)


def vllm(**given: object) -> dict[str, bytes]:
    """Bodies by path, of which some are other than usual."""
    sources = {
        str(rank): {"endpoint": f"tcp://*:{5557 + rank}", "replay_endpoint": None}
        for rank in (0, 1)
    }
    usual = {
        "/metrics": VLLM_METRICS,
        "/version": {"version": "0.33.0"},
        "/v1/models": {"data": [{"id": "m", "object": "model"}, {"id": "adapter"}]},
        "/kv_event_sources": sources,
    }
    whole = {**usual, **{name.replace("__", "/"): one for name, one in given.items()}}
    return {
        path: body if isinstance(body, bytes) else json.dumps(body).encode()
        for path, body in whole.items()
        if body is not None
    }


def test_a_vllm_says_it_rank_by_rank() -> None:
    first = EngineFacts(
        version="0.33.0",
        models=("m", "adapter"),
        block_size=16,
        blocks=70,
        ranks=(0, 1),
        endpoint="tcp://*:5557",
        publishes=True,
        caches=True,
        is_asleep=False,
    )
    assert vllm_facts(vllm(), 0) == first
    second = vllm_facts(vllm(), 1)
    assert (second.blocks, second.caches, second.is_asleep) == (0, False, True)
    assert second.endpoint == "tcp://*:5558"


def test_blocks_are_as_large_as_those_of_events() -> None:
    larger = VLLM_METRICS.replace(b"{block", b'{effective_attention_block_size="32",block')
    assert vllm_facts(vllm(__metrics=larger), 0).block_size == 32
    unknown = VLLM_METRICS.replace(b"{block", b'{effective_attention_block_size="None",block')
    assert vllm_facts(vllm(__metrics=unknown), 0).block_size == 16
    events = {"publisher": "zmq", "endpoint_port_base": 5557, "block_size": 32}
    server = {"page_size": 16, "max_total_num_tokens": 640, "kv_events": events}
    said = sglang_facts({"/server_info": json.dumps(server).encode()}, 0)
    assert (said.block_size, said.blocks) == (32, 20)


def test_what_is_not_said_is_not_known() -> None:
    assert vllm_facts({}, 0) == EngineFacts()
    assert sglang_facts({}, 0) == EngineFacts()


@pytest.mark.parametrize("body", [b"", b"[]", b"no", b'{"data":7}', b"[" * 100_000, b"\xff"])
def test_what_cannot_be_read_is_not_said(body: bytes) -> None:
    paths = ("/metrics", "/version", "/v1/models", "/is_sleeping", "/server_info", "/model_info")
    assert vllm_facts(dict.fromkeys(paths, body), 0) == EngineFacts()
    assert sglang_facts(dict.fromkeys(paths, body), 0) == EngineFacts()


def test_events_are_off_where_no_rank_publishes() -> None:
    for sources in ({}, {"0": {"endpoint": "tcp://*:5557", "publisher": "null"}}):
        facts = vllm_facts(vllm(__kv_event_sources=sources), 0)
        assert (facts.publishes, facts.ranks) == (False, ())
    assert vllm_facts(vllm(__kv_event_sources=None), 0).publishes is None


def test_an_older_vllm_says_at_a_path_of_its_own_that_it_sleeps() -> None:
    bodies = vllm(__metrics=b"", __is_sleeping={"is_sleeping": True})
    assert vllm_facts(bodies, 0).is_asleep is True


def test_names_and_ranks_beyond_the_bound_are_not_told() -> None:
    many = [{"id": f"m-{number}"} for number in range(100)]
    sources = {str(rank): {"endpoint": f"tcp://*:{rank + 1}"} for rank in range(200)}
    facts = vllm_facts(vllm(__v1__models={"data": many}, __kv_event_sources=sources), 0)
    assert (len(facts.models), len(facts.ranks)) == (8, 64)


def test_an_sglang_over_several_hosts_names_each_rank() -> None:
    publishers = [{"dp_rank": rank, "endpoint": f"tcp://10.0.0.{rank}:5557"} for rank in (0, 4)]
    events = {"publisher": "zmq", "replay_endpoint_port_base": 6000, "publishers": publishers}
    facts = sglang_facts({"/server_info": json.dumps({"kv_events": events}).encode()}, 4)
    assert facts.ranks == (0, 4)
    assert (facts.endpoint, facts.replay_endpoint) == ("tcp://10.0.0.4:5557", "tcp://10.0.0.4:6004")


def test_an_sglang_says_all_of_it_at_one_path() -> None:
    info = {
        "version": "0.5.23",
        "served_model_name": "m",
        "page_size": 64,
        "disable_radix_cache": True,
        "max_total_num_tokens": 6400,
        "kv_events": {
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": 5557,
            "replay_endpoint_port_base": 6557,
            "dp_size": 2,
            "block_size": 64,
            "topic": "",
        },
        "other": [1, {}],
    }
    assert sglang_facts({"/server_info": json.dumps(info).encode()}, 1) == EngineFacts(
        version="0.5.23",
        models=("m",),
        block_size=64,
        blocks=100,
        ranks=(0, 1),
        endpoint="tcp://*:5558",
        replay_endpoint="tcp://*:6558",
        publishes=True,
        caches=False,
    )
    off = json.dumps(info | {"kv_events": None}).encode()
    assert sglang_facts({"/server_info": off}, 0).publishes is False


@pytest.mark.parametrize(
    ("said", "reads_media"),
    [
        ({"has_image_understanding": False, "has_audio_understanding": False}, False),
        ({"has_image_understanding": True, "has_audio_understanding": False}, True),
        ({"has_image_understanding": False, "has_audio_understanding": True}, True),
        ({"model_path": "m"}, None),
        ([], None),
    ],
)
def test_an_sglang_says_whether_its_model_reads_images(
    said: object, reads_media: bool | None
) -> None:
    bodies = {"/server_info": b"{}", "/model_info": json.dumps(said).encode()}
    assert sglang_facts(bodies, 0).reads_media is reads_media


METRICS = "/metrics?" + "&".join(
    f"name%5B%5D=sglang:{pool}_{part}_tokens"
    for pool in ("swa", "mamba")
    for part in ("available", "evictable", "used")
)


@pytest.mark.parametrize(
    ("architectures", "series", "is_hybrid"),
    [
        (["LlamaForCausalLM"], None, False),
        (["GptOssForCausalLM"], None, True),
        (["Qwen3_5MoeForConditionalGeneration"], None, True),
        (None, None, None),
        (None, "sglang:swa_used_tokens 0.0", None),
        (["OfTomorrow"], 'sglang:mamba_available_tokens{dp_rank="0"} 7.0', True),
        (["LlamaForCausalLM"], "sglang:num_used_tokens 9.0", False),
    ],
)
def test_an_sglang_says_by_its_architecture_or_its_pools_that_its_model_is_hybrid(
    architectures: list[str] | None, series: str | None, is_hybrid: bool | None
) -> None:
    bodies = {
        "/server_info": b"{}",
        "/model_info": json.dumps({"architectures": architectures}).encode(),
    }
    if series is not None:
        bodies[METRICS] = series.encode() + b"\n"
    assert sglang_facts(bodies, 0).is_hybrid is is_hybrid


@pytest.mark.parametrize(
    ("said", "completes"),
    [({"completion_template": None}, True), ({"completion_template": "qwen"}, False), ({}, None)],
)
def test_an_sglang_says_whether_it_has_a_template_for_completions(
    said: object, completes: bool | None
) -> None:
    bodies = {"/server_info": json.dumps(said).encode()}
    assert sglang_facts(bodies, 0).completes_as_told is completes


def test_a_vllm_that_lists_no_sources_names_its_ranks_by_its_metrics() -> None:
    before = vllm_facts(vllm(__kv_event_sources=None), 1)
    assert (before.ranks, before.publishes) == ((0, 1), None)
    one = (CACHE % ("True", 0)).encode() + b'num_gpu_blocks="70"} 1.0\n'
    assert vllm_facts(vllm(__metrics=one, __kv_event_sources=None), 0).ranks == ()
    odd = VLLM_METRICS + one.replace(b'"0"', b'"x"') + one.replace(b'"0"', b'""')
    assert vllm_facts(vllm(__metrics=odd, __kv_event_sources=None), 0).ranks == (0, 1)
