"""Where the version stands, and whether it is the same everywhere. Pure but for reading files.

pyproject.toml                        what pip and `reprise --version` say
reprise/__init__.py                   what the code says
streams/kernel/native/Cargo.toml      what the kernel says
CHANGELOG.md                          `## Unreleased`, then `## X.Y.Z - YYYY-MM-DD`, latest first
a tag vX.Y.Z of this commit           if it has one: then nothing is unreleased
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

UNRELEASED: Final = "Unreleased"
_HEADING: Final = re.compile(r"^## (.+?)\s*$", re.MULTILINE)
_RELEASE: Final = re.compile(r"(\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})")
_CODE: Final = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def version_of(root: Path) -> str:
    """What pyproject.toml says."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    version: str = project["version"]
    return version


def problems(root: Path, tags: Sequence[str] = ()) -> list[str]:
    """What does not agree, a sentence each.

    Args:
        root: of the repository.
        tags: of the commit.
    """
    version = version_of(root)
    found = []
    code = _CODE.search((root / "reprise/__init__.py").read_text())
    kernel = tomllib.loads((root / "streams/kernel/native/Cargo.toml").read_text())
    for where, said in (
        ("reprise/__init__.py", code[1] if code else "nothing"),
        ("streams/kernel/native/Cargo.toml", kernel["workspace"]["package"]["version"]),
    ):
        if said != version:
            found.append(f"Expected {version} in {where}, as in pyproject.toml, got: {said}")
    found += _of_changelog((root / "CHANGELOG.md").read_text(), version)
    numbers = [tag[1:] for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    for number in numbers:
        if number != version:
            found.append(f"Expected the tag v{version} of this commit, got: v{number}")
    headings = _HEADING.findall((root / "CHANGELOG.md").read_text())
    if numbers and headings[:1] == [UNRELEASED]:
        found.append(f"Expected `## {version} - YYYY-MM-DD` first in CHANGELOG.md, as it is tagged")
    return found


def _of_changelog(text: str, version: str) -> list[str]:
    headings = _HEADING.findall(text)
    numbered = headings[1:] if headings[:1] == [UNRELEASED] else headings
    if not headings:
        return ["Expected `## Unreleased` or a release in CHANGELOG.md, got no heading"]
    releases = []
    for heading in numbered:
        release = _RELEASE.fullmatch(heading)
        if release is None:
            return [f"Expected `## X.Y.Z - YYYY-MM-DD` in CHANGELOG.md, got: ## {heading}"]
        releases.append((_parts(release[1]), release[2]))
    if releases != sorted(releases, reverse=True):
        return ["Expected the releases of CHANGELOG.md with the latest one first"]
    if releases and releases[0][0] > _parts(version):
        return [f"Expected no release above {version} in CHANGELOG.md, got: {numbered[0]}"]
    if numbered is headings and releases[0][0] != _parts(version):
        return [f"Expected `## Unreleased` or {version} first in CHANGELOG.md, got: {headings[0]}"]
    return []


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
