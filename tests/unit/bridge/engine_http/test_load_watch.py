"""Who is asked for its load, how often, and what becomes of the answers. Servers are real ones."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, make_server

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram, make_wsgi_app
from prometheus_client.multiprocess import MultiProcessCollector

from bridge.engine_http import load_watch
from bridge.engine_http.load_answers import LOAD_METRICS_BYTES, WAYS
from bridge.engine_http.load_watch import LoadServer, LoadWatch, scraped, servers_of
from bridge.engine_http.watch import EngineWatch
from schemas.errors import ConfigurationError
from schemas.identities import PublisherKey
from schemas.registration import NO_EVENTS, PublisherKind, Registration
from schemas.routing_records import LoadSample, Target
from tests.engine_http import EngineServer, engine_server
from tests.fakes import registration
from tests.unit.bridge.engine_http.test_load_answers import LOADS, VLLM

ROOT = Path(__file__).parents[4]
FILTERED = WAYS[PublisherKind("vLLM")][0].path


class One(NamedTuple):
    """A publisher that is followed."""

    registration: Registration
    engine: EngineWatch | None = None


def followed(*, url: str = "", instance: str = "a", **more: object) -> One:
    one = msgspec.structs.replace(registration(instance), http_endpoint=url)
    return One(msgspec.structs.replace(one, **more))


def target(rank: int = 0, instance: str = "a") -> Target:
    return Target("default", instance, rank)


# Who


def test_each_address_is_asked_once_for_all_of_its_ranks() -> None:
    url, kind = "http://a:1", PublisherKind("vLLM")
    every = [followed(url=url, dp_rank=rank) for rank in (0, 1)]
    every.append(followed(url=url, dp_rank=0, model_name="other"))
    every.append(followed(url="http://b:1", instance="b"))
    assert servers_of(every) == {
        LoadServer(kind, url): (target(0), target(1)),
        LoadServer(kind, "http://b:1"): (target(0, "b"),),
    }


def test_a_rank_that_is_registered_with_two_addresses_is_asked_at_the_first() -> None:
    every = [followed(url="http://a:1"), followed(url="http://b:1", model_name="other")]
    assert list(servers_of(every)) == [LoadServer(PublisherKind("vLLM"), "http://a:1")]


def test_a_base_url_as_endpoint_is_asked_too() -> None:
    (server,) = servers_of([followed(endpoint="http://a:1")])
    assert server.url == "http://a:1"


def test_who_has_no_address_is_of_another_kind_or_is_away_is_not_asked() -> None:
    away = EngineWatch()
    for _ in range(2):
        away.probed(0.0, is_there=False)
    every = [
        followed(),
        followed(url="http://a:1", kind=PublisherKind("Dynamo")),
        followed(url="http://a:1")._replace(engine=away),
    ]
    assert servers_of(every) == {}
    away.heard()
    assert len(servers_of(every)) == 1


# How often


def test_a_period_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        LoadWatch(0.0, dict)


# What is made of it


class Watched:
    """A watch, and what it has handed over.

    Attributes:
        publishers: that it follows; may be changed.
    """

    def __init__(self, *publishers: One) -> None:
        self.publishers = {one.registration.publisher: one for one in publishers}
        self.taken: list[LoadSample] = []
        self._changed = asyncio.Event()
        self.watch = LoadWatch(0.05, self._followed, self._take)

    def _followed(self) -> dict[PublisherKey, One]:
        return dict(self.publishers)

    def _take(self, samples: list[LoadSample]) -> None:
        self.taken += samples
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                self._changed.clear()
                with suppress(TimeoutError):  # counters change without samples, too
                    await asyncio.wait_for(self._changed.wait(), 0.05)


@asynccontextmanager
async def running(*publishers: One) -> AsyncIterator[Watched]:
    watched = Watched(*publishers)
    task = asyncio.create_task(watched.watch.run())
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def engine() -> Iterator[EngineServer]:
    with engine_server() as server:
        yield server


def test_samples_are_handed_over_counted_and_the_last_ones_kept(engine: EngineServer) -> None:
    engine.replies = {FILTERED: (200, VLLM)}
    ranks = [followed(url=engine.url, dp_rank=rank, endpoint=f"tcp://a:{rank}") for rank in (0, 1)]

    async def run() -> None:
        async with running(*ranks) as watched:
            await watched.until(lambda: len(watched.taken) >= 4)
            watch = watched.watch
            assert watch.samples == len(watched.taken)
            assert set(watch.last) == {target(0), target(1)}
            assert (watch.last[target(0)].running, watch.last[target(1)].running) == (3, 1)
            assert watch.last[target(0)].observed_at > watched.taken[0].observed_at
            assert (watch.servers, watch.faults, watch.failures) == (1, 0, {})
            assert watch.cpu_s > 0
            assert set(engine.asked) == {FILTERED}, "nothing but what is wanted"

    asyncio.run(run())


def test_an_engine_whose_filter_leaves_nothing_is_asked_for_all_from_then_on(
    engine: EngineServer,
) -> None:
    engine.replies = {FILTERED: (200, b""), "/metrics": (200, VLLM)}

    async def run() -> None:
        async with running(followed(url=engine.url)) as watched:
            await watched.until(lambda: len(watched.taken) >= 3)
            assert not watched.watch.failures

    asyncio.run(run())
    assert engine.asked[FILTERED] == 1


@pytest.mark.parametrize(
    "replies",
    [
        {"/v1/loads?include=core": (200, LOADS)},
        {"/metrics": (200, b"sglang:num_running_reqs 3\n")},
        {
            "/v1/loads?include=core": (401, b""),
            "/metrics": (200, b"sglang:num_running_reqs 3\n"),
        },
    ],
    ids=["loads", "metrics", "without the key"],
)
def test_sglang_is_asked_the_way_that_it_understands(
    engine: EngineServer, replies: dict[str, tuple[int, bytes]]
) -> None:
    engine.replies = replies

    async def run() -> None:
        async with running(followed(url=engine.url, kind=PublisherKind("SGLang"))) as watched:
            await watched.until(lambda: bool(watched.taken))
            assert watched.taken[0].running == 3
            assert not watched.watch.failures

    asyncio.run(run())


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((200, b"process_start_time_seconds 1\n"), "no_load"),
        ((404, b""), "no_load"),
        ((401, VLLM), "refused"),
        ((503, VLLM), "refused"),
    ],
)
def test_an_engine_that_does_not_say_is_counted_and_asked_again(
    engine: EngineServer, caplog: pytest.LogCaptureFixture, reply: tuple[int, bytes], reason: str
) -> None:
    engine.replies = {FILTERED: reply, "/metrics": reply}

    async def run() -> None:
        async with running(followed(url=engine.url)) as watched:
            await watched.until(lambda: watched.watch.failures[reason] >= 2)
            assert set(watched.watch.failures) == {reason}
            engine.replies = {FILTERED: (200, VLLM), "/metrics": (200, VLLM)}
            await watched.until(lambda: bool(watched.taken))

    asyncio.run(run())
    assert len([line for line in caplog.records if line.levelname == "WARNING"]) == 1


def test_nobody_there_is_counted_and_others_go_on(engine: EngineServer) -> None:
    engine.replies = {FILTERED: (200, VLLM)}
    gone = followed(url="http://127.0.0.1:1", instance="gone", endpoint="tcp://b:1")

    async def run() -> None:
        async with running(followed(url=engine.url), gone) as watched:
            await watched.until(lambda: watched.watch.failures["silent"] >= 2)
            await watched.until(lambda: len(watched.taken) >= 2)
            assert set(watched.watch.last) == {target()}

    asyncio.run(run())


def test_metrics_beyond_their_bound_are_read_up_to_it(engine: EngineServer) -> None:
    engine.replies = {FILTERED: (200, VLLM + b"# x\n" * (LOAD_METRICS_BYTES // 2))}

    async def run() -> None:
        async with running(followed(url=engine.url)) as watched:
            await watched.until(lambda: bool(watched.taken))

    asyncio.run(run())


def test_who_is_no_longer_followed_is_asked_no_more_and_forgotten(engine: EngineServer) -> None:
    engine.replies = {FILTERED: (200, VLLM)}
    url = engine.url + "/other"
    engine.replies["/other" + FILTERED] = (200, VLLM)
    stays = followed(url=engine.url)
    goes = followed(url=url, instance="b", endpoint="tcp://b:1")

    async def run() -> None:
        async with running(stays, goes) as watched:
            await watched.until(lambda: len(watched.watch.last) == 2)
            del watched.publishers[goes.registration.publisher]
            await watched.until(lambda: watched.watch.servers == 1)
            await watched.until(lambda: set(watched.watch.last) == {target()})

    asyncio.run(run())


def test_whoever_takes_samples_may_fail(
    engine: EngineServer, caplog: pytest.LogCaptureFixture
) -> None:
    engine.replies = {FILTERED: (200, VLLM)}

    async def run() -> None:
        async with running(followed(url=engine.url)) as watched:

            def fail(samples: list[LoadSample]) -> None:
                raise RuntimeError(json.dumps(len(samples)))

            take, watched.watch.on_samples = watched.watch.on_samples, fail
            await watched.until(lambda: watched.watch.faults >= 1)
            assert watched.watch.samples == 0
            watched.watch.on_samples = take
            await watched.until(lambda: bool(watched.taken))

    asyncio.run(run())
    assert "Unexpected error while samples of load were taken" in caplog.text


def test_an_unexpected_error_of_the_thread_ends_the_run_for_whoever_restarts_it() -> None:
    def fail() -> dict[PublisherKey, One]:
        raise KeyError("a fault of ours")

    async def run() -> None:
        watch = LoadWatch(1.0, fail)
        for _ in range(2):
            async with asyncio.timeout(30):
                with pytest.raises(KeyError):
                    await watch.run()

    asyncio.run(run())


# Servers that others wrote


def metrics_of(registry: CollectorRegistry) -> None:
    """What vLLM makes of its load, by the library that it makes it with."""
    labels = ["model_name", "engine"]
    for name, value in (("num_requests_running", 3), ("num_requests_waiting", 2)):
        gauge = Gauge(
            f"vllm:{name}", "text", labels, registry=registry, multiprocess_mode="mostrecent"
        )
        gauge.labels("m", "0").set(value)
    seconds = Histogram("vllm:e2e_request_latency_seconds", "text", labels, registry=registry)
    seconds.labels("m", "0").observe(0.5)


def asked_of(registry: CollectorRegistry) -> tuple[list[LoadSample], list[str]]:
    """Samples that were taken off a server of prometheus_client, and the paths it was asked for."""
    asked: list[str] = []
    app = make_wsgi_app(registry)

    def noting(environ: dict[str, str], start: Callable[..., object]) -> Iterable[bytes]:
        asked.append(f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}".rstrip("?"))
        answer: Iterable[bytes] = app(environ, start)
        return answer

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = make_server("127.0.0.1", 0, noting, handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    async def run() -> list[LoadSample]:
        url = f"http://127.0.0.1:{server.server_port}"
        async with running(followed(url=url)) as watched:
            await watched.until(lambda: len(watched.taken) >= 2)
            assert not watched.watch.failures
            assert not watched.watch.dropped
            return watched.taken

    try:
        return asyncio.run(run()), asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_prometheus_clients_server_leaves_the_wanted_metrics_alone() -> None:
    registry = CollectorRegistry()
    metrics_of(registry)
    samples, asked = asked_of(registry)
    assert (samples[0].running, samples[0].waiting) == (3, 2)
    assert set(asked) == {FILTERED}


def test_metrics_that_several_processes_share_are_read_whole(tmp_path: Path) -> None:
    """The library chooses at its import whether they do: another process writes them."""
    writer = (
        "from tests.unit.bridge.engine_http.test_load_watch import metrics_of\n"
        "from prometheus_client import CollectorRegistry\n"
        "metrics_of(CollectorRegistry())\n"
    )
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", writer], env=environment, check=True, cwd=ROOT)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]
    samples, asked = asked_of(registry)
    assert (samples[0].running, samples[0].waiting) == (3, 2)
    assert asked[:2] == [FILTERED, "/metrics"]
    assert set(asked[2:]) == {"/metrics"}


# Engines without events


def silent(url: str) -> Registration:
    return followed(url=url, endpoint="", kind=NO_EVENTS).registration


def test_engines_without_events_are_asked_beside_those_that_are_followed() -> None:
    one, two = followed(url="http://a:1"), silent("http://b:1")
    other = msgspec.structs.replace(two, instance_id="b")
    found = scraped({one.registration.publisher: one}, [one.registration, other])
    assert servers_of(found.values()) == {
        LoadServer(PublisherKind("vLLM"), "http://a:1"): (target(),),
        LoadServer(NO_EVENTS, "http://b:1"): (target(0, "b"),),
    }


@pytest.mark.parametrize("path", ["/metrics", "/v1/loads?include=core"])
def test_of_whatever_kind_it_is_it_is_asked_in_its_way(engine: EngineServer, path: str) -> None:
    engine.replies = {path: (200, LOADS if path.startswith("/v1") else VLLM)}

    async def run() -> None:
        async with running(One(silent(engine.url))) as watched:
            await watched.until(lambda: len(watched.taken) >= 2)
            assert {one.target for one in watched.taken} == {target()}
            assert not any(one.is_away for one in watched.taken)
            assert watched.watch.failures == {}

    asyncio.run(run())


def test_one_that_does_not_answer_twice_is_away_and_others_are_not_told_of_so() -> None:
    with engine_server() as gone:
        url = gone.url
    every = [One(silent(url)), followed(url=url, instance="b")]

    async def run() -> None:
        async with running(*every) as watched:
            await watched.until(lambda: bool(watched.taken))
            assert watched.watch.failures["silent"] >= 2
            assert {one.target for one in watched.taken} == {target()}
            assert all(one.is_away and one.waiting is None for one in watched.taken)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "ranks", "reason", "text"),
    [
        ("vLLM", 1, "no_load", "vLLM does at /metrics: start it without --disable-log-stats"),
        ("vLLM", 2, "no_load", "2 ranks are registered at that address, and its answer names none"),
        ("SGLang", 1, "no_load", "SGLang does at /v1/loads, or at /metrics with --enable-metrics"),
        ("vLLM", 1, "refused", "It answers by an error status"),
        (NO_EVENTS, 1, "no_load", "It was asked for "),
    ],
)
def test_what_does_not_say_its_load_is_told_what_would(
    kind: str, ranks: int, reason: str, text: str
) -> None:
    asked = load_watch._ServerState(LoadServer(PublisherKind(kind), "http://127.0.0.1:1"))
    asked.targets = tuple(Target("default", "a", rank) for rank in range(ranks))
    assert load_watch._remedy(asked, reason).startswith(text)
