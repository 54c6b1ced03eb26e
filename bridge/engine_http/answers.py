"""What the answers of engines mean: which process it is, and where it publishes. Pure.

Source: vLLM 0.9 to 0.33, SGLang 0.4.10 to 0.5.23, as released and at their repositories' heads.

The process. prometheus_client exports `process_start_time_seconds` of the process that serves
`/metrics` (Linux), unless it is told to collect from several processes. vLLM does so with more than
one API server, and SGLang always; then it is missing. SGLang's `/server_info` (0.5.15 and later; in
0.5.5 `/get_server_info`) has what was measured while it started (`startup_time`, in 0.5.19 and
later: durations in fractions of seconds), and `random_seed`, which is drawn at each start unless
the operator gives one. Each is a number that another process has only by chance, or, of a given
seed, every time.

Where it publishes. vLLM from 0.31.0 on answers `GET /kv_event_sources` with an object that has each
rank's resolved `KVEventsConfig` by its number: `{"0": {enable_kv_cache_events, publisher, endpoint,
replay_endpoint, buffer_steps, hwm, max_queue_size, topic}}`; empty where no events are published.
Some of its development versions answer with an array of `{data_parallel_rank, endpoint,
replay_endpoint, topic}`, or with an object that has it as `sources`.

SGLang's `/server_info` has `kv_events`: `{publisher, endpoint_host, endpoint_port_base, topic,
block_size, dp_size}`, and from 0.5.22 on `replay_endpoint_port_base`; rank r publishes at the port
base + r; null where no events are published. Hosts may be wildcards: then the one that was asked is
meant.
"""

import math
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from bridge.engine_http.address import BaseUrl, bracketed
from bridge.sockets.endpoints import check_endpoint, path_of, split_endpoint
from schemas.errors import EndpointError, RegistrationError
from schemas.identities import BlockSize, Rank, Text
from schemas.limits import KIB, PORT_MAX
from schemas.registration import Registration

HTTP_STARTUP_BYTES_MAX: Final = 16 * KIB  # of what took how long at an engine's start
HTTP_ENGINE_VALUES_MAX: Final = 4096  # ranks of one engine that it may name
HTTP_RANKS_NAMED_MAX: Final = 16  # of those that it names, in the log

_START_TIME: Final = b"process_start_time_seconds"
_MARK_CHARS: Final = 500  # some thirty durations: what any ten of them say is enough
_WILDCARDS: Final = frozenset({"*", "0.0.0.0", "::", "[::]", ""})
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)  # the last: too deep
_Port = Annotated[int, Meta(ge=1, le=PORT_MAX)]


class Process(NamedTuple):
    """What an engine says of its process.

    Attributes:
        mark: equal for as long as it is the same one; opaque.
        started_at: Unix seconds of the engine's host; 0 where it does not say.
        is_given: whether the operator may have chosen the mark: then an equal one proves nothing.
    """

    mark: str
    started_at: float = 0.0
    is_given: bool = False


class PublisherSource(NamedTuple):
    """Where one data-parallel rank of an engine publishes.

    Attributes:
        endpoint, replay_endpoint: ZMQ addresses as a client in another process uses them; the
            latter "" where nothing is replayed.
        block_size: of its events, or None where the engine does not say.
    """

    dp_rank: int
    endpoint: str
    replay_endpoint: str
    block_size: int | None


def source_of(sources: Sequence[PublisherSource], registration: Registration) -> PublisherSource:
    """That of the registration's rank.

    Raises:
        RegistrationError: there is none, or its blocks are of another size than registered.
    """
    rank, block_size = registration.dp_rank, registration.block_size
    found = next((source for source in sources if source.dp_rank == rank), None)
    if found is None:
        ranks = ", ".join(str(source.dp_rank) for source in sources[:HTTP_RANKS_NAMED_MAX])
        more = " and more" if len(sources) > HTTP_RANKS_NAMED_MAX else ""
        raise RegistrationError(
            f"Expected `dp_rank` to be one that {registration.endpoint} publishes for"
            f" ({ranks or 'none'}{more}), got: {rank}"
        )
    if found.block_size not in (None, block_size):
        raise RegistrationError(
            f"Expected `block_size` {found.block_size}, of which {registration.endpoint} publishes"
            f" its events, got: {block_size}"
        )
    return found


# The process


