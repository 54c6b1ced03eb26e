"""Many runs, on all cores. The outcomes do not depend on how many processes there are."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Final, NamedTuple

from lab.whatif.outcome import RunOutcome
from lab.whatif.run import SimulationRun
from lab.whatif.setup import Setup
from lab.whatif.workload import Workload
from schemas.errors import RepriseError

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized


class SweepError(RepriseError):
    """Operator action: a process of the sweep has died; give it more memory, or fewer processes."""


class Job(NamedTuple):
    """One run of many.

    Attributes:
        workload: its place among the workloads.
        label: of people.
        setup: what to run.
        group: which sweep it belongs to.
        value: where it stands on the sweep's axis, as it was given; "" where there is none.
        x: the same as a number.
    """

    workload: int
    label: str
    setup: Setup
    group: str = "policies"
    value: str = ""
    x: float = 0.0


_LOOK_S: Final = 0.5
"""Between two looks at how far the processes are."""

_workloads: Sequence[Workload] = ()
_counter: "Synchronized[int] | None" = None
"""Requests that all processes have run."""


def run_all(
    jobs: Sequence[Job],
    workloads: Sequence[Workload],
    *,
    processes: int | None = None,
    when_done: Callable[[], None] = lambda: None,
    when_taken: Callable[[int], None] = lambda requests: None,
) -> list[RunOutcome]:
    """The outcome of each job, in their order.

    Args:
        jobs: what to run.
        workloads: what they run on.
        processes: at most so many; None for one on each core that this process may use.
        when_done: called as each is done.
        when_taken: called now and then with how many requests were run by now, of all runs.

    Raises:
        SweepError: a process has died.
    """
    count = min(processes or available_cores(), len(jobs))
    if count <= 1:
        outcomes, taken = [], 0

        def take(requests: int) -> None:
            nonlocal taken
            taken += requests
            when_taken(taken)

        for job in jobs:
            outcomes.append(_outcome_of(job, workloads, take))
            when_done()
        return outcomes
    others = set(multiprocessing.active_children())
    # Spawned: the caller may have threads, which a fork would leave without their locks.
    context = multiprocessing.get_context("spawn")
    counter = context.Value("Q", 0)
    with ProcessPoolExecutor(count, context, _begin, (workloads, counter)) as pool:
        futures = [pool.submit(_run, job) for job in jobs]
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, _LOOK_S, FIRST_COMPLETED)
                for future in done:
                    future.result()
                    when_done()
                when_taken(counter.get_obj().value)  # without its lock: a dead process may have it
        except BrokenProcessPool as error:
            raise SweepError(f"A process of the sweep has died: {error}") from error
        except BaseException:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()  # a run may take minutes yet
            pool.shutdown(cancel_futures=True)  # whose thread alone waits for them
            raise
        return [future.result() for future in futures]


def available_cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _begin(workloads: Sequence[Workload], counter: "Synchronized[int]") -> None:
    global _workloads, _counter
    _workloads, _counter = workloads, counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children


def _run(job: Job) -> RunOutcome:
    return _outcome_of(job, _workloads, _count)


def _count(requests: int) -> None:
    assert _counter is not None
    with _counter.get_lock():
        _counter.value += requests


def _outcome_of(
    job: Job, workloads: Sequence[Workload], when_taken: Callable[[int], None]
) -> RunOutcome:
    return SimulationRun(job.setup, workloads[job.workload], label=job.label).outcome(when_taken)
