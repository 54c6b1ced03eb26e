"""docs/publishers.md: the publisher that it begins with, and the kinds that it adds, in a copy of
the project.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devtools.broker import free_ports
from tests.processes import Service, until
from tests.unit.doctor.publishers.captures import borealis, write_frames

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "publishers.md").read_text()
COPIED = ("bridge", "tests")
"""What the document writes to; the rest of the copy are links."""
TABLE = "bridge/wire/__init__.py"
ENGINE = "tcp://127.0.0.1:5557"
REPLAY = "tcp://127.0.0.1:5558"
BOUND_S = 60.0


def blocks() -> dict[str, str]:
    """The document's files, by path."""
    found = re.findall(r"^```python (\S+)\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    return dict(found)


def with_entry(table: str, lines: str) -> str:
    """The module that has the table, with the document's import and entry."""
    wanted, entry = lines.split("...\n")
    before, first_import, rest = table.partition("from bridge.wire import ")
    head, opened, entries = rest.partition("MappingProxyType(\n    {\n")
    assert first_import
    assert opened, "the table of kinds is not where the document's entry goes"
    return f"{before}{wanted}{first_import}{head}{opened}{entry}{entries}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project with all that the document adds."""
    assert blocks().keys() == {
        "bridge/wire/acme.py",
        TABLE,
        "tests/unit/bridge/wire/test_acme.py",
        "acme_engine.py",
        "catch.py",
        "small_publisher.py",
        "bridge/wire/borealis.py",
    }
    copy = tmp_path / "project"
    copy.mkdir()
    for path in ROOT.iterdir():
        if path.name in COPIED:
            leave_out = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, copy / path.name, ignore=leave_out)
        elif path.suffix == ".toml" or (path / "__init__.py").exists():
            (copy / path.name).symlink_to(path)
    for name, content in blocks().items():
        file = copy / name
        file.write_text(with_entry(file.read_text(), content) if name == TABLE else content)
    table = copy / TABLE
    lines = "\n        ".join(re.findall(r"`(from bridge.wire import borealis)`", DOCUMENT))
    entry = "".join(re.findall(r"`(borealis.KIND: borealis.open_source,)`", DOCUMENT))
    table.write_text(with_entry(table.read_text(), f"{lines}\n...\n        {entry}\n"))
    return copy


