"""docs/compatibility.md: the kind of publisher that it adds, as it says, in a copy of the project;
and its table of what was tried.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devtools.broker import free_ports
from devtools.publishers import lmcache, table
from devtools.publishers.releases import RELEASES
from devtools.publishers.table import CODE
from devtools.publishers.trial import captured_files, try_captured
from tests.processes import Service, until

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "compatibility.md").read_text()
COPIED = ("bridge", "tests")
"""What the document writes to; the rest of the copy are links."""
TABLE = "bridge/wire/__init__.py"
ENGINE = "tcp://127.0.0.1:5557"
BOUND_S = 60.0
REMEDY = "`make publishers` writes the table anew"


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
    return copy


@pytest.fixture
def in_copy(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as what Python imports in processes that are started from now on."""
    monkeypatch.setenv("PYTHONPATH", str(project))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.chdir(project)
    return project


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def script(project: Path, name: str, endpoint: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A script of the document, at another address."""
    code = (project / name).read_text().replace(ENGINE, endpoint)
    with subprocess.Popen([sys.executable, "-c", code], cwd=project, env=os.environ) as running:
        try:
            yield running
        finally:
            running.kill()


def test_the_document_has_all_that_a_kind_needs() -> None:
    assert blocks().keys() == {
        "bridge/wire/acme.py",
        TABLE,
        "tests/unit/bridge/wire/test_acme.py",
        "acme_engine.py",
        "catch.py",
    }


@pytest.mark.usefixtures("in_copy")
def test_the_tests_of_the_new_kind_pass() -> None:
    tests = ("tests/unit/bridge/wire/test_acme.py", "tests/unit/bridge/wire/test_kinds.py")
    output = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert " failed" not in output
    kinds = run(
        "-c", "import bridge; print(bridge.__file__); from bridge.wire import KINDS; print(*KINDS)"
    )
    found_in, names = kinds.splitlines()
    assert found_in == str(Path.cwd() / "bridge" / "__init__.py")
    assert "Acme" in names.split()


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


def test_a_message_that_was_caught_is_tested_from_then_on(in_copy: Path) -> None:
    [port] = free_ports(1)
    endpoint = f"tcp://127.0.0.1:{port}"
    with (
        script(in_copy, "catch.py", endpoint) as catching,
        script(in_copy, "acme_engine.py", endpoint),
    ):
        assert catching.wait(BOUND_S) == 0
    captured = "tests/unit/bridge/wire/test_captured.py"
    output = run(
        "-m", "pytest", "-v", "-p", "no:cacheprovider", captured, "-k", "acme or every_version"
    )
    assert "[acme-2.1/added] PASSED" in output


@pytest.mark.parametrize("path", captured_files(), ids=lambda path: path.stem)
def test_every_file_of_captured_frames_has_its_row_in_the_document(path: Path) -> None:
    tried = try_captured(path)
    assert tried.unused == 0
    assert table.row(tried) in table.in_document(), REMEDY


@pytest.mark.parametrize("path", lmcache.captured_files(), ids=lambda path: path.stem)
def test_so_have_lmcaches_messages_and_its_topic(path: Path) -> None:
    tried = lmcache.try_captured(path)
    assert tried.unused == 0
    assert table.row(tried) in table.in_document(), REMEDY


def test_the_document_has_a_row_for_each_release_and_each_file_and_no_other() -> None:
    rows = table.in_document()
    code = {(one.kind, one.version) for one in rows if one.how == CODE}
    assert code == {(release.kind, release.version) for release in RELEASES}, REMEDY
    files = [*captured_files(), *lmcache.captured_files()]
    assert len(rows) == len(files) + len(RELEASES), REMEDY
