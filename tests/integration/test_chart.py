"""What the manifest runs answers; `tests/unit/test_chart.py` has what the chart makes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Api, until
from tests.unit.test_chart import containers, manifest, write_settings


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[tuple[Api, Path]]:
    """What the manifest's pod would run, on this machine; and where its volume is."""
    (stateful,) = [one for one in manifest() if one["kind"] == "StatefulSet"]
    init, container = containers(stateful)
    write_settings(manifest(), tmp_path)
    environment = dict(os.environ) | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CONDUCTOR_CONFIG_PATH": str(tmp_path / "none"),
    }

    def here(text: str) -> str:
        for there in ("/var/lib/reprise", "/settings"):
            text = text.replace(there, str(tmp_path))
        return text.replace("0.0.0.0", "127.0.0.1")

    def environment_of(one: Mapping[str, Any]) -> dict[str, str]:
        return environment | {item["name"]: here(item["value"]) for item in one["env"]}

    for _ in range(2):  # it runs at every start of the pod
        command = [*init["command"], *map(here, init["args"])]
        subprocess.run(command, env=environment_of(init), cwd=tmp_path, timeout=60, check=True)
    arguments = [re.sub("--port=.*", "--port=0", here(text)) for text in container["args"]]
    process = subprocess.Popen(
        [sys.executable, "-m", "reprise", *arguments],
        env=environment_of(container),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        api = Api()
        for line in process.stdout:
            if line.startswith("Reprise answers on "):
                api.base_url = line.split()[3]
                break
        yield api, tmp_path
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def test_what_the_manifest_runs_answers_whoever_has_its_key(pod: tuple[Api, Path]) -> None:
    api, volume = pod
    until(lambda: api.request("GET", "/ready")[0] == 200, what="the readiness probe")
    assert api.request("GET", "/health")[0] == 200
    assert api.request("GET", "/services")[0] == 401
    key = (volume / "keys/operator.key").read_text().strip()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    body = b'{"model":"m","block_size":4,"token_ids":[1,2,3,4]}'
    assert api.request("POST", "/query", body, headers)[:2] == (200, b"{}")
    assert api.request("GET", "/ui", None, headers)[0] == 200
