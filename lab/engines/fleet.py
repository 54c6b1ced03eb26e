"""The engines of a demonstration: those that outlived a killed one where they fit, or new ones."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from lab.engines.engine import EngineOptions, EngineReady
from lab.engines.process import AdoptedEngine, EngineProcess, adopt_engine, stop_engines
from lab.traffic.index_client import IndexClient


class Fleet:
    """Engines by instance, from `gather` to `close`. For one thread.

    Attributes:
        adopted: those that outlived a killed demonstration, with all that they hold.
        started: the new ones.
        engines: where all of them are, in the order of the options; empty before `gather`.
    """

    def __init__(self, options: Sequence[EngineOptions], path: str = "") -> None:
        """Args:
        options: of the engines to have.
        path: the file in which the HTTP ports of engines that run are noted; "" for none.
        """
        self.adopted: list[AdoptedEngine] = []
        self.started: list[EngineProcess] = []
        self.engines: list[EngineReady] = []
        self._options = options
        self._path = Path(path) if path else None

    @property
    def pids(self) -> list[int]:
        """Process ids of all engines."""
        return [
            *(engine.pid for engine in self.adopted),
            *(process.pid for process in self.started),
        ]

    def gather(self, index: IndexClient) -> None:
        """Adopt, start and register.

        Raises:
            EngineStartError: an engine did not start.
            OSError: the service cannot be reached.
            ServiceError: it refused.
        """
        self._adopt(index)
        adopted = {engine.ready.instance_id: engine.ready for engine in self.adopted}
        for options in self._options:
            if options.instance_id not in adopted:
                self.started.append(EngineProcess(options))
        new = [process.await_ready() for process in self.started]
        # These are new and empty: what the index holds of their names is of engines that are gone.
        index.unregister(new)
        index.register(new)
        engines = adopted | {engine.instance_id: engine for engine in new}
        self.engines = [engines[options.instance_id] for options in self._options]
        self._note_ports()

    def close(self) -> None:
        """End all engines; none is left when this returns."""
        stop_engines([*self.adopted, *self.started])
        if self._path is not None and self.engines:
            self._path.unlink(missing_ok=True)

    def _note_ports(self) -> None:
        """Where the wanted ports were taken, nobody would find the engines without."""
        if self._path is None:
            return
        ports = {engine.instance_id: engine.http_port for engine in self.engines}
        written = self._path.with_suffix(f".{os.getpid()}")
        written.write_bytes(msgspec.json.encode(ports))
        written.replace(self._path)

    def _noted_ports(self) -> dict[str, int]:
        with suppress(OSError, msgspec.MsgspecError):
            if self._path is not None:
                return msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
        return {}

    def _adopt(self, index: IndexClient) -> None:
        """Only engines whose every batch the index has, but for the last ones, are of any use."""
        followed = {(rank.instance_id, rank.dp_rank): rank for rank in index.followed()}
        misfits: list[AdoptedEngine] = []
        noted = self._noted_ports()
        for options in self._options:
            engine = adopt_engine(options, noted.get(options.instance_id, options.http_port))
            if engine is None:
                continue
            registered = [followed.get((options.instance_id, n)) for n in range(options.dp_ranks)]
            matches = [
                rank is not None
                and (rank.model, rank.block_size) == (options.model, options.sizes.block_size)
                and rank.endpoint == here.endpoint
                and rank.sequence < batches
                for rank, here, batches in zip(
                    registered, engine.ready.ranks, engine.state.batches, strict=False
                )
            ]
            fits = engine.state.options == options and len(matches) == options.dp_ranks
            (self.adopted if fits and all(matches) else misfits).append(engine)
        # They would keep the ports until their grace time is over.
        stop_engines(misfits)
