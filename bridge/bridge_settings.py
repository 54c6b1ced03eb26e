"""What a bridge runs with."""

from pathlib import Path

from bridge.bounds import SPOOL_BYTES_MAX
from bridge.engine_http.load_settings import NOT_ASKED, LoadSettings
from bridge.memory.watch import MemorySettings
from brokers.broker_settings import KafkaSettings
from schemas.errors import ConfigurationError
from schemas.limits import (
    BRIDGE_SESSION_S,
    GATHER_MS_MAX,
    GIB,
    OPTION_GIB_MAX,
    RECORD_WINDOW_MS,
    SESSION_MIN_S,
    SESSION_S_MAX,
)
from schemas.setting import part, setting


@part
class BridgeSettings:
    """See the module.

    Attributes:
        memory: where segments of memory are; None for nowhere.
        load: how often engines are asked for their load.
    """

    kafka: KafkaSettings
    data: Path = setting(
        "data",
        "Directory of the spool, which no other bridge uses; made where it is missing.",
        is_usual=True,
        path="directory",
        default=Path("data"),
    )
    window_ms: int = setting(
        "bridge.window_ms",
        "How long a publisher's batches are collected into one record; 0 for no time.",
        flag="--window-ms",
        bounds=(0, GATHER_MS_MAX),
        default=RECORD_WINDOW_MS,
    )
    spool_bytes: int = setting(
        "bridge.spool_gib",
        "How much the spool on disk may hold while Kafka is away.",
        flag="--spool-gib",
        unit=GIB,
        given=float,
        bounds=(0, OPTION_GIB_MAX),
        default=SPOOL_BYTES_MAX,
    )
    session_s: float = setting(
        "kafka.session_timeout_s",
        "The other bridges take over one that sends no heartbeat for this long.",
        flag="--session-timeout-s",
        bounds=(SESSION_MIN_S, SESSION_S_MAX),
        default=BRIDGE_SESSION_S,
    )
    memory: MemorySettings | None = None
    load: LoadSettings = NOT_ASKED

    def __post_init__(self) -> None:
        """Raises ConfigurationError where a value cannot be used."""
        if self.window_ms < 0 or self.spool_bytes < 0 or self.session_s < SESSION_MIN_S:
            raise ConfigurationError(
                "Expected a window and a spool of at least 0 and a session of at least"
                f" {SESSION_MIN_S:g} s, got: {self.window_ms:g} ms, {self.spool_bytes} bytes,"
                f" {self.session_s:g} s"
            )
