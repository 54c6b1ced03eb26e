"""Builds the image with Docker and tries it: `make image`.

What it adds to its base is small enough; it runs without root, capabilities and a file system that
can be written; and where its data directory cannot be written, it says so.
"""

import argparse
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ADDED_BYTES_MAX: Final = 150_000_000
READY_S: Final = 60.0
STOP_S: Final = 30
_LOCKED: Final = (
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--network=none",
)
_DATA: Final = "/var/lib/reprise"
_USER: Final = "10001"
_KERNEL: Final = "import streams.kernel as k, sys; sys.exit(not k.native_available())"
_READY: Final = "import urllib.request as r; r.urlopen('http://127.0.0.1:13333/ready', timeout=3)"


class ImageError(Exception):
    """The image does not do what it should."""


def docker(*arguments: str, code: int = 0) -> str:
    """What a command of Docker prints.

    Raises:
        ImageError: it has ended with another code than `code`.
    """
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode != code:
        command = " ".join(arguments)
        raise ImageError(
            f"Expected exit code {code} of docker {command}, got {done.returncode}: {said}"
        )
    return said


def attempt(image: str) -> int:
    """Tries an image; returns how many bytes it adds to its base.

    Raises:
        ImageError: it does not do what it should.
    """
    run = ("run", "--rm", *_LOCKED)
    added = int(docker(*run, "--entrypoint=du", image, "-sb", "/opt/reprise").split()[0])
    if added >= ADDED_BYTES_MAX:
        raise ImageError(f"Expected less than {ADDED_BYTES_MAX:,} bytes added, got {added:,}")
    user = docker(*run, "--entrypoint=id", image, "-u").strip()
    if user != _USER:
        raise ImageError(f"Expected the user {_USER}, got {user}")
    docker(*run, image, "--help")
    docker(*run, "--entrypoint=python", image, "-c", _KERNEL)
    said = docker(*run, f"--tmpfs={_DATA}:mode=755,uid=0", image, "up", code=1)
    if not said.startswith("Error: ") or "Permission denied" not in said:
        raise ImageError(f"Expected an error of one line, got: {said}")
    _serve(image)
    return added


def _serve(image: str) -> None:
    """`reprise up` becomes ready, and ends when it is told to."""
    name = f"reprise-{uuid.uuid4().hex[:8]}"
    docker("run", "--detach", f"--name={name}", *_LOCKED, f"--volume={_DATA}", image, "up")
    try:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                docker("exec", name, "python", "-c", _READY)
                break
            except ImageError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(1)
        docker("stop", f"-t{STOP_S}", name)
        ended = docker("inspect", "--format={{.State.ExitCode}}", name).strip()
        if ended != "0":
            raise ImageError(
                f"Expected exit code 0 after SIGTERM, got {ended}: {docker('logs', name)}"
            )
    finally:
        docker("rm", "--force", "--volumes", name)


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m devtools.image", description=__doc__)
    parser.add_argument("--tag", default="reprise:latest", help="what the image is called")
    given = parser.parse_args(arguments)
    try:
        if subprocess.run(["docker", "build", f"--tag={given.tag}", ROOT], check=False).returncode:
            return 1
        print(f"==> {given.tag} runs, and adds {attempt(given.tag):,} bytes to its base")
    except (ImageError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
