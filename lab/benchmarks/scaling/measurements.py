"""The measured figures that scaling is computed from, each with where it was measured.

Change a figure here when it is measured anew, and write the tables again: `python -m
lab.benchmarks.scaling --write`.
"""

from typing import Final

import msgspec

_WHOLE_RUN: Final = "the whole run of 2026-11-25"
_PIPELINE: Final = "[the distributed form](#the-distributed-form), `pipeline`"
_PIPELINE_RECORDS: Final = f"{_PIPELINE}: 1,000 publishers less 100, 1-block events"
_RECORDS: Final = 40_000 / (2_374 - 211)
"""Messages of the two runs for each record that one has more than the other."""
_RECORD_BYTES: Final = "by hand, 2026-11-25: records of text in batches of eight"
_FLEET: Final = "[the fleet](#a-simulated-fleet), `python -m lab.benchmarks.scaling.fleet`"


class Measurement(msgspec.Struct, frozen=True):
    """One figure: how much of which unit, of what, and where that was measured."""

    value: float
    unit: str
    what: str
    source: str


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that scaling is computed from. CPU is of one core, in microseconds."""

    block_memory: Measurement = Measurement(
        43.9, "B", "memory of a block that one engine holds", _WHOLE_RUN
    )
    publisher_memory: Measurement = Measurement(97, "KiB", "memory of a followed publisher", _FLEET)
    publisher_files: Measurement = Measurement(5, "", "open files of a followed publisher", _FLEET)
    process_memory: Measurement = Measurement(
        87, "MiB", "memory of a process without publishers", _FLEET
    )
    silent_publisher_cpu: Measurement = Measurement(
        0.035 / 1024 * 1e6,
        "us/s",
        "CPU of a publisher that is up and silent",
        "[other figures](#other-figures), without replay sockets, by hand, 2026-11-29",
    )
    lone_message_cpu: Measurement = Measurement(
        900, "us", "CPU of a message that comes alone, one process", _FLEET
    )
    embedded_message_cpu: Measurement = Measurement(
        160 - 25 * (1 / 0.658 + 1 / 1.42),
        "us",
        "CPU of one of 1,000 messages a second, each another publisher's, without its blocks",
        "`python -m lab.benchmarks.scaling.fleet --publishers 100 --period-s 0.1 --blocks 25`",
    )
    embedded_stored_cpu: Measurement = Measurement(
        1 / 0.658, "us", "CPU of a stored block, one process", _WHOLE_RUN
    )
    embedded_removed_cpu: Measurement = Measurement(
        1 / 1.42, "us", "CPU of a removed block, one process", _WHOLE_RUN
    )
    bridge_message_cpu: Measurement = Measurement(19, "us", "CPU of a message, bridge", _PIPELINE)
    bridge_record_cpu: Measurement = Measurement(
        (36 - 19) * _RECORDS, "us", "CPU of a record, bridge", _PIPELINE_RECORDS
    )
    bridge_block_cpu: Measurement = Measurement(
        1.06, "us", "CPU of a stored block, bridge", _PIPELINE
    )
    worker_message_cpu: Measurement = Measurement(2.8, "us", "CPU of a message, worker", _PIPELINE)
    worker_record_cpu: Measurement = Measurement(
        (5.5 - 2.8) * _RECORDS, "us", "CPU of a record, worker", _PIPELINE_RECORDS
    )
    worker_block_cpu: Measurement = Measurement(
        1.39, "us", "CPU of a stored block, worker", _PIPELINE
    )
    replica_message_cpu: Measurement = Measurement(
        2.0, "us", "CPU of a message, each replica", _PIPELINE
    )
    replica_record_cpu: Measurement = Measurement(
        (7.3 - 2.0) * _RECORDS, "us", "CPU of a record, each replica", _PIPELINE_RECORDS
    )
    replica_block_cpu: Measurement = Measurement(
        0.80, "us", "CPU of a stored block, each replica", _PIPELINE
    )
    broker_message_cpu: Measurement = Measurement(2.5, "us", "CPU of a message, broker", _PIPELINE)
    broker_record_cpu: Measurement = Measurement(
        (4.8 - 2.5) * _RECORDS, "us", "CPU of a record, broker", _PIPELINE_RECORDS
    )
    broker_block_cpu: Measurement = Measurement(
        0.4, "us", "CPU of a stored block, broker", _PIPELINE
    )
    query_cpu: Measurement = Measurement(
        32.3, "us", "CPU of a `/query` of 8K tokens, JSON", _WHOLE_RUN
    )
    listed_instance_cpu: Measurement = Measurement(
        (50.6 - 50.6 / 3.39) / (1024 - 8),
        "us",
        "CPU of each instance that an answer lists without a hit",
        _WHOLE_RUN,
    )
    embedded_log_block: Measurement = Measurement(
        74, "B", "log of one process, a stored block", "[figures](#figures)"
    )
    record_bytes: Measurement = Measurement(
        61, "B", "`events`, a record whatever it has, zstd", _RECORD_BYTES
    )
    stored_bytes: Measurement = Measurement(
        41, "B", "`events`, a stored block, zstd", _RECORD_BYTES
    )
    removed_bytes: Measurement = Measurement(
        8.1, "B", "`events`, a removed block, zstd", _RECORD_BYTES
    )
    row_bytes: Measurement = Measurement(
        24, "B", "`table`, a change of a block", "[topics.md](topics.md), rows of the table"
    )
    table_topic_times: Measurement = Measurement(
        2.53, "x", "`table` on a broker's disk, times the live state", _WHOLE_RUN
    )


FIGURES: Final = Figures()
