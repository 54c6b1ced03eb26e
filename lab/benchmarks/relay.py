"""What `reprise relay` costs: its CPU for a message, and how much later a message comes through it.

```console
$ python -m lab.benchmarks.relay
```

One PUB socket, two subscribers in one process: one at the socket, one behind the relay. Both times
are of the same messages.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import zmq
from zmq.auth import load_certificate

from lab.benchmarks.embedded.service import cpu_seconds

_SETTLE_S = 1.0


def main(sizes: Sequence[int], messages: int, rate: float) -> None:
    """Prints a line for each size."""
    click.echo("bytes of a message   CPU of the relay, us   later by, us: p50   p99   arrived")
    for size_bytes in sizes:
        with tempfile.TemporaryDirectory() as directory:
            click.echo(_line(Path(directory), size_bytes, messages, rate))


def _line(directory: Path, size_bytes: int, messages: int, rate: float) -> str:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    engine = context.socket(zmq.PUB)
    engine.sndhwm = 0
    port = engine.bind_to_random_port("tcp://127.0.0.1")
    keys = {name: _make_key(directory / name) for name in ("relay", "bridge")}
    (directory / "bridges.txt").write_text(keys["bridge"])
    probe = context.socket(zmq.PUB)
    listen = probe.bind_to_random_port("tcp://127.0.0.1")
    probe.close(linger=0)
    relay = subprocess.Popen(
        [
            *(sys.executable, "-m", "reprise", "relay"),
            *("--engine", f"tcp://127.0.0.1:{port}", "--listen", f"tcp://127.0.0.1:{listen}"),
            *("--curve-key", str(directory / "relay.key_secret")),
            *("--bridge-keys", str(directory / "bridges.txt")),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        plain, encrypted = context.socket(zmq.SUB), context.socket(zmq.SUB)
        encrypted.curve_serverkey = keys["relay"].encode()
        public, secret = load_certificate(directory / "bridge.key_secret")
        assert secret is not None
        encrypted.curve_publickey, encrypted.curve_secretkey = public, secret
        for one, at in ((plain, port), (encrypted, listen)):
            one.rcvhwm = 0
            one.subscribe(b"")
            one.connect(f"tcp://127.0.0.1:{at}")
        while not encrypted.poll(100):
            engine.send_multipart([b"", b"", b""])
        time.sleep(_SETTLE_S)
        before = cpu_seconds(relay.pid)
        later, arrived = _run(engine, plain, encrypted, size_bytes, messages, rate)
        cpu_us = 1e6 * (cpu_seconds(relay.pid) - before) / messages
        p50, p99 = statistics.median(later), statistics.quantiles(later, n=100)[98]
        return (
            f"{size_bytes:18,}   {cpu_us:20.1f}   {1e6 * p50:17.0f}   {1e6 * p99:.0f}   {arrived:,}"
        )
    finally:
        relay.kill()
        relay.wait()
        context.destroy(linger=0)


def _run(
    engine: "zmq.Socket[bytes]",
    plain: "zmq.Socket[bytes]",
    encrypted: "zmq.Socket[bytes]",
    size_bytes: int,
    messages: int,
    rate: float,
) -> tuple[list[float], int]:
    """By how much each message came later through the relay, seconds; and how many came."""
    payload = os.urandom(size_bytes)
    came: dict[str, dict[bytes, float]] = {"plain": {}, "encrypted": {}}
    poller = zmq.Poller()
    names = {plain: "plain", encrypted: "encrypted"}
    for one in names:
        poller.register(one, zmq.POLLIN)
    begin = time.perf_counter()
    for number in range(messages):
        engine.send_multipart([b"", number.to_bytes(8, "big"), payload])
        due = begin + (number + 1) / rate
        while (wait_s := due - time.perf_counter()) > 0:
            _take(poller, names, came, round(1000 * wait_s))
    until = time.perf_counter() + 5
    while len(came["encrypted"]) < messages and time.perf_counter() < until:
        _take(poller, names, came, 100)
    both = came["plain"].keys() & came["encrypted"].keys()
    return [came["encrypted"][one] - came["plain"][one] for one in both], len(both)


def _take(
    poller: zmq.Poller,
    names: "dict[zmq.Socket[bytes], str]",
    came: dict[str, dict[bytes, float]],
    wait_ms: int,
) -> None:
    for one, _ in poller.poll(wait_ms):
        _, number, _ = one.recv_multipart()
        if number:
            came[names[one]][number] = time.perf_counter()


def _make_key(name: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "reprise", "curve-key", str(name)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--size", "sizes", type=int, multiple=True, default=(200, 2_000, 20_000))
@click.option("--messages", type=int, default=10_000, show_default=True)
@click.option("--rate", type=float, default=2_000.0, show_default=True, help="Messages a second.")
def command(sizes: tuple[int, ...], messages: int, rate: float) -> None:
    """Measures `reprise relay` beside a link without it."""
    main(sizes, messages, rate)


if __name__ == "__main__":
    command()
