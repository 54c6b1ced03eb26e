"""A steady load of known content: engines that evict and offload, and the prompts they serve.

An engine's cache is the truth to which every table is compared.
"""

import random
import threading
from collections.abc import Sequence

from lab.engines.cache import CacheSizes, EngineCache, Offload
from lab.engines.publisher import Publisher, PublisherOptions

ANYWHERE = PublisherOptions()


class Engine:
    """One rank of an engine.

    Attributes:
        cache: what it holds.
        published: batches that it has sent.
    """

    def __init__(
        self,
        instance_id: str,
        *,
        dp_rank: int = 0,
        gpu_blocks: int = 200,
        cpu_blocks: int = 300,
        options: PublisherOptions = ANYWHERE,
    ) -> None:
        sizes = CacheSizes(block_size=16, gpu_blocks=gpu_blocks, cpu_blocks=cpu_blocks)
        self.instance_id = instance_id
        self.cache = EngineCache(sizes, offload=Offload.WRITE_THROUGH)
        self.publisher = Publisher(options, dp_rank=dp_rank)
        self.published = 0

    def serve(self, prompt: Sequence[int]) -> None:
        """Publishes the batch of one request."""
        self.publisher.publish(self.cache.run(prompt).events)
        self.published += 1

    def clear(self) -> None:
        """Forgets everything, and says so."""
        self.publisher.publish(self.cache.clear())
        self.published += 1

    def held(self) -> set[tuple[int, str]]:
        """(engine hash, medium) of every block that it holds."""
        return set(self.cache.snapshot().held)

    def registration(self) -> dict[str, object]:
        """The body of `POST /register`."""
        return {
            "endpoint": self.publisher.endpoint,
            "replay_endpoint": self.publisher.replay_endpoint,
            "type": "vLLM",
            "modelname": "m",
            "instance_id": self.instance_id,
            "block_size": self.cache.sizes.block_size,
            "dp_rank": self.publisher.dp_rank,
            # An older version does not know the field, whatever its value.
            **({} if self.cache.sizes.cpu_blocks else {"kv_offloading": "none"}),
        }


class Load:
    """Prompts for all engines, from a thread of its own; some hundred batches a second in all."""

    def __init__(
        self, seed: int, engines: Sequence[Engine], *, prompts: int = 300, pause_s: float = 0.01
    ) -> None:
        self.engines = list(engines)
        self._prompts = prompts
        self._pause_s = pause_s
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @staticmethod
    def prompt(number: int) -> list[int]:
        """Many prompts begin alike, and few are the same."""
        return [number % 30] * 32 + [number] * (16 * (number % 9))

    def sample(self) -> list[list[int]]:
        """Every seventh of the prompts, to ask for."""
        return [self.prompt(number) for number in range(0, self._prompts, 7)]

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            engine = self._random.choice(self.engines)
            engine.serve(self.prompt(self._random.randrange(self._prompts)))

    def published(self) -> int:
        """Batches that all engines have sent."""
        return sum(engine.published for engine in self.engines)

    def start(self) -> None:
        """Begins, or goes on after `stop`."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Returns once the last batch is with its publisher."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        self.stop()
        for engine in self.engines:
            engine.publisher.close()