@pytest.fixture
def in_copy(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as what Python imports in processes that are started from now on."""
    monkeypatch.setenv("PYTHONPATH", str(project))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.chdir(project)
    return project


def run(*command: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def check(*options: str, code: int = 0) -> dict[str, Any]:
    """What `reprise publishers check` says of one publisher; it must end with this code."""
    printed = run("-m", "reprise", "publishers", "check", *options, "--json", code=code)
    [publisher] = json.loads(printed)["publishers"]
    found: dict[str, Any] = publisher
    return found


@contextmanager
def script(
    project: Path, name: str, endpoint: str, replay: str = REPLAY
) -> Iterator["subprocess.Popen[bytes]"]:
    """A script of the document, at other addresses."""
    code = (project / name).read_text().replace(ENGINE, endpoint).replace(REPLAY, replay)
    with subprocess.Popen([sys.executable, "-c", code], cwd=project, env=os.environ) as running:
        try:
            yield running
        finally:
            running.kill()


def test_an_engine_of_the_new_kind_is_followed(in_copy: Path, tmp_path: Path) -> None:
    [port] = free_ports(1)
    endpoint = f"tcp://127.0.0.1:{port}"
    with Service(tmp_path / "data") as service, script(in_copy, "acme_engine.py", endpoint):
        service.register(endpoint, type="Acme", instance_id="acme-0")
        tokens = list(range(32))
        until(lambda: service.longest(tokens, "acme-0") == len(tokens), what="the two pages")
        (answer,) = re.findall(r"^(\{\"default\":.*)$", DOCUMENT, re.MULTILINE)
        _, body, _ = service.request(
            "POST",
            "/query",
            f'{{"model":"m","block_size":16,"token_ids":{tokens}}}'.encode(),
            {"Content-Type": "application/json"},
        )
        assert body.decode() == answer
    assert service.first_traceback() == ""


def test_a_message_that_is_caught_is_tested_beside_the_tests_of_the_new_kind(
    in_copy: Path,
) -> None:
    [port] = free_ports(1)
    endpoint = f"tcp://127.0.0.1:{port}"
    with (
        script(in_copy, "catch.py", endpoint) as catching,
        script(in_copy, "acme_engine.py", endpoint),
    ):
        assert catching.wait(BOUND_S) == 0
    folder = "tests/unit/bridge/wire"
    tests = [f"{folder}/test_{name}.py" for name in ("acme", "kinds", "captured")]
    chosen = "test_acme or test_kinds or acme or every_version"
    output = run("-m", "pytest", "-v", "-p", "no:cacheprovider", *tests, "-k", chosen)
    assert "[acme-2.1/added] PASSED" in output
    assert {f"{folder}/test_{name}.py" for name in ("acme", "kinds")} <= set(
        re.findall(r"^(\S+)::", output, re.MULTILINE)
    )
    kinds = run(
        "-c", "import bridge; print(bridge.__file__); from bridge.wire import KINDS; print(*KINDS)"
    )
    found_in, names = kinds.splitlines()
    assert found_in == str(Path.cwd() / "bridge" / "__init__.py")
    assert "Acme" in names.split()


def test_the_smallest_publisher_is_understood_whole_and_its_registration_followed(
    in_copy: Path, tmp_path: Path
) -> None:
    live, replay = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    with script(in_copy, "small_publisher.py", live, replay):
        options = ("--from-zmq", live, "--replay", replay, "--model", "m", "--limit", "150")
        found = check(*options, "--for", "40")
        assert (found["reading"], found["problems"], found["findings"]) == ("whole", [], [])
        assert found["messages"]["numbers"]["first"] == 0
        assert found["blocks"]["chained"] is True
        assert found["blocks"]["removed"] > 0
        assert found["blocks"]["cleared"] > 0
        [body] = found["registrations"]
        assert (body["type"], body["block_size"]) == ("vLLM", 16)
        with Service(tmp_path / "data") as service:
            assert service.post("/register", body)[0] == 200

            def state() -> str:
                [one] = service.get("/services")[1]["services"]
                return str(one["State"])

            until(lambda: state() == "exact", what="all of its batches")


def test_a_capture_goes_through_a_pipe_into_the_check(in_copy: Path, tmp_path: Path) -> None:
    live, replay = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    reprise = [sys.executable, "-m", "reprise"]
    with (
        script(in_copy, "small_publisher.py", live, replay),
        subprocess.Popen(
            [*reprise, "capture", "--from-zmq", live, "--replay", replay, "--limit", "20"],
            stdout=subprocess.PIPE,
        ) as capturing,
    ):
        done = subprocess.run(
            [*reprise, "publishers", "check"],
            stdin=capturing.stdout,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert capturing.wait(BOUND_S) == 0
    assert "messages: 20 in " in done.stdout


def test_an_engine_that_sends_json_is_described_and_then_read_by_the_kind_that_is_added(
    in_copy: Path, tmp_path: Path
) -> None:
    file = str(write_frames(tmp_path / "c", borealis()))
    found = check(file)
    assert (found["kinds"][0]["type"], found["reading"]) == ("Borealis", "whole")
    assert found["registrations"][0]["block_size"] == 32
    assert found["blocks"]["counted"] == 5
    [event] = [one for one in found["events"] if one["tag"] == "cached"]
    pinned = {one["name"]: one["unknown"] for one in event["fields"]}["pinned"]
    assert pinned.startswith("used")
    assert check(file, "--type", "vLLM", code=3)["reading"] == "none"
