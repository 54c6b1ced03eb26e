"""What the answers of engines say of their settings, for `EngineFacts`. Pure.

    kind    version        models       block size, blocks, caching     ranks and sockets   asleep
    vLLM    /version       /v1/models   `vllm:cache_config_info`        /kv_event_sources   `vllm:
                                                                        (from 0.31 on)      engine_
                                                                                            sleep_state`
    SGLang  /server_info   likewise     likewise                        likewise            never

A vLLM before 0.31 names its ranks by its metrics alone.

Whether an SGLang reads images is said at `/model_info`, and of which architecture its model is:
hybrid ones have other cache groups beside full attention, of which its events say nothing. Its
metrics have room for these, where it has metrics.

What cannot be read is not said: nothing is guessed. Older releases of vLLM have not the metric of
sleeping, and say it at `/is_sleeping` where that is served.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from bridge.engine_http.answers import SglangPublisher, SglangSockets, kv_event_sources
from bridge.engine_http.exposition import metrics_path, read_series
from schemas.engine_facts import EngineFacts
from schemas.identities import BlockSize, Text
from schemas.limits import (
    BLOCK_SIZE_MAX,
    DP_RANK_MAX,
    ENGINE_MODELS_MAX,
    ENGINE_RANKS_MAX,
    NAME_BYTES_MAX,
)

_HYBRID_METRICS: Final = tuple(
    f"sglang:{pool}_{part}_tokens".encode()
    for pool in ("swa", "mamba")
    for part in ("available", "evictable", "used")
)
"""All 0 of a model without; from its first step on."""

HYBRID_METRICS_PATH: Final = metrics_path(*_HYBRID_METRICS)

_HYBRIDS: Final = (
    *("Bamba", "BailingMM2Native", "BailingMoeLinear", "BailingMoeV2_5", "BailingMoeV3", "Beam"),
    *("DeepseekV4", "DiffusionGemma", "Dots3", "EmbeddingGemma2", "FalconH1", "FalconMamba"),
    *("Gemma4", "GigaChat35", "Glm5Next", "GptOss", "GraniteMoeHybrid", "GraniteMoeSWA"),
    *("GraniteSWA", "IQuestQ1", "Inkling", "InternS2Preview", "Jamba", "JetNemotron", "JetVLM"),
    *("KimiK3", "KimiLinear", "Laguna", "Lfm2", "Llama4", "Mamba", "Mellum", "MiMoV2"),
    *("MiniCPMSALA", "MuseGlimmer", "MuseSpark", "NemotronH", "Qwen3Next", "Qwen3_5"),
    *("Step3p5", "Step3p7", "UnlimitedOCR", "Zaya"),
)
"""How architectures begin whose caches SGLang 0.5.23 splits: `configs.model_config` has those with
windows (`is_hybrid_swa_model`), `configs.hybrid_arch` those with states.
"""

CACHE_METRIC: Final = b"vllm:cache_config_info"
SLEEP_METRIC: Final = b"vllm:engine_sleep_state"
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class _Model(msgspec.Struct):
    id: Text


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: Text


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


class _KvEvents(SglangSockets, kw_only=True):
    """What is read of `kv_events`, whatever else is wrong with it."""

    publisher: Text = ""
    endpoint_host: Text = ""
    endpoint_port_base: int = 0
    replay_endpoint_port_base: int | None = None
    dp_size: Annotated[int, Meta(ge=1)] = 1
    publishers: list[SglangPublisher] | None = None
    block_size: int = 0


class _Server(msgspec.Struct):
    version: Text = ""
    served_model_name: Text | None = None
    page_size: BlockSize | None = None
    disable_radix_cache: bool | None = None
    completion_template: Text | msgspec.UnsetType | None = msgspec.UNSET
    max_total_num_tokens: int | None = None
    kv_events: _KvEvents | msgspec.UnsetType | None = msgspec.UNSET


class _ModelInfo(msgspec.Struct):
    has_image_understanding: bool | None = None
    has_audio_understanding: bool | None = None
    architectures: list[Text] | None = None


_models: Final = msgspec.json.Decoder(_Models)
_version: Final = msgspec.json.Decoder(_Version)
_sleeping: Final = msgspec.json.Decoder(_Sleeping)
_server: Final = msgspec.json.Decoder(_Server)
_model_info: Final = msgspec.json.Decoder(_ModelInfo)


def vllm_facts(bodies: Mapping[str, bytes], dp_rank: int) -> EngineFacts:
    """What a vLLM says.

    Args:
        bodies: of its answers with status 200, by path.
        dp_rank: of which.
    """
    said = _of_metrics(bodies.get("/metrics", b""), dp_rank)
    version = _read(_version, bodies.get("/version"))
    if version is not None:
        said["version"] = version.version
    models = _read(_models, bodies.get("/v1/models"))
    if models is not None:
        said["models"] = tuple(one.id for one in models.data[:ENGINE_MODELS_MAX])
    sleeping = _read(_sleeping, bodies.get("/is_sleeping"))
    if sleeping is not None:
        said["is_asleep"] = sleeping.is_sleeping
    return EngineFacts(**said | _of_sources(bodies.get("/kv_event_sources"), dp_rank))


def _read(decoder: "msgspec.json.Decoder[Any]", body: bytes | None) -> Any:
    if body is None:
        return None
    try:
        return decoder.decode(body)
    except _UNREADABLE:
        return None


def _of_metrics(body: bytes, dp_rank: int) -> dict[str, Any]:
    said: dict[str, Any] = {}
    cores: set[str] = set()
    for series in read_series(body, (CACHE_METRIC, SLEEP_METRIC), Counter()):
        labels = series.labels
        if series.name == CACHE_METRIC and len(cores) < ENGINE_RANKS_MAX:
            cores.add(labels.get("engine", ""))
        if labels.get("engine", str(dp_rank)) != str(dp_rank):
            continue
        if series.name == SLEEP_METRIC:
            if labels.get("sleep_state") == "awake":
                said["is_asleep"] = series.value == 0
            continue
        # With decode context parallelism, and of hybrid models, events are of this size.
        events_size = _number(labels.get("effective_attention_block_size", ""))
        said["block_size"] = events_size or _number(labels.get("block_size", ""))
        said["blocks"] = _number(labels.get("num_gpu_blocks", ""))
        caching = labels.get("enable_prefix_caching", "").lower()
        if caching in ("true", "false"):
            said["caches"] = caching == "true"
    ranks = sorted(int(one) for one in cores if _number(one) or one == "0")
    if len(ranks) > 1 and ranks[-1] <= DP_RANK_MAX:
        said["ranks"] = tuple(ranks)  # each publishes; releases before 0.31 say it nowhere else
    return said


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else 0


def _of_sources(body: bytes | None, dp_rank: int) -> dict[str, Any]:
    if body is None:
        return {}
    try:
        sources = [one for one in kv_event_sources(body) if one[1].publisher != "null"]
    except _UNREADABLE:
        return {}
    ranks = sorted(rank for rank, _ in sources)
    said: dict[str, Any] = {"publishes": bool(ranks), "ranks": tuple(ranks[:ENGINE_RANKS_MAX])}
    for rank, source in sources:
        if rank == dp_rank:
            said["endpoint"] = source.endpoint
            said["replay_endpoint"] = source.replay_endpoint or ""
    return said


def sglang_facts(bodies: Mapping[str, bytes], dp_rank: int) -> EngineFacts:
    """What an SGLang says; see `vllm_facts`."""
    server = _read(_server, bodies.get("/server_info"))
    if server is None:
        return EngineFacts()
    said: dict[str, Any] = {"version": server.version}
    if server.served_model_name:
        said["models"] = (server.served_model_name,)
    events = server.kv_events
    size = server.page_size
    if isinstance(events, _KvEvents) and 0 < events.block_size <= BLOCK_SIZE_MAX:
        size = events.block_size  # larger with decode context parallelism
    if size:
        said["block_size"] = size
        said["blocks"] = max(server.max_total_num_tokens or 0, 0) // size
    if server.disable_radix_cache is not None:
        said["caches"] = not server.disable_radix_cache
    if server.completion_template is not msgspec.UNSET:
        said["completes_as_told"] = not server.completion_template
    said |= _of_model(bodies)
    if events is not msgspec.UNSET:
        said["publishes"] = events is not None and events.publisher == "zmq"
    if isinstance(events, _KvEvents) and events.publisher == "zmq":
        said["ranks"] = tuple(events.ranks(ENGINE_RANKS_MAX))
        said["endpoint"] = events.endpoint_of(dp_rank)[:NAME_BYTES_MAX]
        if replay := events.replay_endpoint_of(dp_rank):
            said["replay_endpoint"] = replay[:NAME_BYTES_MAX]
    return EngineFacts(**said)


def _of_model(bodies: Mapping[str, bytes]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    info = _read(_model_info, bodies.get("/model_info"))
    if info is not None and info.has_image_understanding is not None:
        said["reads_media"] = info.has_image_understanding or bool(info.has_audio_understanding)
    named = () if info is None or info.architectures is None else tuple(info.architectures)
    if named:
        said["is_hybrid"] = any(one.startswith(_HYBRIDS) for one in named)
    beside = read_series(bodies.get(HYBRID_METRICS_PATH, b""), _HYBRID_METRICS, Counter())
    if any(one.value > 0 for one in beside):
        said["is_hybrid"] = True
    return said
