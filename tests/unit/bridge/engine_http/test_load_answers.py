"""What engines say of their load, by what they really send: rank by rank, and nothing guessed."""

from collections import Counter

import msgspec
import pytest

from bridge.engine_http.bounds import LOAD_PERIOD_MAX_S
from bridge.engine_http.load_answers import (
    WAYS,
    Loads,
    RankLoad,
    read_ranks,
    samples_of,
)
from bridge.engine_http.load_settings import check_period
from schemas.errors import ConfigurationError
from schemas.registration import PublisherKind
from schemas.routing_records import LoadSample, LoadSource, Target

Ranks = dict[int | None, RankLoad]

VLLM = b"""\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.76e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-0.6B"} 3.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-0.6B"} 1.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-0.6B"} 2.0
vllm:num_requests_waiting{engine="1",model_name="Qwen/Qwen3-0.6B"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-0.6B",reason="capacity"} 9.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-0.6B"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="Qwen/Qwen3-0.6B"} 1.0000000000000002
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="7000"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="None"} 1.0
"""
OLDER_VLLM = b"""\
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
"""
SGLANG = b"""\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",tp_rank="0"} 4.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",tp_rank="1"} 3.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="m",tp_rank="2"} 1.0
sglang:num_queue_reqs{dp_rank="0",model_name="m",priority="",tp_rank="0"} 5.0
sglang:num_queue_reqs{dp_rank="0",model_name="m",priority="7",tp_rank="0"} 50.0
sglang:token_usage{dp_rank="0",model_name="m",tp_rank="0"} 0.28
sglang:max_total_num_tokens{dp_rank="0",model_name="m",tp_rank="0"} 161721.0
"""
OLDER_SGLANG = b"""\
sglang:num_running_reqs{model_name="m"} 4.0
sglang:token_usage{model_name="m"} 0.28
sglang:cache_config_info{model_name="m",num_pages="1000",page_size="64"} 1.0
"""
TRTLLM = b"""\
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 6.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.62
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 500.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
"""
LOADS = b"""{"timestamp": "2026-08-06T09:15:23+00:00", "version": "0.5.23", "loads": [
 {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 2, "num_waiting_uncached_tokens": 900,
  "num_used_tokens": 4000, "num_total_tokens": 6000, "max_total_num_tokens": 100000,
  "max_running_requests": 256, "token_usage": 0.04, "gen_throughput": 12.5, "cache_hit_rate": 0.5},
 {"dp_rank": 1, "num_running_reqs": 1, "num_waiting_reqs": 0, "num_used_tokens": 4000,
  "num_total_tokens": 4500, "max_total_num_tokens": 100000, "token_usage": 0.04}]}"""


def metrics(kind: str, body: bytes) -> Loads:
    return WAYS[PublisherKind(kind)][-1].read(body)


def test_vllm_says_it_of_each_of_its_engines() -> None:
    by_rank: Ranks = {0: RankLoad(3, 2, None, 0.25, 112_000), 1: RankLoad(1, 0, None, 1.0, None)}
    assert metrics("vLLM", VLLM) == Loads(by_rank, Counter())


def test_older_releases_of_vllm_have_another_name_for_usage_and_no_ranks() -> None:
    assert metrics("vLLM", OLDER_VLLM).by_rank == {None: RankLoad(3, 0, None, 0.5, None)}
    both = OLDER_VLLM + b'vllm:kv_cache_usage_perc{model_name="m"} 0.125\n'
    assert metrics("vLLM", both).by_rank == {None: RankLoad(3, 0, None, 0.125, None)}


def test_of_sglangs_tensor_ranks_the_largest_counts_and_of_priorities_their_sum() -> None:
    found = metrics("SGLang", SGLANG)
    by_rank: Ranks = {0: RankLoad(4, 5, None, 0.28, 161_721), 1: RankLoad(1)}
    assert found == Loads(by_rank, Counter())
    assert metrics("SGLang", OLDER_SGLANG).by_rank == {None: RankLoad(4, None, None, 0.28, 64_000)}


def test_tensorrt_llm_says_it_of_one_rank() -> None:
    assert metrics("TensorRT-LLM", TRTLLM).by_rank == {None: RankLoad(6, 1, None, 0.62, 16_000)}


def test_sglangs_own_report_says_what_is_yet_to_be_computed() -> None:
    by_rank: Ranks = {0: RankLoad(3, 2, 900, 0.04, 100_000), 1: RankLoad(1, 0, 500, 0.04, 100_000)}
    assert read_ranks(LOADS) == Loads(by_rank, Counter())


