"""What answers of engines say of their load, rank by rank, and whose load that is. Pure.

    kind          asked for                            rank by
    vLLM          /metrics                             `engine`
    SGLang        /v1/loads, else /metrics             `dp_rank`
    TensorRT-LLM  /prometheus/metrics                  none: one rank
    none          all of these, until one answers      as there

vLLM's metrics are filtered by name (`?name[]=`, as prometheus_client's servers understand), which
spares both sides hundreds of kilobytes. Where several processes share a registry the filter leaves
nothing, and then all of them are read.

Nothing is guessed: numbers that name no rank are of the one rank that is registered at the address,
and of nobody where there are several. Of several series of one rank (SGLang's pipeline and tensor
ranks tell the same, each as it sees it) the largest counts.

Source: vLLM 0.8 to 0.33, SGLang 0.4.10 to 0.5.23, TensorRT-LLM 1.2, as released and at their
repositories' heads.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from bridge.bounds import REQUESTS_MAX
from bridge.engine_http.bounds import LOAD_LINES_MAX
from bridge.engine_http.exposition import Series, read_series
from schemas.limits import DP_RANK_MAX, KIB, KV_TOKENS_MAX, MIB
from schemas.registration import NO_EVENTS, SGLANG, TENSORRT_LLM, VLLM, PublisherKind
from schemas.routing_records import LoadSample, LoadSource, Target

LOAD_METRICS_BYTES: Final = 2 * MIB  # of metrics; what stands behind it is not read: "cut"
LOAD_RANKS_BYTES: Final = 512 * KIB  # of SGLang's `/v1/loads`: some 500 bytes a rank
LOAD_USAGE_ROUNDING: Final = 0.05  # above a usage of 1, which counts as 1: else "bad_number"


class RankLoad(NamedTuple):
    """What one rank carries; see `LoadSample`."""

    running: int | None = None
    waiting: int | None = None
    prefill_tokens: int | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None


class Loads(NamedTuple):
    """What one answer says.

    Attributes:
        by_rank: None for what names no rank; ranks of which no more than the capacity is known are
            left out.
    """

    by_rank: dict[int | None, RankLoad]
    dropped: Counter[str]


class Way(NamedTuple):
    """One way to ask an engine.

    Attributes:
        path: with a slash before it.
        bytes_max: of the head with the body.
        cut: whether the beginning of a larger answer can be used.
    """

    path: str
    read: Callable[[bytes], Loads]
    bytes_max: int
    cut: bool


class _Metrics(NamedTuple):
    """Which metrics say it.

    Attributes:
        info: the metric whose labels say of what size the cache is, or b"".
        info_labels: these two: tokens of a block, and blocks.
    """

    rank_label: str
    fields: Mapping[bytes, str]
    info: bytes = b""
    info_labels: tuple[tuple[str, ...], str] = ((), "")

    @property
    def names(self) -> tuple[bytes, ...]:
        """Of all of them."""
        return (*self.fields, *((self.info,) if self.info else ()))


_VLLM: Final = _Metrics(
    "engine",
    {
        b"vllm:num_requests_running": "running",
        b"vllm:num_requests_waiting": "waiting",
        b"vllm:kv_cache_usage_perc": "usage",
        b"vllm:gpu_cache_usage_perc": "older_usage",
    },
    b"vllm:cache_config_info",
    (("effective_attention_block_size", "block_size"), "num_gpu_blocks"),
)
_SGLANG: Final = _Metrics(
    "dp_rank",
    {
        b"sglang:num_running_reqs": "running",
        b"sglang:num_queue_reqs": "waiting",
        b"sglang:token_usage": "usage",
        b"sglang:max_total_num_tokens": "capacity",
    },
    b"sglang:cache_config_info",
    (("page_size",), "num_pages"),
)
_TRTLLM: Final = _Metrics(
    "",
    {
        b"trtllm_num_requests_running": "running",
        b"trtllm_num_requests_waiting": "waiting",
        b"trtllm_kv_cache_utilization": "usage",
        b"trtllm_kv_cache_tokens_per_block": "block_tokens",
        b"trtllm_kv_cache_max_blocks": "blocks",
    },
)


def read_metrics(metrics: _Metrics, body: bytes) -> Loads:
    """What a Prometheus exposition says."""
    dropped: Counter[str] = Counter()
    numbers: dict[int | None, dict[str, float]] = {}
    for series in read_series(body, metrics.names, dropped):
        if series.labels.get("priority"):
            continue  # a part of SGLang's sum, which stands beside it
        rank, is_rank = _rank(series.labels.get(metrics.rank_label, ""))
        if not is_rank:
            dropped["bad_rank"] += 1
            continue
        of_rank = numbers.setdefault(rank, {})
        for field, number in _numbers(metrics, series, dropped):
            of_rank[field] = max(number, of_rank.get(field, 0.0))
    found = {rank: _load(given, dropped) for rank, given in numbers.items()}
    return Loads({rank: load for rank, load in found.items() if _says_something(load)}, dropped)


def _numbers(
    metrics: _Metrics, series: Series, dropped: Counter[str]
) -> Sequence[tuple[str, float]]:
    if series.name != metrics.info:
        return ((metrics.fields[series.name], series.value),)
    sizes, count = metrics.info_labels
    said = [series.labels.get(name, "") for name in sizes]
    block_tokens, blocks = next(filter(_is_number, said), said[-1]), series.labels.get(count, "")
    if not (_is_number(block_tokens) and _is_number(blocks)):
        if blocks != "None":  # as vLLM says it before it knows
            dropped["bad_number"] += 1
        return ()
    return (("block_tokens", int(block_tokens)), ("blocks", int(blocks)))


def _load(given: Mapping[str, float], dropped: Counter[str]) -> RankLoad:
    usage = given.get("usage", given.get("older_usage"))
    capacity = given.get("capacity")
    if capacity is None and "blocks" in given and "block_tokens" in given:
        capacity = given["blocks"] * given["block_tokens"]
    return RankLoad(
        _whole(given.get("running"), REQUESTS_MAX, dropped),
        _whole(given.get("waiting"), REQUESTS_MAX, dropped),
        None,
        _usage(usage, dropped),
        _whole(capacity, KV_TOKENS_MAX, dropped) or None,
    )


class _RankReport(msgspec.Struct):
    """One rank of SGLang's `/v1/loads`; older releases leave some out."""

    dp_rank: int | None = None
    num_running_reqs: float | None = None
    num_waiting_reqs: float | None = None
    num_waiting_uncached_tokens: float | None = None
    num_used_tokens: float | None = None
    num_total_tokens: float | None = None
    max_total_num_tokens: float | None = None
    token_usage: float | None = None


