"""What the roles that answer queries run with: the settings of their parts, in one object.

Each part declares its own (`schemas.setting`); here is what no part has for itself.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.engine_http.load_settings import NOT_ASKED, LoadSettings
from bridge.engine_settings import CurveSettings, EngineSettings
from bridge.memory.watch import MemorySettings
from console.addresses import DEFAULT_HOST, DEFAULT_PORT
from query_api.access.access_settings import AccessSettings
from query_api.grpc.grpc_settings import GrpcSettings
from query_api.http.http_settings import HttpSettings
from query_api.rpc.rpc_settings import RpcSettings
from reprise import rooms
from reprise.bounds import HISTORY_BYTES, LOG_RETENTION_BYTES, LOG_RETENTION_S, OPTION_HOURS_MAX
from reprise.http.tls_settings import TlsSettings
from routing.decisions.router_settings import RouterSettings
from schemas.errors import ConfigurationError
from schemas.limits import GIB, LOG_SEGMENT_BYTES, OPTION_GIB_MAX, PORT_MAX
from schemas.setting import Setting, changed, part, setting
from streams.index_settings import DEFAULT_SEED, KERNEL, SEED
from tokens.settings import TokensSettings

if TYPE_CHECKING:
    from reprise.rooms import ActingSettings as ActingSettings
    from reprise.rooms import GatewaySettings as GatewaySettings
    from reprise.rooms import LmcacheSettings as LmcacheSettings
else:
    ActingSettings = rooms.acting_settings()
    GatewaySettings = rooms.gateway_settings()
    LmcacheSettings = rooms.lmcache_settings()

LOG_SYNC_S: Final = 0.05  # what a power cut may cost
TABLE_FLUSH_S: Final = 0.25  # between two flushes of a table

assert LOG_SYNC_S <= TABLE_FLUSH_S, "a table row may not cover a record that is not yet durable"

LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


def check_log_level(level: str) -> None:
    """Raises ConfigurationError where it is none."""
    if level not in LOG_LEVELS:
        expected = ", ".join(LOG_LEVELS)
        raise ConfigurationError(f"Expected a log level of {expected}, got: {level}")


def log_level_from(environment: Mapping[str, str]) -> str:
    """CONDUCTOR_LOG_LEVEL in any case, `WARN` and `TRACE` included, or INFO."""
    text = environment.get("CONDUCTOR_LOG_LEVEL", "").upper() or "INFO"
    return {"WARN": "WARNING", "TRACE": "DEBUG", "CRITICAL": "ERROR", "FATAL": "ERROR"}.get(
        text, text
    )


def _read_log_level(text: str) -> str:
    level = log_level_from({"CONDUCTOR_LOG_LEVEL": text})
    check_log_level(level)
    return level


LOG_LEVEL: Final = Setting(
    "log_level",
    "DEBUG, INFO, WARNING or ERROR.",
    is_usual=True,
    variable="CONDUCTOR_LOG_LEVEL",
    read=_read_log_level,
)
_HOST: Final = Setting("host", "Address to listen on.", is_usual=True)
_PORT: Final = Setting(
    "port",
    "Port to listen on, 0 for any.  [default: the configuration file's, or 13333]",
    is_usual=True,
    bounds=(0, PORT_MAX),
    has_own_default=True,
)
_HISTORY: Final = Setting(
    "history.gib",
    "How much of the past to keep, in GiB.",
    unit=GIB,
    given=float,
    bounds=(0, OPTION_GIB_MAX),
)
_AUDIT: Final = Setting(
    "audit.rate",
    "The share of answers to keep, in PREFIX.answers, for `reprise audit verify`, from 0 to 1.",
    flag="--audit",
    bounds=(0, 1),
)


@part
class AnsweringSettings:
    """What every role that answers queries runs with.

    Attributes:
        seed: of the prefix hash, u64; the same for every role.
        kernel: "rust", "reference", or None for the fastest there is.
        history_bytes: how much of the past is kept for `as_of`; 0 for none.
        audit_rate: the share of answers that is kept to be proven, from 0 to 1.
        grpc: where routers ask by gRPC; None: nowhere.
        conductor_rpc: where clients of Conductor's RPC ask; None: nowhere.
        tls: how HTTP and gRPC are encrypted; None: they are not.
    """

    host: str = setting(_HOST, default=DEFAULT_HOST)
    port: int = setting(_PORT, default=DEFAULT_PORT)
    gateway: GatewaySettings = GatewaySettings()
    grpc: GrpcSettings | None = None
    conductor_rpc: RpcSettings | None = None
    access: AccessSettings = AccessSettings()
    log_level: str = setting(LOG_LEVEL, default="INFO")
    seed: int = setting(SEED, default=DEFAULT_SEED)
    kernel: str | None = setting(KERNEL, default=None)
    history_bytes: int = setting(_HISTORY, default=HISTORY_BYTES)
    audit_rate: float = setting(_AUDIT, default=0.0)
    http: HttpSettings = HttpSettings()
    routing: RouterSettings = RouterSettings()
    acting: ActingSettings = ActingSettings()
    tokens: TokensSettings = TokensSettings()
    tls: TlsSettings | None = None
    engines: EngineSettings = EngineSettings()

    def __post_init__(self) -> None:
        """Raises ConfigurationError where the rate is none."""
        if not 0 <= self.audit_rate <= 1:
            raise ConfigurationError(
                f"Expected a share of answers to audit from 0 to 1, got: {self.audit_rate}"
            )


@part
class Settings(AnsweringSettings):
    """What `reprise up` runs with; to act on advice it needs `lmcache`.

    Attributes:
        data: directory of the log and the table; made where it is missing. Another seed rebuilds
            the table from the log.
        log_sync_s: an acknowledged event is lost to a power cut only if it is younger than this.
        log_retention_bytes, log_retention_s: how much of the log is kept.
        memory: where segments of memory are; None for nowhere.
    """

    data: Path = setting(
        "data",
        "Directory of the log and the table; made where it is missing.",
        is_usual=True,
        variable=None,
        path="directory",
        default=Path("data"),
    )
    lmcache: LmcacheSettings = LmcacheSettings()
    log_sync_s: float = LOG_SYNC_S
    table_flush_s: float = TABLE_FLUSH_S
    log_retention_bytes: int = setting(
        "log.retention_gib",
        "How much of the log to keep, in GiB.",
        variable=None,
        unit=GIB,
        given=float,
        bounds=(LOG_SEGMENT_BYTES / GIB, OPTION_GIB_MAX),
        default=LOG_RETENTION_BYTES,
    )
    log_retention_s: float = setting(
        "log.retention_hours",
        "How long to keep the log, in hours.",
        variable=None,
        unit=3600,
        bounds=(0, OPTION_HOURS_MAX),
        default=LOG_RETENTION_S,
    )
    memory: MemorySettings | None = None
    load: LoadSettings = NOT_ASKED
    curve: CurveSettings = CurveSettings()
    history_bytes: int = setting(
        changed(
            _HISTORY,
            help="How much of the table's past to keep for queries with `as_of`, in GiB; 0 for"
            " none.",
            variable=None,
        ),
        default=HISTORY_BYTES,
    )
    audit_rate: float = setting(
        changed(
            _AUDIT,
            help="The share of answers to keep for `reprise audit verify`, from 0 to 1.",
            variable=None,
        ),
        default=0.0,
    )
    host: str = setting(changed(_HOST, variable=None), default=DEFAULT_HOST)
    port: int = setting(changed(_PORT, variable=None), default=DEFAULT_PORT)

    def __post_init__(self) -> None:
        """Raises ConfigurationError where a value cannot be used."""
        if not 0 <= self.port <= PORT_MAX:
            raise ConfigurationError(f"Expected a port from 0 to 65535, got: {self.port}")
        if not 0 <= self.seed < 2**64:
            raise ConfigurationError(f"Expected a seed from 0 to 2**64-1, got: {self.seed}")
        check_log_level(self.log_level)
        if not 0 <= self.log_retention_s < math.inf:  # false for NaN, too
            raise ConfigurationError(
                f"Expected a log retention of at least 0 seconds, got: {self.log_retention_s}"
            )
        super().__post_init__()
        self.lmcache.check()
        if self.acting.is_on and not self.lmcache.listen:
            raise ConfigurationError(
                "Expected --lmcache HOST beside acting.on, got acting.on alone: only LMCache's"
                " workers take commands"
            )
        if self.log_retention_bytes < LOG_SEGMENT_BYTES:
            raise ConfigurationError(
                f"Expected a log retention of at least {LOG_SEGMENT_BYTES} bytes,"
                f" got: {self.log_retention_bytes}"
            )


def config_path_from(environment: Mapping[str, str]) -> Path:
    """CONDUCTOR_CONFIG_PATH, or where Mooncake keeps the file."""
    text = environment.get("CONDUCTOR_CONFIG_PATH", "")
    return Path(text) if text else Path(os.path.expanduser("~/.mooncake/conductor_config.json"))
