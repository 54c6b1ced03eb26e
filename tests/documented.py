"""The commands that README.md and docs/ show, and which of them cannot be run by a test.

A command begins with `$ ` in a block of `console`, `bash` or `sh`, and goes on behind a backslash
or within quotes; a block of `bash` or `sh` without any `$ ` is one command. What is left is output.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import schemas

ROOT: Final = Path(schemas.__file__).parents[1]
DOCUMENTS: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK: Final = re.compile(r"^```(console|bash|sh)\b[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"\s+# .*$")


class Command(NamedTuple):
    """One command as it is printed, where its first line is, and the first one of its block."""

    document: str
    line: int
    text: str
    block: int = 0

    @property
    def is_of_kafka(self) -> bool:
        """Whether it needs a broker."""
        return "kafka " in self.text

    @property
    def place(self) -> str:
        """For people."""
        return f"{self.document}:{self.line}: {self.text}"


class Elsewhere(NamedTuple):
    """Commands that no test runs as they stand, and why."""

    pattern: str
    reason: str


BY_NAME: Final = "needs the package index: the Makefile's target installs it"
MINUTES: Final = "takes minutes: tests/unit/lab/benchmarks runs its parts"
ELSEWHERE: Final = (
    Elsewhere(r"^(KEY=\$\()?(REPRISE_\w+=\S+ )?docker ", "needs Docker"),
    Elsewhere(r"\bkubectl ", "needs a cluster: tests/unit/test_chart.py"),
    Elsewhere(r"^helm ", "needs a cluster: tests/unit/test_chart.py"),
    Elsewhere(
        r"^REPRISE_KEY=\$\(cat discover.key\) reprise discover ",
        "needs a cluster: tests/integration/test_discovery.py has an API server",
    ),
    Elsewhere(r"^make run$", "builds an environment: tests/integration/test_demo.py runs the demo"),
    Elsewhere(r"^make kafka$", "the tests have a broker of their own"),
    Elsewhere(r"^make (bench|peers|faults|real)\b", MINUTES),
    Elsewhere(r"^\.venv/bin/python -m lab\.benchmarks\.scaling\.fleet ", MINUTES),
    Elsewhere(r"^python -m lab.benchmarks --only ", MINUTES),
    Elsewhere(
        r"^\.venv/bin/python -m lab\.benchmarks\.report",
        "needs what `make bench` writes: tests/unit/lab/benchmarks/report",
    ),
    Elsewhere(
        r"^\.venv/bin/python -m lab\.benchmarks\.scaling --write",
        "writes into the documents: tests/unit/lab/benchmarks/test_scaling.py compares them",
    ),
    Elsewhere(
        r"^\.venv/bin/python (-m pytest -q tests/unit/bridge/wire/test_acme|acme_engine)",
        "needs the module that the page adds: tests/integration/test_publishers_document.py",
    ),
    Elsewhere(r'^curl .*"type": "Acme"', "the same"),
    Elsewhere(r'^curl .*"messages":', "needs a model: tests/integration/test_real_engines.py"),
    Elsewhere(r"^(\.venv/bin/|python3 -m venv .* && )?pip install ", BY_NAME),
    Elsewhere(
        r"^sgl-router ", "needs SGLang's router: tests/integration/test_grpc.py asks as it does"
    ),
    Elsewhere(
        r"^curl -si? localhost:13333/(pin|check_finish|clear) ",
        "needs a worker of LMCache: tests/contract/test_lmcache_commands_contract.py",
    ),
    Elsewhere(
        r"(--set tls\.cert|--cacert|REPRISE_CA=)",
        "needs certificates: tests/integration/test_tls.py makes them",
    ),
    Elsewhere(
        r"^(for topic in .*\n.*)?kafka-topics\.sh |^for topic in ",
        "needs Kafka's scripts: tests/integration/test_topics_document.py compares the settings",
    ),
    Elsewhere(r"^kcat ", "needs kcat"),
    Elsewhere(r":8080", "needs engines: tests/contract/test_gateway_contract.py has some"),
)
"""The first row that fits says why."""

ENDS_WITH: Final = (
    (r'"token_ids":\[1,2\.5\]', 22, "the page shows an error: 400"),
    (r"--as-publisher", 130, "it goes on until Ctrl-C"),
)
"""Commands that end with another exit code than 0, and why; curl's is 22 for a status from 400."""

SERVICES: Final = re.compile(
    r"^([A-Z_]+=\S+ )*(\.venv/bin/)?reprise"
    r" ((up|bridge|streams|serve|relay|republish)\b|replay .*--as-)"
)
"""Commands that run until they are stopped."""


def read_commands(name: str, text: str) -> Iterator[Command]:
    """The commands of a document, in order."""
    for block in _BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(2)) + 1
        lines = block[2].splitlines()
        if block[1] != "console" and not any(line.startswith("$ ") for line in lines):
            yield Command(name, first, block[2].strip(), first)
            continue
        number = 0
        while number < len(lines):
            begin = number
            number += 1
            if not lines[begin].startswith("$ "):
                continue
            command = lines[begin].removeprefix("$ ")
            while _goes_on(command) and number < len(lines):
                command += "\n" + lines[number]
                number += 1
            typed = "\n".join(map(_bare, command.splitlines()))
            yield Command(name, first + begin, typed, first)


def _bare(line: str) -> str:
    return _COMMENT.sub("", line).rstrip()


def _goes_on(command: str) -> bool:
    if command.endswith("\\"):
        return True
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


@cache
def commands() -> Sequence[Command]:
    """All of them."""
    return [one for path in DOCUMENTS for one in read_commands(path.name, path.read_text())]


def why_elsewhere(command: Command) -> str:
    """Why no test runs it, or ""."""
    for row in ELSEWHERE:
        if re.search(row.pattern, command.text, re.DOTALL):
            return row.reason
    return ""
