"""The log of commands to LMCache's workers, in either form. The room's parts run it themselves.

    DATA/commands     a log of its own (`logs.embedded`), of `schemas.command_records`
    PREFIX.commands   commands, by instance
    PREFIX.results    what came of them, likewise, and ends: all that is said of a command is in
                      one partition, whose order is what ends it once

The topics are there only where a bridge serves LMCache's workers. Readers take them with any number
of partitions.
"""

from pathlib import Path
from typing import Final

from logs.declaration import LogDeclaration
from schemas.limits import MIB
from schemas.topics import LARGEST, Cleanup, TopicShape

COMMANDS_LOG_BYTES: Final = 64 * MIB  # of commands and results on the disk; the oldest go first
COMMANDS_SEGMENT_BYTES: Final = 1 * MIB  # of that log: so much goes at once
COMMANDS_RETENTION_MS: Final = 30 * 24 * 3600 * 1000  # of either form
COMMANDS_PARTITIONS: Final = 4

assert COMMANDS_LOG_BYTES > COMMANDS_SEGMENT_BYTES, "some of the log of commands is kept"

COMMANDS_TOPIC: Final = TopicShape(
    "commands",
    COMMANDS_PARTITIONS,
    Cleanup.DELETE,
    {"retention.ms": str(COMMANDS_RETENTION_MS)} | LARGEST,
)
RESULTS_TOPIC: Final = COMMANDS_TOPIC._replace(suffix="results")

COMMANDS: Final = LogDeclaration(
    name="the log of commands",
    topics=(COMMANDS_TOPIC, RESULTS_TOPIC),
    path=Path("commands"),
    lost="the log of commands begins empty",
    bytes_max=COMMANDS_LOG_BYTES,
    age_max_s=COMMANDS_RETENTION_MS / 1000,
    segment_bytes=COMMANDS_SEGMENT_BYTES,
    retry_s=0.0,  # each command waits for the disk, and there are few
)
