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
    "jinja2",
    "matplotlib",
    "numpy",
    "opentelemetry",
    "pyarrow",
    "pydantic",
    "rich",
    "starlette",
    "tokenizers",
    "transformers",
    "uvicorn",
    "zmq",
}
SERVER = {"starlette", "uvicorn", "zmq"}
KAFKA = {"aiokafka"}
FAUST = {"aiohttp", "aiokafka", "faust"}


@pytest.mark.parametrize(
    ("module", "used"),
    [
        ("reprise.cli.main", set[str]()),
        ("reprise.cli.up", set[str]()),
        ("reprise.cli.get", set[str]()),
        ("doctor.command", set[str]()),
        ("reprise.demo", SERVER),
        ("reprise.roles.up", SERVER),
        ("reprise.roles.serve", SERVER | KAFKA),
        ("reprise.roles.bridge", SERVER | KAFKA),
        ("reprise.roles.streams", SERVER | FAUST),
        ("reprise.roles.relay", SERVER),
    ],
)
def test_nothing_heavy_is_imported_that_is_not_used(module: str, used: set[str]) -> None:
    program = f"import sys, {module}; print(*sorted(set(sys.modules) & {HEAVY!r}))"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(said.stdout.split()) <= used
