"""Engines that are asked for their load by `reprise up` as a process, and that it may be left."""

import time
from pathlib import Path

import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from tests.engine_http import engine_server
from tests.processes import Service, until

pytestmark = pytest.mark.timeout(180)

LOAD = (
    b'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n'
)


@pytest.mark.parametrize("form", ["option", "environment"])
def test_engines_are_not_asked_where_that_is_not_wanted(tmp_path: Path, form: str) -> None:
    options = ("--set", "load.scrape_s=0") if form == "option" else ()
    environment = {"REPRISE_SCRAPE_LOAD": "0"} if form == "environment" else {}
    publisher = Publisher(PublisherOptions(replay_endpoint=""))
    with (
        engine_server() as engine,
        Service(tmp_path / "data", *options, environment=environment) as service,
    ):
        engine.starts(time.time(), publisher)
        service.register(publisher.endpoint, http_endpoint=engine.url)
        until(lambda: engine.asked["/metrics"] > 0, what="which process it is")
        assert not [path for path in engine.asked if "?" in path]
        assert service.metric("reprise_bridge_load_servers") == 0
    publisher.close()


def test_an_engine_that_ends_is_asked_again_once_it_is_back(tmp_path: Path) -> None:
    publisher = Publisher(PublisherOptions(replay_endpoint=""))
    with (
        engine_server() as engine,
        Service(tmp_path / "data", "--set", "load.scrape_s=0.2") as service,
    ):

        def samples() -> float:
            return service.metric("reprise_bridge_load_samples_total")

        def starts() -> None:
            engine.starts(time.time(), publisher)
            engine.replies["/metrics"] = (200, engine.replies["/metrics"][1] + LOAD)

        starts()
        service.register(publisher.endpoint, http_endpoint=engine.url)
        until(lambda: samples() >= 3, what="samples")
        engine.ends()
        until(
            lambda: service.metric("reprise_bridge_load_failures_total", reason="refused") >= 1,
            what="a failure",
        )
        before = samples()
        starts()
        until(lambda: samples() > before, what="further samples")
        assert service.stop() == 0
        assert service.first_traceback() == ""
    publisher.close()
