"""What a worker runs with."""

from pathlib import Path

from brokers.broker_settings import KafkaSettings
from schemas.limits import (
    GATHER_MS_MAX,
    SESSION_MIN_S,
    SESSION_S_MAX,
    WORKER_FLUSH_S,
    WORKER_SESSION_S,
)
from schemas.setting import part, setting
from streams.index_settings import DEFAULT_SEED, KERNEL, SEED


@part
class StreamsSettings:
    """See the module."""

    kafka: KafkaSettings
    data: Path = setting(
        "data",
        "Directory of this worker's copies of its tables; one for each worker.",
        is_usual=True,
        path="directory",
        default=Path("data"),
    )
    flush_s: float = setting(
        "streams.flush_ms",
        "How long records are gathered before they are folded and written.",
        flag="--flush-ms",
        unit=1 / 1000,
        given=int,
        bounds=(1, GATHER_MS_MAX),
        default=WORKER_FLUSH_S,
    )
    session_timeout_s: float = setting(
        "kafka.session_timeout_s",
        "The other workers take over one that sends no heartbeat for this long.",
        flag="--session-timeout-s",
        bounds=(SESSION_MIN_S, SESSION_S_MAX),
        default=WORKER_SESSION_S,
    )
    kernel: str | None = setting(KERNEL, default=None)
    seed: int = setting(SEED, default=DEFAULT_SEED)
