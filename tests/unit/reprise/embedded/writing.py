"""A write path over a log and a table that a test has opened."""

import time
from typing import NamedTuple

from bridge.engine_http.load_watch import OnSamples, ignore_samples
from logs.embedded import EmbeddedLog
from reprise.embedded.data import EmbeddedData
from reprise.embedded.fold_thread import FoldThread
from reprise.embedded.intake import EmbeddedIntake
from reprise.embedded.loss_watch import LossWatch
from reprise.embedded.write_thread import WriteThread
from reprise.settings import Settings
from schemas.arrays import PythonArrayPacker
from schemas.conditions import Conditions
from streams.table.fold import Fold
from streams.table.table import Table


class WritePath(NamedTuple):
    """Its parts."""

    log: EmbeddedLog
    folding: FoldThread
    intake: EmbeddedIntake
    thread: WriteThread
    conditions: Conditions

    @property
    def fold(self) -> Fold:
        return self.folding.fold


def write_path(
    settings: Settings, log: EmbeddedLog, table: Table, on_load: OnSamples = ignore_samples
) -> WritePath:
    """Not started."""
    conditions = Conditions(time.time)
    folding = FoldThread(table, flush_s=settings.table_flush_s, conditions=conditions)
    intake = EmbeddedIntake(settings, log, folding, conditions, PythonArrayPacker())
    losses = LossWatch(settings.data, conditions)
    thread = WriteThread(
        settings, EmbeddedData(log, table), folding, intake, losses, on_load=on_load
    )
    return WritePath(log, folding, intake, thread, conditions)
