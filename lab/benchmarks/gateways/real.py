"""Two real vLLM servers, and people who talk to them: in turn through vLLM's router by round robin
and by its `kv_aware`, and through the gateway. `make engines` and `make peers` install what it
needs; the first figure of README.md is its table.

    python -m lab.benchmarks.gateways.real [--seeds 3] [--json figures.json]

The engines are the same for all, their caches are emptied before each run, and the routers are
started afresh. In the end the gateway is killed in the middle of a run, and started again.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import sleep
from typing import Final, Self

import click
import msgspec

from devtools.broker import free_ports
from devtools.engines import Engines, MissingEnginesError, engines
from devtools.leftovers import MARK, Leftovers
from devtools.routers import VLLM_ROUTER, routers
from lab.benchmarks.embedded.service import until
from lab.benchmarks.gateways.clients import BROKEN_OFF, AnsweredChats, cached_share
from lab.benchmarks.gateways.engines import RouterTarget, http_target
from lab.benchmarks.gateways.routers import KvAware, Reprise, RoundRobin, Router
from lab.benchmarks.gateways.talks import Talking, Talks
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.report.machine import describe_machine
from lab.benchmarks.sizes import SEED

MODEL: Final = "tiny"
BLOCK: Final = 32
BLOCKS: Final = 300
"""Of each engine, 9,600 tokens: one cannot hold all system prompts, two can."""

SHAPE: Final = {
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
}
"""Of a Llama of ten million parameters: so large that to compute a prompt takes time on a core."""

SYSTEM_WORDS: Final = (700, 1_000)
SYSTEM_PROMPTS: Final = 10
TALKS: Final = Talks(
    system_prompts=(),
    conversations=24,
    per_s=1.2,
    turns=4,
    user_words=30,
    answer_tokens=8,
    think_s=1.0,
)
START_S: Final = 600.0
WORDS: Final = Path(__file__).parents[3] / "docs" / "topics.md"
KINDS: Final = (RoundRobin, KvAware, Reprise)


class _VllmServer:
    """One engine, on one core. `with` it, it runs; `wait` until it serves."""

    def __init__(self, installed: Engines, folder: Path, core: int) -> None:
        port, events, replay = free_ports(3)
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / f"vllm-{port}.log"
        shape = ("--load-format", "dummy", "--hf-overrides", json.dumps(SHAPE))
        # Without it vLLM 0.32 renders no prompts for its router, which has no tokens then.
        renders = "--enable-scale-out"
        self._command = installed.command(
            port=port,
            events=events,
            replay=replay,
            options=(*shape, renders, "--num-gpu-blocks-override", str(BLOCKS)),
        )
        self._environment = installed.environment(cores=str(core), cache=folder / f"cache-{port}")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**self._environment, **_marks()},
                stdout=log,
                stderr=log,
                start_new_session=True,  # it has processes of its own
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self) -> None:
        """Returns once it serves."""
        until(self._serves, poll_s=0.5, timeout_s=START_S)

    def _serves(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"Expected an engine, got: {self._log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _clear(url: str) -> None:
    """Empties an engine's cache, of which it says so with the next step that it computes."""
    for path, body in (
        ("/v1/completions", {"model": MODEL, "prompt": "one", "max_tokens": 1}),
        ("/reset_prefix_cache", {}),
        ("/v1/completions", {"model": MODEL, "prompt": "two", "max_tokens": 1}),
    ):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()


def _marks() -> dict[str, str]:
    """By which what is left is found, however this process ends."""
    return {name: value for name, value in os.environ.items() if name.startswith(MARK)}


class _Place:
    """The engines, and what is talked about."""

    def __init__(self, installed: Engines, targets: Sequence[RouterTarget]) -> None:
        self._installed = installed
        self._targets = targets
        self._words = WORDS.read_text().split()

    def router(self, kind: type[Router]) -> Router:
        """One, before engines whose caches are empty."""
        for one in self._targets:
            _clear(one.url)
        common = (self._targets, MODEL, self._installed.model, BLOCK)
        return Reprise(*common) if kind is Reprise else kind(*common, routers())  # type: ignore[call-arg]

    def talking(self, url: str, seed: int) -> Talking:
        """Those of a seed."""
        chance = random.Random(seed)
        prompts = [
            " ".join(chance.choices(self._words, k=chance.randint(*SYSTEM_WORDS)))
            for _ in range(SYSTEM_PROMPTS)
        ]
        return Talking(TALKS._replace(system_prompts=prompts), self._words, MODEL, url)

    def run(self, kind: type[Router], seed: int) -> tuple[AnsweredChats, float]:
        """And the router's CPU of a request."""
        with self.router(kind) as router:
            cpu_s = router.cpu_s()
            answered = asyncio.run(self.talking(router.url, seed).run(seed))
            return answered, (router.cpu_s() - cpu_s) / len(answered.chats)

    def killed(self, seed: int, after_s: float) -> tuple[AnsweredChats, float]:
        """The gateway is killed so long after the start; and when, from the start."""
        with self.router(Reprise) as router:

            def restart() -> None:
                sleep(after_s)
                router.kill()
                router.start()

            async def both() -> AnsweredChats:
                talks = asyncio.ensure_future(self.talking(router.url, seed).run(seed))
                await asyncio.to_thread(restart)
                return await talks

            return asyncio.run(both()), after_s