class _Report(msgspec.Struct):
    loads: list[_RankReport]


_decode_report: Final = msgspec.json.Decoder(_Report).decode


def read_ranks(body: bytes) -> Loads:
    """What SGLang's `/v1/loads` says. What waits to be computed is `num_waiting_uncached_tokens`
    where it is said, else what all requests have beyond what is in use, cached or not.
    """
    dropped: Counter[str] = Counter()
    try:
        reports = _decode_report(body).loads
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        dropped["bad_line"] += 1
        return Loads({}, dropped)
    if len(reports) > LOAD_LINES_MAX:
        dropped["too_many"] += len(reports) - LOAD_LINES_MAX
    by_rank: dict[int | None, RankLoad] = {}
    for report in reports[:LOAD_LINES_MAX]:
        if report.dp_rank is not None and not 0 <= report.dp_rank <= DP_RANK_MAX:
            dropped["bad_rank"] += 1
        elif report.dp_rank in by_rank:
            dropped["repeated"] += 1
        elif _says_something(load := _reported(report, dropped)):
            by_rank[report.dp_rank] = load
    return Loads(by_rank, dropped)


def _reported(report: _RankReport, dropped: Counter[str]) -> RankLoad:
    pending = report.num_waiting_uncached_tokens
    if pending is None and report.num_total_tokens is not None:
        pending = max(0.0, report.num_total_tokens - (report.num_used_tokens or 0.0))
    return RankLoad(
        _whole(report.num_running_reqs, REQUESTS_MAX, dropped),
        _whole(report.num_waiting_reqs, REQUESTS_MAX, dropped),
        _whole(pending, KV_TOKENS_MAX, dropped),
        _usage(report.token_usage, dropped),
        _whole(report.max_total_num_tokens, KV_TOKENS_MAX, dropped) or None,
    )


