"""What a command and a role import where they do not use it: each would take as long to start."""

import subprocess
import sys

import pytest

HEAVY = {
    "aiohttp",
    "aiokafka",
    "fastapi",
    "faust",
    "grpc",
    "matplotlib",
    "numpy",
    "opentelemetry",
    "pyarrow",
    "pydantic",
    "rich",
}
KAFKA = {"aiokafka"}
FAUST = {"aiohttp", "aiokafka", "faust"}


@pytest.mark.parametrize(
    ("module", "used"),
    [
        ("reprise.cli.main", set[str]()),
        ("reprise.cli.up", set[str]()),
        ("reprise.demo", set[str]()),
        ("reprise.roles.serve", KAFKA),
        ("reprise.roles.bridge", KAFKA),
        ("reprise.roles.streams", FAUST),
        ("reprise.roles.relay", set[str]()),
    ],
)
def test_nothing_heavy_is_imported_that_is_not_used(module: str, used: set[str]) -> None:
    program = f"import sys, {module}; print(*sorted(set(sys.modules) & {HEAVY!r}))"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(said.stdout.split()) <= used
