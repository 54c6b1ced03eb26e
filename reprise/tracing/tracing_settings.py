"""Whether there is tracing, by OpenTelemetry's own variables.

Those that are not named here, as OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_TIMEOUT,
OTEL_TRACES_SAMPLER and OTEL_RESOURCE_ATTRIBUTES, OpenTelemetry's packages read themselves.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from schemas.errors import ConfigurationError
from schemas.limits import SETTING_SHOWN_CHARS_MAX

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
DISABLED: Final = "OTEL_SDK_DISABLED"
SERVICE_NAME: Final = "OTEL_SERVICE_NAME"
RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"
_HTTP: Final = "http/protobuf"


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether spans are to be sent.

    Raises:
        ConfigurationError: they cannot be sent there, or not in that form.
    """
    endpoint = environment.get(ENDPOINT, "").strip()
    if not endpoint or environment.get(DISABLED, "").strip().lower() == "true":
        return False
    if not _is_address(endpoint):
        raise ConfigurationError(
            f"Expected {ENDPOINT} to be the address of a collector, as http://localhost:4318,"
            f" got: {endpoint[:SETTING_SHOWN_CHARS_MAX]}"
        )
    protocol = environment.get(PROTOCOL, "").strip() or _HTTP
    if protocol != _HTTP:
        raise ConfigurationError(
            f"Expected {PROTOCOL} to be {_HTTP}, which collectors take on port 4318, got:"
            f" {protocol[:SETTING_SHOWN_CHARS_MAX]}"
        )
    return True


def _is_address(text: str) -> bool:
    try:
        address = urlsplit(text)
        return address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # a port that is none
        return False
