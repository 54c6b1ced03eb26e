"""The packages under `integrations/` can be installed alone, so what they share is there twice."""

import ast
import tomllib

import pytest

from devtools.integrations import PACKAGES, Package

SHARED = ("client.py", "tokens.py")
OURS = frozenset({"bridge", "brokers", "query_api", "replay", "reprise", "schemas", "streams"})


@pytest.mark.parametrize("name", SHARED)
def test_what_they_share_is_the_same(name: str) -> None:
    texts = {
        (one.folder / f"reprise_{one.library}" / name).read_text(encoding="utf-8")
        for one in PACKAGES
    }
    assert len(texts) == 1, f"copy {name} from one package to the other"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda one: one.library)
def test_a_package_imports_nothing_of_the_service(package: Package) -> None:
    modules = sorted((package.folder / f"reprise_{package.library}").glob("*.py"))
    assert len(modules) > 3
    imported = set()
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {one.name.split(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                imported.add(node.module.split(".")[0])
    assert not imported & OURS
    assert "httpx" in imported


@pytest.mark.parametrize("package", PACKAGES, ids=lambda one: one.library)
def test_a_package_names_its_library_and_its_readme(package: Package) -> None:
    project = tomllib.loads((package.folder / "pyproject.toml").read_text())["project"]
    assert any(one.startswith(package.library) for one in project["dependencies"])
    assert (package.folder / project["readme"]).exists()
