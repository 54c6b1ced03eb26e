"""One file of a package is kept; what cannot be had is named."""

import zipfile
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from devtools.publishers import __main__ as command
from devtools.publishers import releases
from devtools.publishers.releases import RELEASES, FetchError, Release, fetch

RELEASE = Release("vllm", "0.9.0")


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What a package has in it that `pip download` brings; it fails where there is nothing."""
    content: dict[str, bytes] = {}

    def run(command: list[str], **_: object) -> "CompletedProcess[str]":
        assert command[1:4] == ["-m", "pip", "download"]
        if not content:
            return CompletedProcess(command, 1, "", "noise\nNo matching distribution")
        directory = command[command.index("--dest") + 1]
        with zipfile.ZipFile(Path(directory) / "one.whl", "w") as archive:
            for name, data in content.items():
                archive.writestr(name, data)
        return CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(releases, "DIRECTORY", tmp_path)
    monkeypatch.setattr("devtools.publishers.releases.subprocess.run", run)
    return content


def test_the_file_that_publishes_is_kept_and_nothing_else(
    pip: dict[str, bytes], tmp_path: Path
) -> None:
    pip |= {"vllm/distributed/kv_events.py": b"code", "vllm/large.so": b"large"}
    assert not RELEASE.is_fetched
    fetch(RELEASE)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept == [RELEASE.path]
    assert RELEASE.path.read_bytes() == b"code"
    pip.clear()
    fetch(RELEASE)  # it is there


def test_a_package_without_the_file_is_named(pip: dict[str, bytes]) -> None:
    pip["vllm/other.py"] = b""
    with pytest.raises(FetchError, match=r"vllm-0\.9\.0: expected vllm/distributed/kv_events\.py"):
        fetch(RELEASE)
    assert not RELEASE.is_fetched


@pytest.mark.usefixtures("pip")
def test_each_release_that_cannot_be_had_is_left_out_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.fetch_all() == len(RELEASES)
    assert "left out: vllm-0.9.0: No matching distribution" in capsys.readouterr().err
