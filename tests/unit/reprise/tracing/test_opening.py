"""Whether there is tracing, by the environment."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reprise.tracing import opening
from reprise.tracing.opening import NO_TRACING, open_tracing, tracing_of
from schemas.errors import ConfigurationError
from schemas.tracing import SpanName
from tests.spans import Collector

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SOMEWHERE = {ENDPOINT: "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    "environment",
    [{}, {ENDPOINT: " "}, SOMEWHERE | {"OTEL_SDK_DISABLED": "TRUE"}],
)
def test_it_is_off_unless_a_collector_is_named(environment: dict[str, str]) -> None:
    assert open_tracing(environment, "serve") is NO_TRACING
    assert not NO_TRACING.tracer.is_on


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({ENDPOINT: "localhost:4318"}, "address of a collector"),
        ({ENDPOINT: "ftp://localhost"}, "address of a collector"),
        ({ENDPOINT: "http://"}, "address of a collector"),
        ({ENDPOINT: "http://h:99999"}, "address of a collector"),
        (SOMEWHERE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "got: grpc"),
    ],
)
def test_what_cannot_be_used_is_refused(environment: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        open_tracing(environment, "serve")


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_PACKAGES", ("no_such_package.sdk", "sys"))
    with pytest.raises(ConfigurationError, match="pip install opentelemetry-sdk"):
        open_tracing(SOMEWHERE, "serve")


def test_spans_reach_the_collector_by_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        monkeypatch.setenv(ENDPOINT, collector.endpoint)
        with tracing_of({ENDPOINT: collector.endpoint}, "serve") as tracing:
            assert tracing.tracer.is_on
            with tracing.tracer.begin(SpanName.ROUTE) as span:
                span.note({"a": 1})
        assert tracing.counts is not None
        assert (tracing.counts.exported, dict(tracing.counts.dropped)) == (1, {})
        (kept,) = collector.spans()
    assert (kept.name, kept.attributes["a"]) == ("reprise.route", 1)


def test_without_tracing_its_packages_are_not_imported() -> None:
    code = (
        "import sys, reprise.roles.up as role;"
        " role.tracing_of({}, 'x').__enter__();"
        " sys.exit(any(f'opentelemetry.{one}' in sys.modules for one in ('sdk', 'exporter')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_service_says_at_once_what_it_cannot_use(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    up = ("up", "--port", "0", "--data", str(tmp_path / "data"))
    assert "as http://localhost:4318" in refused(*up, **{ENDPOINT: "collector:4317"})
