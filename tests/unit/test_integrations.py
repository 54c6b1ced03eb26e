"""The packages under `integrations/` import nothing of the service."""

import ast
import importlib.util
import re
import tomllib
from typing import Any

import pytest

from devtools.integrations import PACKAGES, ROOT, Package

CLIENT = ROOT / "integrations" / "reprise-client" / "reprise_client"
OURS = frozenset(
    {
        "bridge",
        "brokers",
        "logs",
        "query_api",
        "replay",
        "reprise",
        "schemas",
        "streams",
        "routing",
        "console",
    }
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda one: one.library)
def test_a_package_imports_nothing_of_the_service(package: Package) -> None:
    folders = (package.folder / f"reprise_{package.library}", CLIENT)
    modules = sorted(path for folder in folders for path in folder.glob("*.py"))
    assert len(modules) >= 6
    imported = set()
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {one.name.split(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                imported.add(node.module.split(".")[0])
    assert not imported & OURS
    assert {"aiohttp", "reprise_client"} <= imported


@pytest.mark.parametrize("package", PACKAGES, ids=lambda one: one.library)
def test_a_package_names_its_library_and_its_readme(package: Package) -> None:
    project = tomllib.loads((package.folder / "pyproject.toml").read_text())["project"]
    assert any(one.startswith(package.library) for one in project["dependencies"])
    assert (package.folder / project["readme"]).exists()


def fake_reprise() -> Any:
    path = ROOT / "integrations" / "fake_services.py"
    spec = importlib.util.spec_from_file_location("fake_services", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FakeReprise()


def test_the_client_of_the_documentation_chooses_tells_and_falls_back() -> None:
    document = (ROOT / "docs" / "integrations.md").read_text()
    block = re.findall(r"```python\n(import .*?)```", document, re.DOTALL)[0]
    server = fake_reprise()
    try:
        client: dict[str, Any] = {}
        text = block.replace("http://127.0.0.1:13333", server.url).replace(
            "timeout=0.1", "timeout=5"
        )
        exec(compile(text, "docs/integrations.md", "exec"), client)
        server.chosen = "b"
        assert client["choose"]([1, 2, 3], ["a", "b"]) == ("d1", "b")
        client["tell"]("d1", "completed", cached_tokens=16)
        assert server.outcome("completed")["cached_tokens"] == 16
        for status, body in ((503, b""), (200, b"[]"), (200, b"\xff"), (200, b"{}")):
            server.replies(status, body)
            decision_id, engine = client["choose"]([1, 2, 3], ["a", "b"])
            assert decision_id is None
            assert engine in ("a", "b")
        client["reprise"].close()
    finally:
        server.close()
