"""What the zygote forks is what `subprocess` would have started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logs.embedded import EmbeddedLog
from tests.building import registered_record, registration
from tests.zygote import SWITCH

REPRISE = [sys.executable, "-m", "reprise"]

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looked at in /proc")


def is_forked(process: "subprocess.Popen[str]") -> bool:
    """Whether another process than this one has started it."""
    parent = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1]
    return int(parent) != os.getpid()


@pytest.mark.parametrize("switch", ["", "0"])
def test_output_errors_and_codes_are_those_of_a_command(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    said = subprocess.run([*REPRISE, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("reprise, version ")
    assert said.stderr == ""
    refused = subprocess.run([*REPRISE, "nonsense"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "No such command 'nonsense'" in refused.stderr
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([*REPRISE, "nonsense"], capture_output=True, check=True)


@pytest.mark.parametrize("switch", ["", "0"])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_files_directory_environment_and_signals(
    tmp_path: Path,
    switch: str,
    number: signal.Signals,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    log = EmbeddedLog(tmp_path / "data" / "log")
    log.append([registered_record(registration())])
    log.close()
    with subprocess.Popen(
        [*REPRISE, "tail", "--data", "data", "--follow", "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "REPRISE_ONLY_HERE": "1"},
    ) as process:
        assert is_forked(process) is (switch != "0")
        assert process.stdout is not None
        assert '"kind":"registered"' in process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None
        assert Path(f"/proc/{process.pid}/cwd").resolve() == tmp_path
        process.send_signal(number)
        rest, errors = process.communicate(timeout=20)
    assert (process.returncode, rest, errors) == (code, "", "")


def test_what_python_reads_as_it_starts_is_not_forked() -> None:
    seed = {**os.environ, "PYTHONHASHSEED": "1"}
    for command, environment in ((REPRISE, seed), ([sys.executable, "-c", "input()"], None)):
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, text=True
        ) as process:
            assert not is_forked(process)
            process.kill()
