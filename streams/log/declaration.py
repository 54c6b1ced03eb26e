"""The log of events. The parts of the roles run it: the write path, bridges, workers, replicas."""

from pathlib import Path
from typing import Final

from logs.declaration import LogDeclaration
from schemas.conditions import Part
from schemas.topics import EVENTS_TOPIC, TABLE_TOPIC

EVENTS: Final = LogDeclaration(
    name="the log", topics=(EVENTS_TOPIC, TABLE_TOPIC), path=Path("log"), part=Part.LOG
)
"""With the table of it, which in the embedded form is no log."""
