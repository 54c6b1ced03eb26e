"""`wrk`, where it is installed: a client whose own time is small beside a server's."""

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lab.benchmarks.embedded.http_client import CONNECTIONS

BUSY_SHARE: Final = 0.9

_SCRIPT: Final = """
local file, requests, at = assert(io.open(os.getenv("REQUESTS"), "rb")), {}, 0
while true do
  local size = file:read("*n")
  if not size then break end
  file:read(1)
  requests[#requests + 1] = file:read(size)
end
request = function()
  at = at % #requests + 1
  return requests[at]
end
done = function(summary)
  local errors = summary.errors
  local lost = errors.connect + errors.read + errors.write + errors.timeout
  io.stderr:write(summary.requests, " ", summary.duration, " ", errors.status, " ", lost)
end
"""


def installed() -> bool:
    """Whether there is one; Debian's package is `wrk`."""
    return shutil.which("wrk") is not None


class GeneratedLoad(NamedTuple):
    """How many requests were answered, in what time, and the CPU seconds of the generator."""

    answered: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Requests/s."""
        return self.answered / self.seconds

    @property
    def is_limit(self) -> bool:
        """Whether the generator, one thread, had no time left to ask for more."""
        return self.cpu_s >= BUSY_SHARE * self.seconds


def ask(address: tuple[str, int], requests: Sequence[bytes], *, seconds: float) -> GeneratedLoad:
    """Asks a server over CONNECTIONS at once.

    Args:
        address: of the server.
        requests: whole ones, sent in turn.
        seconds: for how long; rounded up to whole ones.

    Raises:
        RuntimeError: it answered something else than 200, or closed a connection.
    """
    with tempfile.TemporaryDirectory(prefix="reprise-bench-") as directory:
        script, content = Path(directory) / "script.lua", Path(directory) / "requests"
        script.write_text(_SCRIPT)
        content.write_bytes(b"".join(b"%d\n%b" % (len(one), one) for one in requests))
        host, port = address
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{-int(-seconds // 1)}s"]
        before_s = _children_cpu_s()
        ended = subprocess.run(
            [*command, "-s", str(script), f"http://{host}:{port}"],
            env={**os.environ, "REQUESTS": str(content)},
            capture_output=True,
            text=True,
            timeout=seconds + 30,
            check=True,
        )
        cpu_s = _children_cpu_s() - before_s
    answered, microseconds, refused, lost = map(int, ended.stderr.split())
    if refused or lost:
        raise RuntimeError(f"Expected answers alone: {refused} of {answered} refused, {lost} lost")
    return GeneratedLoad(answered, microseconds / 1e6, cpu_s)


def _children_cpu_s() -> float:
    """Of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
