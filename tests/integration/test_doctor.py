"""`reprise doctor` as a newcomer types it: against a service as a process, and without one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import BlockStored
from tests.processes import Service, until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
        yield running


def doctor(service: Service, *options: str) -> tuple[int, str]:
    """Its exit code and what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "reprise", "doctor", "--url", service.base_url, *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def codes(service: Service) -> list[str]:
    return [one["code"] for one in service.get("/doctor")[1]["findings"]]


def test_it_leads_from_an_empty_service_to_one_that_works(service: Service) -> None:
    code, said = doctor(service)
    assert (code, said.splitlines()[0]) == (1, "nothing_registered: the service")
    publisher = Publisher(PublisherOptions())
    service.register(publisher.endpoint, replay_endpoint=publisher.replay_endpoint)
    until(lambda: publisher.subscribers > 0, what="the link")
    publisher.publish([BlockStored(block_hashes=[1], token_ids=list(range(32)), block_size=32)])
    until(lambda: codes(service) == ["block_size"], what="the wrong block size")
    code, said = doctor(service)
    assert (code, said.splitlines()[0]) == (1, "block_size: default/a (m)")
    assert "expected: 16   got: 32" in said
    assert service.post("/unregister", {"instance_id": "a", "dp_rank": 0})[0] == 200
    service.register(publisher.endpoint, replay_endpoint=publisher.replay_endpoint, block_size=32)
    until(lambda: service.longest(range(32), block_size=32) == 32, what="the block is indexed")
    until(lambda: not codes(service), what="nothing is wrong any more")
    code, said = doctor(service)
    assert code == 0
    assert said.startswith("Nothing is wrong: 1 instance examined at 0:")
    assert len(said.splitlines()) == 1
    code, said = doctor(service, "--json")
    assert (code, json.loads(said)["instances"][0]["verdict"]) == (0, "healthy")
    service.stop()
    assert doctor(service)[0] == 2
    publisher.close()
