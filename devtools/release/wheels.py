"""The wheel: one file for CPython 3.11 to 3.13 (abi3), with the Rust kernel in it, for every Linux
of this processor whose libc is not older than its name says (manylinux).

It is tried in an environment of its own, with no Rust on its path: it has the kernel, and answers.
"""

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_QUERY: Final = b'{"model":"m","block_size":16,"token_ids":[1,2,3]}'
_START_S: Final = 60.0


class WheelError(Exception):
    """It could not be built, or does not do what it should."""


def build(directory: Path) -> Path:
    """Builds the wheel and gives it its name.

    Args:
        directory: where it goes; what is there of another version stays.

    Raises:
        WheelError: a tool has failed; it has said why.
    """
    if shutil.which("cargo") is None:
        raise WheelError("Expected cargo on the PATH, found none: the wheel has the Rust kernel")
    raw = directory / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(raw)]
    abi3 = "--config-settings=--build-option=--py-limited-api=cp311"
    _run([*pip, *options, abi3, str(ROOT)])
    (wheel,) = raw.glob("*.whl")
    if "-cp311-abi3-" not in wheel.name:
        raise WheelError(f"Expected a wheel with the kernel for cp311-abi3, got: {wheel.name}")
    _run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(directory), str(wheel)])
    shutil.rmtree(raw)
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # the next wheel must not have what is gone
    found = sorted(
        directory.glob("*-cp311-abi3-manylinux*.whl"), key=lambda one: one.stat().st_mtime
    )
    if not found:
        raise WheelError("Expected auditwheel to name a manylinux wheel, got none")
    return found[-1]


def attempt(wheel: Path, python: str, directory: Path) -> str:
    """Installs the wheel for an interpreter, and asks it something. Returns what it says it is.

    Args:
        wheel: as `build` made it.
        python: an interpreter.
        directory: of the environment, which is made anew.

    Raises:
        WheelError: it does not install, has no kernel, or does not answer.
    """
    shutil.rmtree(directory, ignore_errors=True)
    _run([python, "-m", "venv", str(directory)])
    binaries = directory / "bin"
    # Neither a compiler nor this checkout is to be found from there.
    environment = {"PATH": f"{binaries}:/usr/bin:/bin", "HOME": str(directory)}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    if shutil.which("cargo", path=environment["PATH"]):
        raise WheelError("Expected no cargo in /usr/bin and /bin: the trial would prove nothing")
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    pip = [str(binaries / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *constraints, str(wheel)], environment, directory)
    reprise = str(binaries / "reprise")
    said = _run([reprise, "--version"], environment, directory)
    kernel = "from streams.kernel import native_available as n; raise SystemExit(not n())"
    _run([str(binaries / "python"), "-c", kernel], environment, directory)
    _ask([reprise, "up", "--port", "0", "--data", "data"], environment, directory)
    return said


def _ask(command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
    with subprocess.Popen(
        command, env=environment, cwd=directory, stdout=subprocess.PIPE, text=True
    ) as service:
        try:
            assert service.stdout is not None
            line = service.stdout.readline()
            if not line.startswith("Reprise answers on "):
                raise WheelError(f"Expected the service to answer, got: {line}")
            base_url = line.split()[3]
            until = time.monotonic() + _START_S
            while not _is_ready(base_url):
                if time.monotonic() >= until:
                    raise WheelError(f"Expected {base_url} to be ready within {_START_S:.0f} s")
                time.sleep(0.1)
            request = urllib.request.Request(
                f"{base_url}/query", _QUERY, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=_START_S) as answer:
                if answer.read() != b"{}":
                    raise WheelError("Expected `{}` of an empty index")
        finally:
            service.terminate()


def _is_ready(base_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base_url}/ready", timeout=_START_S):
            return True
    except urllib.error.HTTPError:
        return False


def _run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> str:
    done = subprocess.run(
        command, env=environment, cwd=directory, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise WheelError(f"Failed with {done.returncode}: {' '.join(command)}")
    return done.stdout.strip()
