"""`reprise up` as a process: how it starts and stops, and what makes it refuse to start.

What it does between the two is in `tests/contract/test_service_contract.py`.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgpack
import pytest

from tests.processes import Service, until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
        yield running


def refused(*arguments: str) -> str:
    """What `reprise` says where it will not start."""
    done = subprocess.run(
        [sys.executable, "-m", "reprise", "up", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_port_and_a_data_directory_in_use_are_told_at_once(
    service: Service, tmp_path: Path
) -> None:
    port = service.base_url.rpartition(":")[2]
    text = refused("--data", str(tmp_path / "other"), "--port", port)
    assert f"Cannot listen on 127.0.0.1:{port}" in text
    text = refused("--data", str(service.data), "--port", "0")
    assert "no other process uses" in text
    assert str(service.data) in text
    assert service.stop() == 0


def test_no_name_writes_a_line_of_its_own_into_the_log(service: Service) -> None:
    forged = "i\n2026-01-01 00:00:00,000 ERROR fake: injected"
    red = "\x1b[31mred\x1b[0m\x00"
    for port, name in enumerate((forged, red), 1):
        service.register(f"tcp://127.0.0.1:{port}", instance_id=name)
    until(lambda: service.whole_log().count("No publisher at") == 2, what="both are named")
    lines = service.whole_log().splitlines()
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("2026-01-01") for line in lines)
    assert sum("injected" in line for line in lines) >= 1


def test_what_names_no_wire_form_is_answered_as_conductor_does(tmp_path: Path) -> None:
    with Service(tmp_path / "data", environment={"REPRISE_WIRE": "msgpack"}) as service:
        service.register("tcp://127.0.0.1:1", instance_id="node-1")
        listed = msgpack.unpackb(httpx.get(service.base_url + "/services").content)
        viewed = msgpack.unpackb(httpx.get(service.base_url + "/global_view").content)
        unknown = httpx.get(service.base_url + "/v2")
    assert [one["InstanceID"] for one in listed["services"]] == ["node-1"]
    assert viewed["context_count"] == 1
    assert (unknown.status_code, unknown.text) == (404, "404 Not Found")
    assert "content-type" not in unknown.headers
