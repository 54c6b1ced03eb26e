"""Every setting of a service, in one object: from flags, the environment and the configuration
file.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bridge.engine_http.load_answers import check_period
from bridge.memory.watch import MemorySettings
from console.addresses import DEFAULT_HOST, DEFAULT_PORT
from query_api.access.access_settings import AccessSettings
from query_api.grpc.grpc_settings import GrpcSettings
from query_api.http.wire import Wire
from reprise.bounds import HISTORY_BYTES, LOG_RETENTION_BYTES, LOG_RETENTION_S
from reprise.http.tls_settings import TlsSettings
from routing.decisions.router import RouterSettings
from schemas import limits
from schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from reprise.rooms import GatewaySettings, LmcacheSettings

LOG_SYNC_S: Final = 0.05  # what a power cut may cost
TABLE_FLUSH_S: Final = 0.25  # between two flushes of a table

assert LOG_SYNC_S <= TABLE_FLUSH_S, "a table row may not cover a record that is not yet durable"

DEFAULT_SEED: Final = 1337
"""Dynamo's seed, so that `/query_by_hash` takes its hashes as they are."""

_SEED_DIGITS_MAX: Final = len(str(2**64 - 1))

LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


class AnsweringSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every role that answers queries runs with.

    Attributes:
        seed: of the prefix hash, u64; the same for every role.
        kernel: "rust", "reference", or None for the fastest there is.
        default_wire: see `query_api.http.app.create_app`.
        history_bytes: how much of the past is kept for `as_of`; 0 for none.
        audit_rate: the share of answers that is kept to be proven, from 0 to 1.
        only_exact: whether queries leave out instances that are not `exact`.
        grpc: where routers ask by gRPC; None: nowhere.
        gateway: answers OpenAI's API by the engines; None: it does not.
        act_s: how often it acts on its own advice; 0 for never.
        access: who may ask.
        tls: how HTTP and gRPC are encrypted; None: they are not.
        routing: what decisions go by where a request does not say otherwise.
        select_service: whether it can be asked as Dynamo's select service, too.
        token_files: directories of models, by name; text is made tokens of by their files.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    seed: int = DEFAULT_SEED
    kernel: str | None = None
    default_wire: Wire = Wire.JSON
    history_bytes: int = HISTORY_BYTES
    audit_rate: float = 0.0
    only_exact: bool = False
    routing: RouterSettings = RouterSettings()
    select_service: bool = False
    grpc: GrpcSettings | None = None
    gateway: "GatewaySettings | None" = None
    act_s: float = 0.0
    access: AccessSettings = AccessSettings()
    tls: TlsSettings | None = None
    token_files: Mapping[str, Path] = {}

    def __post_init__(self) -> None:
        """Raises ConfigurationError where the rate or the period is none."""
        if not 0 <= self.audit_rate <= 1:
            raise ConfigurationError(
                f"Expected a share of answers to audit from 0 to 1, got: {self.audit_rate}"
            )
        least, most = limits.ACT_PERIOD_MIN_S, limits.ACT_PERIOD_MAX_S
        if self.act_s and not least <= self.act_s <= most:
            raise ConfigurationError(
                f"Expected to look at advice each {least:g} to {most:g} s, got: {self.act_s}"
            )


class Settings(AnsweringSettings, frozen=True, kw_only=True):
    """What `reprise up` runs with; to act on advice it needs `lmcache`.

    Attributes:
        data: directory of the log and the table; made where it is missing. Another seed rebuilds
            the table from the log.
        log_sync_s: an acknowledged event is lost to a power cut only if it is younger than this.
        table_flush_s: how often the table's changes are written.
        log_retention_bytes, log_retention_s: how much of the log is kept.
        lmcache: serves LMCache's workers as their controller; None: it does not.
        memory: where segments of memory are; None for nowhere.
        scrape_load_s: how often engines are asked for their load; 0 for never.
    """

    data: Path = Path("data")
    log_level: str = "INFO"
    log_sync_s: float = LOG_SYNC_S
    table_flush_s: float = TABLE_FLUSH_S
    log_retention_bytes: int = LOG_RETENTION_BYTES
    log_retention_s: float = LOG_RETENTION_S
    lmcache: "LmcacheSettings | None" = None
    memory: MemorySettings | None = None
    scrape_load_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises ConfigurationError where a value cannot be used."""
        if not 0 <= self.port <= 65_535:
            raise ConfigurationError(f"Expected a port from 0 to 65535, got: {self.port}")
        if not 0 <= self.seed < 2**64:
            raise ConfigurationError(f"Expected a seed from 0 to 2**64-1, got: {self.seed}")
        check_log_level(self.log_level)
        if not 0 <= self.log_retention_s < math.inf:  # false for NaN, too
            raise ConfigurationError(
                f"Expected a log retention of at least 0 seconds, got: {self.log_retention_s}"
            )
        super().__post_init__()
        if self.act_s and (self.lmcache is None or self.lmcache.address is None):
            raise ConfigurationError(
                "Expected --lmcache HOST beside acting.on, got acting.on alone: only LMCache's"
                " workers take commands"
            )
        if self.scrape_load_s:
            check_period(self.scrape_load_s)
        if self.log_retention_bytes < limits.LOG_SEGMENT_BYTES:
            raise ConfigurationError(
                f"Expected a log retention of at least {limits.LOG_SEGMENT_BYTES} bytes,"
                f" got: {self.log_retention_bytes}"
            )


def check_log_level(level: str) -> None:
    """Raises ConfigurationError where it is none."""
    if level not in LOG_LEVELS:
        expected = ", ".join(LOG_LEVELS)
        raise ConfigurationError(f"Expected a log level of {expected}, got: {level}")


def seed_from(environment: Mapping[str, str]) -> int:
    """CONDUCTOR_SEED, or the default.

    Raises:
        ConfigurationError: it is not a decimal number, or too large for a seed.
    """
    text = environment.get("CONDUCTOR_SEED", "")
    if not text:
        return DEFAULT_SEED
    digits = text.lstrip("0") or "0"
    # Python refuses to convert numbers of some thousand digits.
    if text.isascii() and text.isdigit() and len(digits) <= _SEED_DIGITS_MAX:
        seed = int(digits)
        if seed < 2**64:
            return seed
    shown = (
        text
        if len(text) <= limits.SETTING_SHOWN_CHARS_MAX
        else f"{text[: limits.SETTING_SHOWN_CHARS_MAX]}... ({len(text)} characters)"
    )
    raise ConfigurationError(
        f"Expected CONDUCTOR_SEED to be a decimal number from 0 to 2**64-1, got: {shown}"
    )


def log_level_from(environment: Mapping[str, str]) -> str:
    """CONDUCTOR_LOG_LEVEL in any case, `WARN` and `TRACE` included, or INFO."""
    text = environment.get("CONDUCTOR_LOG_LEVEL", "").upper() or "INFO"
    return {"WARN": "WARNING", "TRACE": "DEBUG", "CRITICAL": "ERROR", "FATAL": "ERROR"}.get(
        text, text
    )


def config_path_from(environment: Mapping[str, str]) -> Path:
    """CONDUCTOR_CONFIG_PATH, or where Mooncake keeps the file."""
    text = environment.get("CONDUCTOR_CONFIG_PATH", "")
    return Path(text) if text else Path(os.path.expanduser("~/.mooncake/conductor_config.json"))
