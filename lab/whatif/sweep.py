"""Many runs, on all cores. The outcomes do not depend on how many processes there are."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

from lab.whatif.outcome import Outcome
from lab.whatif.run import Run
from lab.whatif.setup import Setup
from lab.whatif.workload import Workload
from schemas.errors import RepriseError


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


_workloads: Sequence[Workload] = ()


def run_all(
    jobs: Sequence[Job],
    workloads: Sequence[Workload],
    *,
    processes: int | None = None,
    when_done: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """The outcome of each job, in their order.

    Args:
        jobs: what to run.
        workloads: what they run on.
        processes: at most so many; None for one on each core that this process may use.
        when_done: called as each is done.

    Raises:
        SweepError: a process has died.
    """
    count = min(processes or available_cores(), len(jobs))
    if count <= 1:
        outcomes = []
        for job in jobs:
            outcomes.append(_outcome_of(job, workloads))
            when_done()
        return outcomes
    others = set(multiprocessing.active_children())
    # Spawned: the caller may have threads, which a fork would leave without their locks.
    with ProcessPoolExecutor(
        count, multiprocessing.get_context("spawn"), _begin, (workloads,)
    ) as pool:
        futures = [pool.submit(_run, job) for job in jobs]
        try:
            for future in as_completed(futures):
                future.result()
                when_done()
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


def _begin(workloads: Sequence[Workload]) -> None:
    global _workloads
    _workloads = workloads
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children


def _run(job: Job) -> Outcome:
    return _outcome_of(job, _workloads)


def _outcome_of(job: Job, workloads: Sequence[Workload]) -> Outcome:
    return Run(job.setup, workloads[job.workload], label=job.label).outcome()
