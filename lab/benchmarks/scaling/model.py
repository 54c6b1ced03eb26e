"""What a fleet needs, in both forms, and which limit it meets first: arithmetic alone.

One deployment is one topic prefix with its own bridges, workers and replicas. A fleet that is too
large for one is shared by several on the same Kafka cluster, by engines, and who routes asks the
one that has its engines.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import structs

from bridge.sockets.bounds import SUBSCRIBER_TURN_S
from lab.benchmarks.scaling.measurements import FIGURES, Figures, Measurement
from reprise.bounds import LOG_RETENTION_BYTES
from routing.http.requests import CANDIDATES_MAX
from schemas.limits import (
    GIB,
    KIB,
    MIB,
    OPEN_FILES_MAX,
    PUBLISHER_FILES_LEFT_MAX,
    PUBLISHER_FILES_SHARE,
    PUBLISHERS_MAX,
    RECORD_WINDOW_MS,
)
from schemas.topics import EVENTS_PARTITIONS, REGISTRY_PARTITIONS
from streams.table.table import TOPIC_GENERATION_DELTAS

HOURS_A_MONTH: Final = 730
ENGINES_MAX: Final = 10_000_000
WINDOW_LONG_MS: Final = 1_000
"""A window that makes fewer records, where answers may be so much older."""
HASH_BYTES: Final = 8
"""Of a removed block in a log that is not compressed."""
_MICRO: Final = 1e-6


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet does: assumptions, not measured.

    Attributes:
        ranks: publishers of an engine, one for each data-parallel rank.
        blocks_per_s: stored by each engine, of which as many are removed; 250 are 4,000 tokens.
        messages_per_s: of each engine; vLLM sends one for each step that changes its cache.
        queries_per_s: for each engine.
        held: blocks that an engine holds; 30,000 are 480,000 tokens.
        retention_hours: of `events`.
        window_ms: `bridge.window_ms` of the bridges.
    """

    engines: int
    ranks: int = 1
    blocks_per_s: float = 250.0
    messages_per_s: float = 10.0
    queries_per_s: float = 1.0
    held: int = 30_000
    retention_hours: float = 168.0
    window_ms: float = RECORD_WINDOW_MS

    @property
    def publishers(self) -> int:
        """Of all engines."""
        return self.engines * self.ranks


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """What it runs on: assumptions.

    Attributes:
        busy: the share of its thread that a fold, or a bridge, may be busy on average; the rest is
            for bursts, and for what others on the machine take.
        memory_gib: of a machine that has a replica or a worker; half of it may be filled.
        open_files: a process's limit.
        query_cores: of a replica, for queries; they are answered beside its fold.
        replication: copies of each topic.
        brokers: at least; each has `broker_memory_gib`.
    """

    busy: float = 0.5
    memory_gib: float = 64.0
    open_files: int = OPEN_FILES_MAX
    query_cores: int = 2
    replication: int = 3
    brokers: int = 3
    broker_memory_gib: float = 4.0


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What things cost, in any one currency: assumptions, to be replaced by yours.

    Attributes:
        core_hour: of a processor core that is reserved.
        memory_gib_hour: of memory that is reserved.
        disk_gib_month: of a broker's disk that is filled.
    """

    core_hour: float = 0.03
    memory_gib_hour: float = 0.004
    disk_gib_month: float = 0.08


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ends: with more engines than this, and what to do then."""

    name: str
    engines: int
    remedy: str


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet needs in the distributed form, all deployments together.

    Attributes:
        partitions: of `events`, of each deployment.
        all_partitions: of the four topics that every deployment has, and the two of routing, of
            all deployments; each has `replication` copies.
        bridges, workers, replicas: processes of each deployment.
        full_query_us: CPU of a query without `hits_only`, which lists all engines of a deployment.
        replica_memory: bytes of one replica.
        bridge_memory, worker_memory: likewise, of the others.
        bridge_files: open files of a bridge while another one is away.
        bridge_cores, worker_cores, replica_cores, broker_cores: that are busy on average, of all.
        events_bytes_per_s, table_bytes_per_s: written by producers, before replication.
        read_bytes_per_s: by workers and replicas.
        events_stored, table_stored: bytes on the brokers' disks, replicas of topics included.
        reserved_cores, memory, cost_a_month: of everything, brokers included.
    """

    deployments: int
    partitions: int
    all_partitions: int
    bridges: int
    workers: int
    replicas: int
    full_query_us: float
    replica_memory: float
    bridge_memory: float
    worker_memory: float
    bridge_files: float
    bridge_cores: float
    worker_cores: float
    replica_cores: float
    broker_cores: float
    events_bytes_per_s: float
    table_bytes_per_s: float
    read_bytes_per_s: float
    events_stored: float
    table_stored: float
    reserved_cores: float
    memory: float
    cost_a_month: float


class EmbeddedNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet needs of one process, whether or not it fits one.

    Attributes:
        cores: that are busy on average.
        memory: bytes.
        files: open ones, for publishers.
        log_bytes_per_s: written to its disk.
        log_hours: that the log reaches back, by its bound and the retention.
        cost_a_month: of the cores that are reserved, and the memory.
    """

    cores: float
    memory: float
    files: float
    log_bytes_per_s: float
    log_hours: float
    cost_a_month: float


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The assumptions and the measured figures together."""

    machines: Machines = Machines()
    prices: Prices = Prices()
    figures: Figures = FIGURES

    # In cores

    def embedded_cores(self, load: Workload) -> float:
        """Of one process with all engines, queries included."""
        known = self.figures
        block = known.embedded_stored_cpu.value + known.embedded_removed_cpu.value
        each = (
            load.ranks * known.silent_publisher_cpu.value
            + load.blocks_per_s * block
            + load.queries_per_s * known.query_cpu.value
        )
        # A turn costs what a message alone costs; messages of the same turn share it.
        messages = load.engines * load.messages_per_s
        turns = min(messages, 1 / SUBSCRIBER_TURN_S) * known.lone_message_cpu.value
        return _MICRO * (
            load.engines * each + max(turns, messages * known.embedded_message_cpu.value)
        )

    def bridge_cores(self, load: Workload) -> float:
        """Of the bridges, for each engine."""
        known = self.figures
        silent = load.ranks * known.silent_publisher_cpu.value * _MICRO
        return silent + self._cores(
            load, known.bridge_message_cpu, known.bridge_record_cpu, known.bridge_block_cpu
        )

    def worker_cores(self, load: Workload) -> float:
        """Of the workers, for each engine."""
        known = self.figures
        return self._cores(
            load, known.worker_message_cpu, known.worker_record_cpu, known.worker_block_cpu
        )

    def replica_fold_cores(self, load: Workload) -> float:
        """Of each replica, for each engine of the deployment, without queries."""
        known = self.figures
        return self._cores(
            load, known.replica_message_cpu, known.replica_record_cpu, known.replica_block_cpu
        )

    def broker_cores(self, load: Workload) -> float:
        """Of the brokers, for each engine, a copy."""
        known = self.figures
        return self._cores(
            load, known.broker_message_cpu, known.broker_record_cpu, known.broker_block_cpu
        )

    def query_cores(self, load: Workload) -> float:
        """For each engine, with `hits_only`: an answer that lists all instances grows with them."""
        return load.queries_per_s * self.figures.query_cpu.value * _MICRO

    @property
    def with_removed(self) -> float:
        """A block that is stored and removed, times one that is stored: as in one process."""
        known = self.figures
        return 1 + known.embedded_removed_cpu.value / known.embedded_stored_cpu.value

    def _cores(
        self, load: Workload, message: Measurement, record: Measurement, block: Measurement
    ) -> float:
        return _MICRO * (
            load.messages_per_s * message.value
            + self.records_per_s(load) * record.value
            + load.blocks_per_s * block.value * self.with_removed
        )

    def full_query_us(self, engines: int) -> float:
        """CPU of an answer that lists so many engines, of which none has a hit; microseconds."""
        return self.figures.query_cpu.value + engines * self.figures.listed_instance_cpu.value

    # One engine, in bytes

    def records_per_s(self, load: Workload) -> float:
        """Of each engine: a window of a bridge makes one record of all that came in it."""
        return min(load.messages_per_s, load.ranks * 1000 / load.window_ms)

    def events_bytes_per_s(self, load: Workload) -> float:
        """Of `events`, for each engine."""
        known = self.figures
        blocks = load.blocks_per_s * (known.stored_bytes.value + known.removed_bytes.value)
        return self.records_per_s(load) * known.record_bytes.value + blocks

    def table_bytes_per_s(self, load: Workload) -> float:
        """Of `table`, for each engine: each change is a row, and is in a dump that is written
        whenever deltas are so many times the live state.
        """
        rewritten = 1 + 1 / TOPIC_GENERATION_DELTAS
        return 2 * load.blocks_per_s * self.figures.row_bytes.value * rewritten

    # Limits

    def files_for_publishers(self) -> int:
        """Publishers that the open files of a process are enough for."""
        limit = self.machines.open_files
        left = min(limit // PUBLISHER_FILES_SHARE, PUBLISHER_FILES_LEFT_MAX)
        return int((limit - left) / self.figures.publisher_files.value)

    def embedded_limits(self, load: Workload) -> list[Limit]:
        """Of one process, the lowest first."""
        known, machines = self.figures, self.machines
        each = load.held * known.block_memory.value + load.ranks * self._publisher_bytes
        room = machines.memory_gib * GIB / 2 - known.process_memory.value * MIB
        return _sorted(
            [
                Limit(
                    name="CPU: one interpreter folds, decodes and receives",
                    engines=self._embedded_engines(load),
                    remedy="the distributed form",
                ),
                Limit(
                    name=f"{PUBLISHERS_MAX:,} publishers of one process (`PUBLISHERS_MAX`)",
                    engines=PUBLISHERS_MAX // load.ranks,
                    remedy="the distributed form, or a process for each part of the fleet",
                ),
                Limit(
                    name=f"open files, of {machines.open_files:,}",
                    engines=self.files_for_publishers() // load.ranks,
                    remedy="a higher limit (`ulimit -n`), or a process for each part of the fleet",
                ),
                Limit(
                    name=f"memory, half of {machines.memory_gib:.0f} GiB",
                    engines=_at_most(room, each),
                    remedy="more memory",
                ),
            ]
        )

    def _embedded_engines(self, load: Workload) -> int:
        engines = range(1, ENGINES_MAX)
        return bisect_right(
            engines,
            self.machines.busy,
            key=lambda count: self.embedded_cores(structs.replace(load, engines=count)),
        )

    def limits(self, load: Workload) -> list[Limit]:
        """Of one deployment of the distributed form, the lowest first."""
        known, machines = self.figures, self.machines
        bridges = REGISTRY_PARTITIONS - 1  # one may be away
        room = machines.memory_gib * GIB / 2 - known.process_memory.value * MIB
        windowed = structs.replace(load, window_ms=max(load.window_ms, WINDOW_LONG_MS))
        folded = _at_most(machines.busy, self.replica_fold_cores(windowed))
        several = "several deployments, each with its own `--topic-prefix` and a part of the fleet"
        return _sorted(
            [
                Limit(
                    name="CPU of a replica's fold: each folds every row",
                    engines=_at_most(machines.busy, self.replica_fold_cores(load)),
                    remedy=f"`bridge.window_ms = {WINDOW_LONG_MS}`, with which it folds {folded:,};"
                    f" then {several}",
                ),
                Limit(
                    name=f"{PUBLISHERS_MAX:,} publishers that a replica registers"
                    " (`PUBLISHERS_MAX`)",
                    engines=PUBLISHERS_MAX // load.ranks,
                    remedy=several,
                ),
                Limit(
                    name=f"{CANDIDATES_MAX:,} candidates of one `/route` (`CANDIDATES_MAX`)",
                    engines=CANDIDATES_MAX,
                    remedy="name the candidates in the request, or several deployments",
                ),
                Limit(
                    name=f"CPU of {bridges} bridges, one for each partition of `registry` but one",
                    engines=_at_most(bridges * machines.busy, self.bridge_cores(load)),
                    remedy="more `kafka.registry_partitions`, chosen at the beginning",
                ),
                Limit(
                    name=f"open files of {bridges} bridges, {machines.open_files:,} each",
                    engines=bridges * self.files_for_publishers() // load.ranks,
                    remedy="a higher limit (`ulimit -n`), or more bridges",
                ),
                Limit(
                    name=f"memory of a replica, half of {machines.memory_gib:.0f} GiB",
                    engines=_at_most(room, load.held * known.block_memory.value),
                    remedy="more memory, or several deployments",
                ),
            ]
        )

    @property
    def _publisher_bytes(self) -> float:
        return self.figures.publisher_memory.value * KIB

    # A whole fleet

    def embedded(self, load: Workload) -> EmbeddedNeeds:
        """In one process, whether or not it fits one."""
        known = self.figures
        memory = (
            known.process_memory.value * MIB
            + load.engines * load.held * known.block_memory.value
            + load.publishers * self._publisher_bytes
        )
        cores = self.embedded_cores(load)
        written = load.engines * load.blocks_per_s * (known.embedded_log_block.value + HASH_BYTES)
        return EmbeddedNeeds(
            cores=cores,
            memory=memory,
            files=load.publishers * known.publisher_files.value,
            log_bytes_per_s=written,
            log_hours=min(load.retention_hours, LOG_RETENTION_BYTES / written / 3600),
            cost_a_month=self._cost(math.ceil(cores / self.machines.busy), memory, 0.0),
        )

    def windowed(self, load: Workload) -> Workload:
        """With a longer window where one deployment does not hold the fleet without it."""
        if load.engines <= self.limits(load)[0].engines:
            return load
        return structs.replace(load, window_ms=max(load.window_ms, WINDOW_LONG_MS))

    def deployments(self, load: Workload) -> int:
        """How many, so that none is above its lowest limit.

        Raises:
            ValueError: a single engine is.
        """
        lowest = self.limits(load)[0]
        if not lowest.engines:
            raise ValueError(
                f"Expected an engine to be within all limits, got above: {lowest.name}"
            )
        return math.ceil(load.engines / lowest.engines)

    def needs(self, load: Workload) -> Needs:
        """In the distributed form."""
        known, machines = self.figures, self.machines
        parts = self.deployments(load)
        engines = math.ceil(load.engines / parts)
        bridges = max(2, 1 + _processes(engines * self.bridge_cores(load), machines.busy))
        bridges = max(bridges, 1 + math.ceil(engines * load.ranks / self.files_for_publishers()))
        workers = max(2, _processes(engines * self.worker_cores(load), machines.busy))
        queries = engines * self.query_cores(load)
        replicas = 1 + max(1, _processes(queries, machines.busy * machines.query_cores))
        partitions = max(EVENTS_PARTITIONS, 2 ** math.ceil(math.log2(2 * workers)))
        table_memory = engines * load.held * known.block_memory.value
        process = known.process_memory.value * MIB
        worker_memory = process + table_memory / workers
        replica_memory = process + table_memory
        of_a_bridge = engines * load.ranks / (bridges - 1)
        bridge_memory = process + of_a_bridge * self._publisher_bytes
        events, table = self.events_bytes_per_s(load), self.table_bytes_per_s(load)
        events_stored = load.engines * events * load.retention_hours * 3600 * machines.replication
        live = load.engines * load.held * known.row_bytes.value
        table_stored = live * known.table_topic_times.value * machines.replication
        broker_cores = load.engines * self.broker_cores(load) * machines.replication
        brokers = max(machines.brokers, _processes(broker_cores, machines.busy))
        reserved = parts * (bridges + workers + replicas * (1 + machines.query_cores)) + brokers
        memory = parts * (
            bridges * bridge_memory + workers * worker_memory + replicas * replica_memory
        )
        memory += brokers * machines.broker_memory_gib * GIB
        return Needs(
            deployments=parts,
            partitions=partitions,
            all_partitions=parts * (2 * partitions + 2 * REGISTRY_PARTITIONS + 2),
            bridges=bridges,
            workers=workers,
            replicas=replicas,
            full_query_us=self.full_query_us(engines),
            replica_memory=replica_memory,
            bridge_memory=bridge_memory,
            worker_memory=worker_memory,
            bridge_files=of_a_bridge * known.publisher_files.value,
            bridge_cores=load.engines * self.bridge_cores(load),
            worker_cores=load.engines * self.worker_cores(load),
            replica_cores=load.engines
            * (replicas * self.replica_fold_cores(load) + self.query_cores(load)),
            broker_cores=broker_cores,
            events_bytes_per_s=load.engines * events,
            table_bytes_per_s=load.engines * table,
            read_bytes_per_s=load.engines * (events + replicas * table),
            events_stored=events_stored,
            table_stored=table_stored,
            reserved_cores=reserved,
            memory=memory,
            cost_a_month=self._cost(reserved, memory, events_stored + table_stored),
        )

    def _cost(self, cores: float, memory: float, disk: float) -> float:
        prices = self.prices
        hourly = cores * prices.core_hour + memory / GIB * prices.memory_gib_hour
        return hourly * HOURS_A_MONTH + disk / GIB * prices.disk_gib_month


def first_limit(limits: Sequence[Limit], engines: int) -> Limit | None:
    """The lowest one that so many engines are above; None where they fit."""
    return limits[0] if engines > limits[0].engines else None


def _at_most(room: float, each: float) -> int:
    return int(room / each) if each else ENGINES_MAX


def _sorted(limits: list[Limit]) -> list[Limit]:
    return sorted(limits, key=lambda limit: limit.engines)


def _processes(cores: float, each: float) -> int:
    return math.ceil(cores / each)
