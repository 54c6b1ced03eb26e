"""An event loop on virtual time, and processes on it that can be killed and paused at any await.

Nothing waits: when no callback is ready the clock jumps to the next timer. A process is what runs
in one context: its tasks, their timers and callbacks. A killed one never runs again, not even its
`finally` blocks, which is what `kill -9` does; a paused one goes on where it was; a starved one
gets a core for what is ready, and then none for a while, again and again.
"""

import asyncio
import contextlib
import contextvars
import inspect
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import copy_context
from enum import Enum
from functools import cache, partial
from heapq import heappop, heappush
from types import FunctionType, coroutine
from typing import Any, TypeVar
from unittest import mock

from schemas.clock import REAL_CLOCK, Clock

T = TypeVar("T")

EPOCH_S = 1_700_000_000.0
"""Unix seconds at the beginning of a simulation."""


class State(Enum):
    """What a process may do."""

    RUNNING = "running"
    PAUSED = "paused"
    STARVED = "starved"
    DEAD = "dead"


class Callback:
    """In place of asyncio's handle: what is to be called, and in which context."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context
    ) -> None:
        self.callback, self.args, self.context = callback, args, context
        self.is_cancelled = False

    def cancel(self) -> None:
        """It is not called any more."""
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        """Whether that was said."""
        return self.is_cancelled


def _nothing() -> None: ...


class Process:
    """One simulated process; see the module."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.context = contextvars.Context()
        self.context.run(CURRENT.set, self)
        self.held: list[Callback] = []
        self.starves_until = 0.0

    def __repr__(self) -> str:
        return f"<{self.name} {self.state.value}>"


CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current() -> Process | None:
    """The process of the code that runs; None for the simulation itself."""
    return CURRENT.get()


_Future = asyncio.Future  # looked up once


@coroutine
def _turn() -> Generator[None, None, None]:
    yield