def read_start_time(metrics: bytes) -> Process | None:
    """The process of a Prometheus exposition; None where it does not say."""
    at = 0
    while (at := metrics.find(_START_TIME, at)) >= 0:
        end = metrics.find(b"\n", at)
        line = metrics[at : end if end >= 0 else len(metrics)]
        is_line = at == 0 or metrics[at - 1 : at] == b"\n"
        at += len(_START_TIME)
        words = line.split()
        if not is_line or len(words) < 2 or words[0] != _START_TIME:
            continue
        try:
            started_at = float(words[1])
        except ValueError:
            continue
        if math.isfinite(started_at) and started_at > 0:
            return Process(f"started at {started_at!r}", started_at)
    return None


class SglangPublisher(msgspec.Struct):
    """One rank of an SGLang over several hosts (sgl-project/sglang#38032)."""

    dp_rank: Rank
    endpoint: Text


class SglangSockets(msgspec.Struct, kw_only=True):
    """Where an SGLang publishes: a host and a first port, or each rank by itself."""

    endpoint_host: Text
    endpoint_port_base: int
    dp_size: int
    replay_endpoint_port_base: int | None
    publishers: list[SglangPublisher] | None

    def endpoint_of(self, rank: int) -> str:
        """Where this rank publishes, as it says; "" where it names others alone."""
        if not self.publishers:
            return f"tcp://{self.endpoint_host}:{self.endpoint_port_base + rank}"
        return next((one.endpoint for one in self.publishers if one.dp_rank == rank), "")

    def replay_endpoint_of(self, rank: int) -> str:
        """Where it replays, on the host on which it publishes; "" for nowhere."""
        if self.replay_endpoint_port_base is None:
            return ""
        host, _ = split_endpoint(self.endpoint_of(rank))
        return f"tcp://{host}:{self.replay_endpoint_port_base + rank}" if host else ""

    def ranks(self, most: int) -> list[int]:
        """Those that publish, so many at the most."""
        if not self.publishers:
            return list(range(min(self.dp_size, most)))
        return [one.dp_rank for one in self.publishers[:most]]


_Publishers = Annotated[list[SglangPublisher], Meta(max_length=HTTP_ENGINE_VALUES_MAX)]


class _KvEvents(SglangSockets, kw_only=True):
    publisher: Text
    endpoint_host: Text
    endpoint_port_base: _Port
    block_size: BlockSize
    dp_size: Annotated[int, Meta(ge=1, le=HTTP_ENGINE_VALUES_MAX)] = 1
    replay_endpoint_port_base: _Port | None = None
    topic: Text = ""
    publishers: _Publishers | None = None


class _ServerInfo(msgspec.Struct):
    kv_events: _KvEvents | msgspec.UnsetType | None = msgspec.UNSET


class _ServerProcess(msgspec.Struct):
    startup_time: msgspec.Raw = msgspec.Raw(b"null")
    random_seed: msgspec.Raw = msgspec.Raw(b"null")


def read_server_info_process(body: bytes) -> Process | None:
    """The process of an SGLang `/server_info`; None where it does not say."""
    try:
        info = _server_process.decode(body)
        durations = sorted(_numbers(_value(info.startup_time)))
        seed = _value(info.random_seed)
    except _UNREADABLE:
        return None
    if any(value != round(value) for value in durations):
        return Process("startup " + " ".join(f"{value!r}" for value in durations)[:_MARK_CHARS])
    if isinstance(seed, int) and not isinstance(seed, bool):
        return Process(f"seed {seed}"[:_MARK_CHARS], is_given=True)
    return None


def _value(raw: msgspec.Raw) -> Any:
    """What stands there; None where it is too large to be what is meant."""
    is_small = len(bytes(raw)) <= HTTP_STARTUP_BYTES_MAX
    return msgspec.json.decode(raw) if is_small else None


