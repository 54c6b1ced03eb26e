"""The Faust app of a worker: the shell in which `streams.worker.tables` reads, folds and writes.

Faust 0.15.3 does not bring the records. Measured on a real broker, with isolated agents that took
batches:

- a rebalance cancels the agents' actors, the supervisor counts each as a crash, and beyond a few it
  ends the process by `SystemExit(1)`: a healthy worker died when others had been restarted;
- streams resume before a slow `on_partitions_assigned` has been handled, so records arrived that
  did not follow on the table (they were noticed, and the worker began anew);
- a record costs about 65 us of CPU, that is 15,000 records/s, and a bare consumer 1.3 us.

So a consumer of aiokafka, a member of the same group, reads inside a task of the app. The app is
started from code, without its web server, consumer, tables and topics.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

import faust
from faust.app.base import BootStrategy
from yarl import URL

from brokers.options import ClientOptions

STOP_S: Final = 30.0


class _Shell(BootStrategy):
    """Nothing of Kafka is started: the work has clients of its own."""

    enable_kafka = False
    enable_web = False


class WorkerApp(faust.App):
    """An app around one task."""

    BootStrategy = _Shell

    async def _wait_for_table_recovery_completed(self) -> bool:
        """There are no tables of Faust's that a task would have to wait for."""
        return False

    def _create_directories(self) -> None:
        """Nor any that would have to be kept.

        Faust makes `<id>-data` in the working directory otherwise, which in a container may be
        read-only. A `datadir` of ours is no way out: it is made without its parents, before the
        first partition makes `--data`, so that the app would fail whenever that is missing; and
        Faust formats it, so that a brace in its name would be an error.
        """


async def run_app(
    options: ClientOptions, *, group: str, work: Callable[[], Coroutine[None, None, None]]
) -> None:
    """Runs the work inside an app until it ends.

    Raises:
        Exception: what the work raised.
    """
    app = WorkerApp(
        group,
        broker=[URL(f"kafka://{server}") for server in options["bootstrap_servers"]],
        store="memory://",
        topic_allow_declare=False,
        topic_disable_leader=True,
        autodiscover=False,
    )
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 -- told to whoever waits, below
            ended.set_exception(error)
        else:
            ended.set_result(None)

    app.task(run)
    try:
        await app.start()
        await ended
    finally:
        await asyncio.wait_for(app.stop(), STOP_S)


def quiet_logs(level: int) -> None:
    """Lets Faust say what is wrong, and nothing in the steady state."""
    for name in ("faust", "mode", __name__):  # an app logs under its module
        logging.getLogger(name).setLevel(max(level, logging.ERROR))