def _figures(name: str, runs: Sequence[tuple[AnsweredChats, float]]) -> list[Figure]:
    rows = (
        ("cached", "%", [100 * one.cached for one, _ in runs]),
        ("TTFT, mean", "ms", [1000 * one.mean_s for one, _ in runs]),
        ("TTFT, p99", "ms", [1000 * one.ttft_s(99) for one, _ in runs]),
        ("failed", "requests", [float(one.failed) for one, _ in runs]),
        ("CPU of a request", "ms", [1000 * cpu_s for _, cpu_s in runs]),
    )
    note = f"{len(runs[0][0].chats)} requests"
    return [
        Figure(name=f"{name}: {what}", unit=unit, runs=values, note=note)
        for what, unit, values in rows
    ]


def _started(installed: Engines, stack: ExitStack) -> list[str]:
    """The URLs of two."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reprise-bench-")))
    servers = [stack.enter_context(_VllmServer(installed, folder, core)) for core in (0, 1)]
    for one in servers:
        one.wait()
    return [one.url for one in servers]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seeds", type=int, default=3, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--engine", multiple=True, metavar="URL", help="One that runs already, of two; none is started."
)
def main(seeds: int, json_path: Path | None, engine: Sequence[str]) -> None:
    """Measures the gateway beside vLLM's router, before two real vLLM servers."""
    installed = engines()
    try:
        installed.check()
    except MissingEnginesError as error:
        raise click.ClickException(f"Cannot start vLLM: {error}") from error
    kinds = [one for one in KINDS if one is Reprise or routers().has(VLLM_ROUTER)]
    if len(kinds) < len(KINDS):
        click.echo(f"Left out: {routers().missing(VLLM_ROUTER)}")
    machine = describe_machine()
    click.echo(f"{machine.date}, {machine.processors} x {machine.processor}, load {machine.load}")
    with ExitStack() as stack:
        urls = engine or _started(installed, stack)
        place = _Place(installed, [http_target(url) for url in urls])
        runs: dict[str, list[tuple[AnsweredChats, float]]] = {one.name: [] for one in kinds}
        for seed in range(SEED, SEED + seeds):
            for kind in kinds:
                answered, cpu_s = place.run(kind, seed)
                runs[kind.name].append((answered, cpu_s))
                click.echo(f"{seed} {kind.name}: {_said_of(answered, cpu_s)}")
        killed, at_s = place.killed(SEED, TALKS.conversations / TALKS.per_s / 2)
    found = [figure for name, of_name in runs.items() for figure in _figures(name, of_name)]
    for line in _table(found, list(runs), seeds):
        click.echo(line)
    click.echo(_said_of_the_killed(killed, at_s))
    if json_path is not None:
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode([machine, found])) + b"\n")


def _said_of(answered: AnsweredChats, cpu_s: float) -> str:
    return (
        f"{100 * answered.cached:.0f} % cached, TTFT mean {1000 * answered.mean_s:.0f} ms, p99"
        f" {1000 * answered.ttft_s(99):.0f} ms, {answered.failed} of {len(answered.chats)} failed,"
        f" {1000 * cpu_s:.1f} ms of CPU a request"
    )


def _table(figures: Sequence[Figure], names: Sequence[str], seeds: int) -> list[str]:
    """As README.md has it."""
    known = {figure.name: figure.runs for figure in figures}
    lines = [f"| seed | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}"]
    for seed in range(seeds):
        cells = [
            f"{known[f'{name}: TTFT, mean'][seed]:.0f} ms, {known[f'{name}: cached'][seed]:.0f} %"
            for name in names
        ]
        lines.append(f"| {seed + 1} | {' | '.join(cells)} |")
    return lines


def _said_of_the_killed(killed: AnsweredChats, at_s: float) -> str:
    before = [one for one in killed.answered if one.at_s < at_s]
    after = [one for one in killed.answered if one.at_s >= at_s]
    begun = [one for one in killed.chats if one.problem.startswith(BROKEN_OFF)]
    waited = [one.at_s + one.ttft_s for one in after if one.refused]
    return (
        f"Killed after {at_s:g} s: {killed.failed} of {len(killed.chats)} failed, {len(begun)} of"
        f" them were under way; {len(waited)} waited, the first one for"
        f" {min(waited, default=at_s) - at_s:.1f} s; cached before"
        f" {100 * cached_share(before):.0f} %, after {100 * cached_share(after):.0f} %"
    )


if __name__ == "__main__":
    with Leftovers():  # engines and routers end with this process, also by SIGTERM
        main()
