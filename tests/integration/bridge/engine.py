"""Engines in this process that remember what they have published."""

import random
import threading
from collections.abc import Callable

from bridge.sockets.raw_message import RawMessage
from lab.engines.cache import CacheSizes, EngineCache, Offload
from lab.engines.publisher import Publisher, PublisherOptions
from schemas.registration import PublisherKind, Registration
from tests.processes import until


class Engine:
    """One publisher with a cache behind it, and all that it ever sent."""

    def __init__(self, instance_id: str, *, replay: bool = True) -> None:
        self._random = random.Random(instance_id)
        self._published = 0
        self._cache = EngineCache(
            CacheSizes(block_size=16, gpu_blocks=300, cpu_blocks=500),
            offload=Offload.WRITE_THROUGH,
        )
        options = PublisherOptions(replay_endpoint="tcp://127.0.0.1:0" if replay else "")
        self.publisher = Publisher(options)
        self.registration = Registration(
            endpoint=self.publisher.endpoint,
            replay_endpoint=self.publisher.replay_endpoint,
            kind=PublisherKind("vLLM"),
            model_name="m",
            instance_id=instance_id,
            block_size=16,
        )

    def publish(self, batches: int = 1, *, lost: bool = False) -> None:
        for _ in range(batches):
            number = self._random.randrange(400)
            prompt = [number % 40] * 32 + [number] * (16 * (number % 9))
            self.publisher.publish(self._cache.run(prompt).events, lost=lost)
            self._published += 1

    def messages(self) -> list[RawMessage]:
        return [
            RawMessage(self.registration.publisher, [b"", number.to_bytes(8, "big"), payload], 0.0)
            for number, payload in list(self.publisher._buffer)
        ]

    def published(self) -> int:
        """Batches of this life; the publisher numbers them a moment later."""
        return self._published

    def restart(self) -> None:
        """A new process at the same addresses, with an empty cache."""
        self._published = 0
        self.publisher.close()
        self.publisher = Publisher(
            PublisherOptions(
                endpoint=self.registration.endpoint,
                replay_endpoint=self.registration.replay_endpoint,
            )
        )
        self._cache = EngineCache(
            CacheSizes(block_size=16, gpu_blocks=300, cpu_blocks=500),
            offload=Offload.WRITE_THROUGH,
        )


class Load:
    """Some hundred batches a second, over all engines."""

    def __init__(self, *engines: Engine, pause_s: float = 0.004) -> None:
        self._engines = engines
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            for one in self._engines:
                one.publish()

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def go_on_for(self, batches: int) -> None:
        """Waits until each engine has published that many more."""
        goals = {one: one.published() + batches for one in self._engines}
        until(
            lambda: all(one.published() >= goal for one, goal in goals.items()),
            what="more batches",
        )


Engines = Callable[..., Engine]
"""Makes an engine, see the fixture `engines`."""
