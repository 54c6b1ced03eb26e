"""Both forms of the service where they know of LMCache's chunks, and LMCache's own code, as
processes.
"""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from brokers.broker_settings import KafkaSettings
from devtools import lmcache
from tests.contract.deployments import SESSION, WAIT_S, Deployment, Distributed, Embedded
from tests.processes import until
from tests.roles import Role

CHUNK: Final = 4


class LmcacheProcess:
    """A program of `devtools/lmcache/` that takes commands, as a process.

    Args:
        name: of it; its log is called so.
    """

    def __init__(
        self, program: Path, options: Mapping[str, object], name: str, directory: Path
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [lmcache.interpreter(), str(program), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, do: str, **fields: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do} | fields) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"it has ended:\n{self.log.read_text()[-3000:]}"
        return json.loads(line)

    def hashes(self, tokens: list[int]) -> list[int]:
        """Of its chunks of these tokens, as answers have them: the last 8 bytes of each name."""
        return [int(one[-16:], 16) for one in self.ask("names", tokens=tokens)]


class LmcacheService:
    """The embedded form, or with `kafka` the distributed one, whose bridge has the options, and
    whose replica has those of `answering`.
    """

    def __init__(
        self,
        directory: Path,
        kafka: KafkaSettings | None,
        *options: str,
        answering: Sequence[str] = (),
    ) -> None:
        self.deployment: Deployment
        self.kafka = kafka
        self.bridge: Role | None = None
        if kafka is None:
            self.deployment = Embedded(directory, *options, *answering)
            return
        self.bridge = Role("bridge", directory / "bridge", kafka, *SESSION, *options)
        worker = Role("streams", directory / "streams", kafka, *SESSION)
        replica = Role("serve", directory / "serve", kafka, *answering)
        self.deployment = Distributed(
            kafka, bridge=self.bridge, replica=replica, its=[self.bridge, worker, replica]
        )

    def close(self) -> None:
        self.deployment.close()

    def metric(self, name: str, **labels: str) -> float:
        """Of the process that has the sockets."""
        if self.bridge is not None:
            return self.bridge.metric(name, **labels)
        return self.deployment.api.metric(name, **labels)

    def until(self, holds: Callable[[], object], what: str) -> None:
        try:
            until(holds, what=what, timeout_s=WAIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.deployment.log()}") from error

    def match(self, keys: Sequence[int], instance_id: str) -> tuple[int, int, int, str]:
        """Chunks matched on any tier, on CPU and on disk, and the answer's state."""
        fields = {"model": "m", "block_size": CHUNK, "seq_hashes": list(keys)}
        path = "/query_by_hash?detail=1"
        status, answer, _ = self.deployment.api.exchange(path, fields)
        assert status == 200, answer
        found = answer.get("default", {}).get(instance_id)
        if found is None:
            return (-1, -1, -1, "")
        tiers = [found[name] // CHUNK for name in ("longest_matched", "CPU", "DISK")]
        return (tiers[0], tiers[1], tiers[2], found["state"])

    def await_match(self, keys: Sequence[int], instance_id: str, *expected: object) -> None:
        last: list[object] = []

        def holds() -> bool:
            last[:] = self.match(keys, instance_id)
            return tuple(last) == expected

        try:
            self.until(holds, f"{expected} of {instance_id}")
        except AssertionError as error:
            raise AssertionError(f"{last}: {error}") from error