def _numbers(value: Any) -> list[float]:
    """All numbers of a JSON value of objects: what took how long."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in _numbers(item)]
    if isinstance(value, float):
        return [value]
    return []


# Where it publishes


class VllmSource(msgspec.Struct):
    """Where one rank of a vLLM publishes, in its own words."""

    endpoint: Text
    data_parallel_rank: Rank | None = 0
    replay_endpoint: Text | None = None
    publisher: Text | None = "zmq"


_SourceArray = Annotated[list[VllmSource], Meta(max_length=HTTP_ENGINE_VALUES_MAX)]


_SourceMap = Annotated[dict[Rank, VllmSource], Meta(max_length=HTTP_ENGINE_VALUES_MAX)]


class _VllmAnswer(msgspec.Struct):
    sources: _SourceArray


# Made here and not by whoever asks first: msgspec is not safe while two threads do that.
_server_info: Final = msgspec.json.Decoder(_ServerInfo)
_server_process: Final = msgspec.json.Decoder(_ServerProcess)
_source_array: msgspec.json.Decoder[list[VllmSource]] = msgspec.json.Decoder(_SourceArray)
_source_map: msgspec.json.Decoder[dict[int, VllmSource]] = msgspec.json.Decoder(_SourceMap)
_vllm_answer: Final = msgspec.json.Decoder(_VllmAnswer)


def read_kv_event_sources(body: bytes, url: BaseUrl) -> list[PublisherSource]:
    """What a vLLM `/kv_event_sources` says, by rising rank.

    Raises:
        RegistrationError: it is no such answer, or names what cannot be connected to.
    """
    try:
        sources = kv_event_sources(body)
    except _UNREADABLE as error:
        raise RegistrationError(
            f"Expected where each rank publishes from {url.authority}/kv_event_sources,"
            f" got: {_of(error)}"
        ) from error
    found = [
        PublisherSource(
            rank,
            _reachable(source.endpoint, url),
            _reachable(source.replay_endpoint, url) if source.replay_endpoint else "",
            None,
        )
        for rank, source in sources
        if source.publisher != "null"
    ]
    return _by_rank(found, url)


def kv_event_sources(body: bytes) -> list[tuple[int, VllmSource]]:
    """By rank, as vLLM has them; of a released version, or of one in development.

    Raises:
        ValueError, RecursionError: it is no such answer.
    """
    if body.lstrip()[:1] == b"{":
        try:
            by_rank = _source_map.decode(body)
        except msgspec.ValidationError:
            sources = _vllm_answer.decode(body).sources
        else:
            return list(by_rank.items())
    else:
        sources = _source_array.decode(body)
    return [(source.data_parallel_rank or 0, source) for source in sources]


def read_kv_events(body: bytes, url: BaseUrl) -> list[PublisherSource]:
    """What the `kv_events` of an SGLang `/server_info` says, by rising rank.

    Raises:
        RegistrationError: likewise; and where this release says nothing of its events.
    """
    try:
        events = _server_info.decode(body).kv_events
    except _UNREADABLE as error:
        raise RegistrationError(
            f"Expected `kv_events` from {url.authority}/server_info, got: {_of(error)}"
        ) from error
    if events is msgspec.UNSET:
        raise RegistrationError(
            f"{url.authority} is of a release of SGLang that does not say where it publishes:"
            " register its `endpoint` (a `tcp://` address)"
        )
    if events is None:
        return []
    if events.publisher != "zmq":
        raise RegistrationError(
            f"Expected an engine that publishes by `zmq`, got `{events.publisher[:40]}`:"
            f" {url.authority}"
        )
    found = []
    for rank in events.ranks(HTTP_ENGINE_VALUES_MAX):
        replay = events.replay_endpoint_of(rank)
        replay = _reachable(replay, url) if replay else ""
        endpoint = _reachable(events.endpoint_of(rank), url)
        found.append(PublisherSource(rank, endpoint, replay, events.block_size))
    return _by_rank(found, url)


def _by_rank(sources: list[PublisherSource], url: BaseUrl) -> list[PublisherSource]:
    by_rank = {source.dp_rank: source for source in sources}
    if len(by_rank) < len(sources):
        raise RegistrationError(
            f"Expected one publisher for each rank from {url.authority}, got several for one"
        )
    return [by_rank[rank] for rank in sorted(by_rank)]


def _reachable(endpoint: str, url: BaseUrl) -> str:
    """The endpoint with the host that was asked in place of a wildcard.

    Raises:
        RegistrationError: nobody in another process can connect to it.
    """
    host, port = split_endpoint(endpoint)
    if host in _WILDCARDS and port:
        endpoint = f"tcp://{bracketed(url.host)}:{port}"
    if path_of(endpoint) and not _is_here(url.host):
        raise RegistrationError(
            f"Expected an address that can be connected to from another machine, got from"
            f" {url.authority}: {endpoint[:200]}"
        )
    try:
        check_endpoint(endpoint)
    except EndpointError as error:
        raise RegistrationError(
            f"{url.authority} publishes where it cannot be connected to: {error}"
        ) from error
    return endpoint


def _is_here(host: str) -> bool:
    """Whether a host is the machine on which this runs, by its name alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _of(error: Exception) -> str:
    return str(error)[:200]