def _rank(text: str) -> tuple[int | None, bool]:
    """The rank, None where there is none; and whether it can be one."""
    if not text:
        return None, True
    if not _is_number(text) or int(text) > DP_RANK_MAX:
        return None, False
    return int(text), True


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


def _whole(number: float | None, most: int, dropped: Counter[str]) -> int | None:
    if number is None:
        return None
    if not 0 <= number <= most:  # NaN, too
        dropped["bad_number"] += 1
        return None
    return int(number)


def _usage(number: float | None, dropped: Counter[str]) -> float | None:
    if number is None:
        return None
    if not 0 <= number <= 1 + LOAD_USAGE_ROUNDING:
        dropped["bad_number"] += 1
        return None
    return min(number, 1.0)


def _says_something(load: RankLoad) -> bool:
    return any(number is not None for number in load[:4])


def _filtered(path: str, metrics: _Metrics) -> str:
    return f"{path}?{'&'.join(f'name%5B%5D={name.decode()}' for name in metrics.names)}"


def _of_metrics(path: str, metrics: _Metrics) -> Way:
    return Way(path, partial(read_metrics, metrics), LOAD_METRICS_BYTES, cut=True)


_WAYS: Final[dict[PublisherKind, tuple[Way, ...]]] = {
    VLLM: (
        _of_metrics(_filtered("/metrics", _VLLM), _VLLM),
        _of_metrics("/metrics", _VLLM),
    ),
    SGLANG: (
        Way("/v1/loads?include=core", read_ranks, LOAD_RANKS_BYTES, cut=False),
        _of_metrics("/metrics", _SGLANG),
    ),
    TENSORRT_LLM: (_of_metrics("/prometheus/metrics", _TRTLLM),),
}

WAYS: Final[Mapping[PublisherKind, tuple[Way, ...]]] = {
    **_WAYS,
    NO_EVENTS: tuple(way for ways in _WAYS.values() for way in ways),
}
"""How each kind is asked for its load: the first way that says something is kept to. What an engine
is that was registered without events, nobody has said.
"""


def samples_of(
    loads: Loads, targets: Sequence[Target], observed_at: float
) -> tuple[list[LoadSample], Counter[str]]:
    """The samples of those registered at an address, and of whom there is none: `no_rank` where
    the answer does not tell its ranks apart, `other_rank` where it is of others.

    Args:
        targets: at the address, each once.
        observed_at: when, Unix seconds.
    """
    by_rank, missing = loads.by_rank, Counter[str]()
    if len(targets) == 1 and len(by_rank) == 1:  # whatever it calls itself
        (load,) = by_rank.values()
        return [_sample(targets[0], load, observed_at)], missing
    samples = []
    for target in targets:
        found = by_rank.get(target.dp_rank)
        if found is not None:
            samples.append(_sample(target, found, observed_at))
        else:
            missing["no_rank" if None in by_rank else "other_rank"] += 1
    return samples, missing


def _sample(target: Target, load: RankLoad, observed_at: float) -> LoadSample:
    return LoadSample(target, observed_at, LoadSource.SCRAPED, *load)