def _finish(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


class DeadlockError(AssertionError):
    """Nothing is ready and nothing is scheduled: whoever waits would wait for ever."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.failures: list[BaseException] = []
        self.processes: dict[Process, None] = {}
        self._timers: list[tuple[float, int, Callback]] = []
        self._timers_made = 0
        self.set_exception_handler(lambda *_: None)

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self.now

    @property
    def clock(self) -> Clock:
        """To be handed in: what sleeps lets the time of all go on."""

        def unix() -> float:
            return EPOCH_S + self.now

        def sleep(seconds: float) -> None:
            self.now += seconds

        return Clock(self.time, unix, lambda: int(1e9 * unix()), sleep, time.thread_time)

    def _write_to_self(self) -> None: ...

    # Timers and callbacks are most of what a seed costs: they are kept without the base's checks,
    # and in a heap of tuples, which compare much faster than handles do.

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> "Callback":
        """As the base's."""
        made = Callback(callback, args, copy_context() if context is None else context)
        self._ready.append(made)  # type: ignore[attr-defined]
        return made

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> "Callback":
        """As the base's; of one moment, the timer that was set first comes first."""
        made = Callback(callback, args, copy_context() if context is None else context)
        self._timers_made += 1
        heappush(self._timers, (when, self._timers_made, made))
        return made

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> "Callback":
        """As the base's."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_future(self) -> "asyncio.Future[Any]":
        """As the base's."""
        return _Future(loop=self)

    async def sleep(self, delay: float, result: T = None) -> T:  # type: ignore[assignment]
        """In place of `asyncio.sleep`, which asks for the loop and cancels what is over."""
        if delay <= 0:
            await _turn()
            return result
        future: asyncio.Future[T] = _Future(loop=self)
        timer = Callback(_finish, (future, result), copy_context())
        self._timers_made += 1
        heappush(self._timers, (self.now + delay, self._timers_made, timer))
        try:
            return await future
        except BaseException:
            timer.cancel()
            raise

    def _run_once(self) -> None:
        """As the base's, but that time jumps, that only running processes run, and that it goes on
        until the loop is stopped.
        """
        ready: deque[Callback] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        running = State.RUNNING
        while not self._stopping:  # type: ignore[attr-defined]
            while timers and timers[0][2].is_cancelled:
                heappop(timers)
            if not ready:
                if not timers:
                    raise DeadlockError("every task waits, and no timer is set")
                self.now = max(self.now, timers[0][0])
            while timers and timers[0][0] <= self.now:
                ready.append(heappop(timers)[2])
            for _ in range(len(ready)):
                made = ready.popleft()
                context = made.context
                process = context.get(CURRENT)
                if process is not None and process.state is not running:
                    process.held.append(made)
                elif not made.is_cancelled:
                    try:
                        context.run(made.callback, *made.args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException:  # noqa: BLE001 -- tasks have theirs themselves
                        pass

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
        task.add_done_callback(partial(self._ended, process))
        self.processes[process] = None
        return task

    def _ended(self, process: Process, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and process.state is not State.DEAD:
            self.failures.append(error)  # others may do its work, so nothing else would tell

    def kill(self, process: Process) -> None:
        """As `kill -9`: nothing of it runs from here on."""
        process.state = State.DEAD

    def pause(self, process: Process) -> None:
        """As SIGSTOP."""
        if process.state in (State.RUNNING, State.STARVED):
            process.state = State.PAUSED

    def resume(self, process: Process) -> None:
        """As SIGCONT."""
        if process.state is State.PAUSED:
            self._release(process)

    def starve(self, process: Process, seconds: float, rng: random.Random) -> None:
        """Others have the cores for so long; to be called by none of the process's own code."""
        process.starves_until = max(process.starves_until, self.now + seconds)
        self._take_core(process, rng)

    def _take_core(self, process: Process, rng: random.Random) -> None:
        if process.state is State.RUNNING and self.now < process.starves_until:
            process.state = State.STARVED
            self.call_later(rng.random() * rng.choice((0.3, 3.0)), self._give_core, process, rng)

    def _give_core(self, process: Process, rng: random.Random) -> None:
        if process.state is State.STARVED:
            self._release(process)
            self.call_soon(self._take_core, process, rng)  # behind what it has been kept from

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
def simulated_time(loop: SimulatedLoop) -> Iterator[None]:
    """Lets the clocks of the product be those of the loop: those of `time`, those that a module has
    imported by name, and those that are the default of a parameter.
    """

    clock = loop.clock
    clocks: dict[Any, Any] = {
        time.time: clock.unix,
        time.monotonic: clock.monotonic,
        time.sleep: clock.sleep,
        REAL_CLOCK: clock,
    }
    with contextlib.ExitStack() as patches:
        names, functions = _clock_users(len(sys.modules))
        for where in names:
            found = {name: clocks[one] for name, one in where.items() if _is_clock(one)}
            patches.enter_context(mock.patch.dict(where, found))
        for function in functions:
            made = tuple(
                clocks[one] if _is_clock(one) else one for one in function.__defaults__ or ()
            )
            patches.enter_context(mock.patch.object(function, "__defaults__", made))
        for name in ("time", "monotonic", "sleep"):
            patches.enter_context(mock.patch.object(time, name, clocks[getattr(time, name)]))
        patches.enter_context(mock.patch.object(asyncio, "sleep", loop.sleep))
        yield


_CLOCKS = (time.time, time.monotonic, time.sleep, REAL_CLOCK)
_ROOMS = ("bridge", "brokers", "doctor", "lmcache_adapter", "query_api", "reprise", "routing")
_LOWER_ROOMS = ("logs", "schemas", "storage", "streams")


def _is_clock(value: object) -> bool:
    return any(value is one for one in _CLOCKS)


@cache
def _clock_users(modules: int) -> tuple[list[dict[str, Any]], list[FunctionType]]:
    """Where clocks are: names of modules and defaults of keyword parameters; and the functions of
    which a positional parameter has one.

    Args:
        modules: how many there are: those that came since are looked at, too.
    """
    names: list[dict[str, Any]] = []
    positional: list[FunctionType] = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in (*_ROOMS, *_LOWER_ROOMS):
            continue
        own = [one for one in vars(module).values() if getattr(one, "__module__", "") == name]
        classes = [one for one in own if inspect.isclass(one)]
        found = [*own, *(made for one in classes for made in vars(one).values())]
        functions = [one for one in found if inspect.isfunction(one)]
        names += [vars(module), *(one.__kwdefaults__ for one in functions if one.__kwdefaults__)]
        positional += [one for one in functions if any(map(_is_clock, one.__defaults__ or ()))]
    return [one for one in names if any(map(_is_clock, one.values()))], positional


def run(work: Callable[[SimulatedLoop], Coroutine[Any, Any, T]]) -> T:
    """Runs a simulation to its end and disposes of whatever it left."""
    loop = SimulatedLoop()
    asyncio.set_event_loop(loop)
    try:
        with simulated_time(loop):
            try:
                return loop.run_until_complete(work(loop))
            finally:
                loop.run_until_complete(loop.dispose())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