@pytest.mark.parametrize(
    ("series", "load", "reason"),
    [
        (b"vllm:num_requests_running NaN", {}, "bad_number"),
        (b"vllm:num_requests_running 1e13", {}, "bad_number"),
        (b"vllm:kv_cache_usage_perc 85.0", {}, "bad_number"),
        (b'vllm:num_requests_waiting{engine="x"} 1', {}, "bad_rank"),
        (b'vllm:num_requests_waiting{engine="-1"} 1', {}, "bad_rank"),
        (b'vllm:num_requests_waiting{engine="99999999999"} 1', {}, "bad_rank"),
        (b'vllm:num_requests_waiting{engine="\xc2\xb2"} 1', {}, "bad_rank"),
        (b'vllm:cache_config_info{block_size="16",num_gpu_blocks="-1"} 1', {}, "bad_number"),
    ],
)
def test_what_makes_no_sense_is_counted(series: bytes, load: Ranks, reason: str) -> None:
    assert metrics("vLLM", series + b"\n") == Loads(load, Counter({reason: 1}))


def test_a_capacity_is_of_blocks_as_large_as_those_of_events() -> None:
    sizes = b'block_size="16",effective_attention_block_size="32"'
    text = b"vllm:cache_config_info{" + sizes + b',num_gpu_blocks="7"} 1\n'
    found = metrics("vLLM", text + b"vllm:num_requests_running 1\n").by_rank[None]
    assert found.kv_capacity_tokens == 224


def test_a_capacity_alone_is_no_load() -> None:
    text = b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="7"} 1\n'
    assert metrics("vLLM", text) == Loads({}, Counter())


@pytest.mark.parametrize(
    ("body", "by_rank", "reason"),
    [
        (b"", {}, "bad_line"),
        (b"[]", {}, "bad_line"),
        (b"[" * 100_000, {}, "bad_line"),
        (b'{"loads":' * 10_000, {}, "bad_line"),
        (b'{"loads": 1}', {}, "bad_line"),
        (b'{"loads": [{"dp_rank": -1, "num_running_reqs": 1}]}', {}, "bad_rank"),
        (b'{"loads": [{"num_running_reqs": -1, "token_usage": 2e300}]}', {}, "bad_number"),
        (
            b'{"loads": [{"num_running_reqs": 1}, {"num_running_reqs": 2}]}',
            {None: RankLoad(1)},
            "repeated",
        ),
    ],
)
def test_a_report_that_makes_no_sense_is_counted(body: bytes, by_rank: Ranks, reason: str) -> None:
    found = read_ranks(body)
    assert (found.by_rank, set(found.dropped)) == (by_rank, {reason})


def test_a_report_of_more_ranks_than_there_can_be_is_counted() -> None:
    ranks = [{"dp_rank": rank, "num_running_reqs": 1} for rank in range(5000)]
    found = read_ranks(msgspec.json.encode({"loads": ranks}))
    assert (len(found.by_rank), found.dropped) == (4096, Counter(too_many=904))


# Whose load it is


def target(rank: int, instance: str = "a") -> Target:
    return Target("t", instance, rank)


def sample(rank: int, load: RankLoad, instance: str = "a") -> LoadSample:
    return LoadSample(target(rank, instance), 7.0, LoadSource.SCRAPED, *load)


ONE, TWO = RankLoad(1), RankLoad(2, 0, 5, 0.5, 100)


def test_each_rank_has_what_is_said_of_it() -> None:
    loads = Loads({0: ONE, 1: TWO, 2: ONE}, Counter())
    found = samples_of(loads, [target(1), target(0), target(5)], 7.0)
    assert found == ([sample(1, TWO), sample(0, ONE)], Counter(other_rank=1))
    assert samples_of(loads, [target(3)], 7.0) == ([], Counter(other_rank=1))


def test_the_only_rank_of_an_address_is_the_one_that_is_registered_whatever_it_is_called() -> None:
    for rank in (None, 0, 3):
        loads = Loads({rank: TWO}, Counter())
        assert samples_of(loads, [target(1)], 7.0) == ([sample(1, TWO)], Counter())


def test_what_names_no_rank_is_not_shared_out() -> None:
    loads = Loads({None: TWO}, Counter())
    assert samples_of(loads, [target(0), target(1)], 7.0) == ([], Counter(no_rank=2))


def test_two_instances_at_one_address_have_the_same_ranks() -> None:
    loads = Loads({0: ONE}, Counter())
    found = samples_of(loads, [target(0), target(0, "b")], 7.0)
    assert found == ([sample(0, ONE), sample(0, ONE, "b")], Counter())


def test_samples_fit_into_the_records_of_the_routing_log() -> None:
    for loads in (metrics("vLLM", VLLM), metrics("TensorRT-LLM", TRTLLM), read_ranks(LOADS)):
        found, _ = samples_of(loads, [target(0)], 7.0)
        for one in found:
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=LoadSample) == one


@pytest.mark.parametrize("period", [0.0, -1.0, float("nan"), LOAD_PERIOD_MAX_S + 1])
def test_a_period_that_cannot_be_kept_is_refused(period: float) -> None:
    with pytest.raises(ConfigurationError):
        check_period(period)
