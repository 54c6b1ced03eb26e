"""One run of a world: its seed, what was done to it, and a digest of all that came of that."""

import asyncio
import gc
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from typing import Any, Final, Protocol

from tests.simulation import loop as simulated
from tests.simulation.loop import SimulatedLoop

_TOLD: Final = 40


class History:
    """What happens in one world.

    Attributes:
        seed: of everything that is random in it; each part draws from a source of its own.
    """

    def __init__(self, world: str, seed: int) -> None:
        self.world, self.seed = world, seed
        self._lines: deque[str] = deque(maxlen=_TOLD)
        self._digest = blake2b(digest_size=8)
        self.loop: SimulatedLoop | None = None

    def source(self, part: str) -> random.Random:
        """The source of random numbers of one part."""
        return random.Random(f"{self.world}/{self.seed}/{part}")

    def note(self, text: str) -> None:
        """One more step, for people and for the digest."""
        now = 0.0 if self.loop is None else self.loop.now
        self._lines.append(f"{now:9.3f}  {text}")
        self.trace(text.encode())

    def trace(self, data: bytes) -> None:
        """For the digest: something that was written, and when."""
        now = 0.0 if self.loop is None else self.loop.now
        self._digest.update(f"{now!r} {len(data)} ".encode() + data)

    def digest(self) -> str:
        """Of all that was noted and traced so far."""
        return self._digest.hexdigest()

    def __str__(self) -> str:
        return "\n".join(self._lines)


class World(Protocol):
    """Something that has a history."""

    def patches(self) -> AbstractContextManager[Any]:
        """Puts simulated parts in place of real ones for as long as the world runs."""
        ...

    async def run(self) -> None:
        """Lives through its history, and checks what must hold. Raises AssertionError."""
        ...


MakeWorld = Callable[[SimulatedLoop, History], World]
"""Makes the world at its beginning."""


def run_seed(name: str, make_world: MakeWorld, seed: int) -> History:
    """Runs one history.

    Raises:
        AssertionError: something does not hold; the text has the seed and the last steps.
    """
    history = History(name, seed)

    def begin(loop: SimulatedLoop) -> Coroutine[Any, Any, None]:
        history.loop = loop
        return _run(make_world(loop, history))

    gc.disable()  # a generator that is collected late would run at another time
    try:
        with silence():
            simulated.run(begin)
    except Exception as last:  # noqa: BLE001 -- any failure is told with its seed
        failures = [] if history.loop is None else history.loop.failures
        error = failures[0] if failures else last
        told = str(error) if isinstance(error, AssertionError) else repr(error)
        raise AssertionError(
            f"{name}, seed {seed} (repeat it with: --seed {seed}): {told}\n\n"
            f"its last steps:\n{history}"
        ) from error
    finally:
        gc.enable()
    return history


@contextmanager
def silence() -> Iterator[None]:
    """Nothing is logged. Around many seeds it saves each of them two looks at all loggers."""
    before = logging.root.manager.disable
    if before < logging.CRITICAL:
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        if before < logging.CRITICAL:
            logging.disable(before)


async def _run(world: World) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    with world.patches():
        await world.run()
        assert not loop.failures, repr(loop.failures[0])
