"""An event loop on virtual time, and processes on it that can be killed and paused at any await.

Nothing waits: when no callback is ready the clock jumps to the next timer. A process is what runs
in one context: its tasks, their timers and callbacks. A killed one never runs again, not even its
`finally` blocks, which is what `kill -9` does; a paused one goes on where it was.
"""

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable, Coroutine, Iterator
from enum import Enum
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")

EPOCH_S = 1_700_000_000.0
"""Unix seconds at the beginning of a simulation."""


class State(Enum):
    """What a process may do."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class Process:
    """One simulated process; see the module."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.context = contextvars.Context()
        self.context.run(CURRENT.set, self)
        self.held: list[asyncio.Handle] = []

    def __repr__(self) -> str:
        return f"<{self.name} {self.state.value}>"


CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current() -> Process | None:
    """The process of the code that runs; None for the simulation itself."""
    return CURRENT.get()


class DeadlockError(AssertionError):
    """Nothing is ready and nothing is scheduled: whoever waits would wait for ever."""


class _Selector:
    """In place of the operating system's: waiting moves the clock."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise DeadlockError("every task waits, and no timer is set")
        self._loop.now += max(timeout, 0.0)
        return []

    def close(self) -> None: ...

    def get_map(self) -> dict[Any, Any]:
        return {}


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _Selector(self)
        self._clock_resolution = 1e-9
        self.processes: set[Process] = set()
        self.set_exception_handler(lambda *_: None)

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self.now

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        for _ in range(len(ready)):
            handle = ready.popleft()
            process: Process | None = handle._context.get(CURRENT, None)
            if process is None or process.state is State.RUNNING:
                ready.append(handle)
            else:
                process.held.append(handle)
        super()._run_once()  # type: ignore[misc]

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Runs it at once: there are no threads."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 -- whoever awaits it is told
            future.set_exception(error)
        return future

    # Processes

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Starts work in a process."""
        task = self.create_task(work, context=process.context)
        self.processes.add(process)
        return task

    def kill(self, process: Process) -> None:
        """As `kill -9`: nothing of it runs from here on."""
        process.state = State.DEAD

    def pause(self, process: Process) -> None:
        """As SIGSTOP."""
        if process.state is State.RUNNING:
            process.state = State.PAUSED

    def resume(self, process: Process) -> None:
        """As SIGCONT."""
        if process.state is State.PAUSED:
            self._release(process)

    def _release(self, process: Process) -> None:
        process.state = State.RUNNING
        self._ready.extend(process.held)  # type: ignore[attr-defined]
        process.held.clear()

    async def dispose(self) -> None:
        """Ends all tasks, those of dead processes included, so that nothing is left to collect.

        Whatever they still do counts for nothing: the simulation has been judged.
        """
        for process in self.processes:
            self._release(process)
        for _ in range(20):
            tasks = asyncio.all_tasks(self) - {asyncio.current_task(self)}
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=60.0)


@contextlib.contextmanager
def simulated_time(loop: SimulatedLoop, *modules: Any) -> Iterator[None]:
    """Lets `time.time`, `time.monotonic` and `time.sleep` be those of the loop.

    Args:
        loop: whose clock.
        modules: those that imported `monotonic` or `time` by name.
    """

    def unix() -> float:
        return EPOCH_S + loop.now

    def sleep(seconds: float) -> None:
        loop.now += seconds

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(time, "time", unix))
        patches.enter_context(mock.patch.object(time, "monotonic", loop.time))
        patches.enter_context(mock.patch.object(time, "sleep", sleep))
        for module in modules:
            if callable(getattr(module, "monotonic", None)):
                patches.enter_context(mock.patch.object(module, "monotonic", loop.time))
            if callable(getattr(module, "time", None)):
                patches.enter_context(mock.patch.object(module, "time", unix))
        yield


def run(work: Callable[[SimulatedLoop], Coroutine[Any, Any, T]], *modules: Any) -> T:
    """Runs a simulation to its end and disposes of whatever it left."""
    loop = SimulatedLoop()
    asyncio.set_event_loop(loop)
    try:
        with simulated_time(loop, *modules):
            try:
                return loop.run_until_complete(work(loop))
            finally:
                loop.run_until_complete(loop.dispose())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
