"""What the roles of the distributed form run with: the settings of their parts, each whole."""

from pathlib import Path

from bridge.bridge_settings import BridgeSettings
from bridge.engine_settings import CurveSettings, EngineSettings
from brokers.broker_settings import KafkaSettings
from reprise.http.monitor_settings import MonitorSettings
from reprise.roles.leaving import LeaveSettings
from reprise.settings import LOG_LEVEL, ActingSettings, AnsweringSettings, LmcacheSettings
from schemas.setting import changed, part, setting
from storage.slots import SLOTS, DataPlace
from streams.worker.worker_settings import StreamsSettings


@part
class BridgeRoleSettings:
    """Those of `reprise bridge`."""

    bridge: BridgeSettings
    monitor: MonitorSettings = MonitorSettings()
    lmcache: LmcacheSettings = LmcacheSettings()
    log_level: str = setting(LOG_LEVEL, default="INFO")
    engines: EngineSettings = EngineSettings()
    curve: CurveSettings = CurveSettings()
    slots: int = setting(SLOTS, default=0)

    def __post_init__(self) -> None:
        """Raises ConfigurationError where they cannot be used."""
        self.monitor.check_host()
        self.lmcache.check()

    def at(self, place: DataPlace) -> "BridgeRoleSettings":
        """Those of the process that has this place: one alone reads LMCache's topic."""
        return changed(
            self,
            bridge=changed(self.bridge, data=place.path),
            lmcache=self.lmcache
            if place.is_first or not self.lmcache.is_on
            else self.lmcache.without_servers(),
        )


@part
class StreamsRoleSettings:
    """Those of `reprise streams`."""

    worker: StreamsSettings
    monitor: MonitorSettings = MonitorSettings()
    log_level: str = setting(LOG_LEVEL, default="INFO")
    slots: int = setting(SLOTS, default=0)

    def __post_init__(self) -> None:
        """Raises ConfigurationError where they cannot be used."""
        self.monitor.check_host()

    def at(self, place: DataPlace) -> "StreamsRoleSettings":
        """Those of the process that has this place."""
        return changed(self, worker=changed(self.worker, data=place.path))


@part
class ServeSettings(AnsweringSettings):
    """Those of `reprise serve`.

    Attributes:
        leave: to whom it leaves its clients on SIGTERM; None: to nobody, at once.
    """

    kafka: KafkaSettings
    keeps_history: bool = setting(
        "history.on",
        "Keep the table's past in --data, for queries with `as_of` and for `/explain`. This"
        " replica then folds the log itself, too.",
        flag="--history",
        is_usual=True,
        default=False,
    )
    data: Path = setting(
        "data",
        "Directory of --history; without that a replica keeps nothing on disk.",
        is_usual=True,
        path="directory",
        default=Path("data"),
    )
    slots: int = setting(SLOTS, default=0)
    leave: LeaveSettings | None = None

    def at(self, place: DataPlace) -> "ServeSettings":
        """Those of the process that has this place: one alone acts on advice."""
        leave = self.leave
        return changed(
            self,
            data=place.path,
            acting=self.acting if place.is_first else ActingSettings(),
            leave=None if leave is None else changed(leave, shared=place.shared),
        )

    @property
    def history(self) -> Path | None:
        """Where the past is kept for `as_of`; None: it is not."""
        return self.data if self.keeps_history and self.history_bytes else None
