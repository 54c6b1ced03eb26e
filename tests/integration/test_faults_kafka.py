"""Every process of the distributed form killed with -9 in random order, under a steady load.

Each of them once. What a death costs by its moment and order is tried by the simulated cluster: its
bridges, workers and replicas die between any two awaits and any two writes to a disk. Mutants of
what the next process begins with (a spool forgotten, an incarnation begun twice, damaged rows that
are trusted) are found by its seeds. What no seed shows is that real processes come back at all: by
their locks, files, sockets and group sessions, and Kafka by its own recovery. A second death of the
same process adds nothing to that; REPRISE_TEST_KILLS asks for more.
"""

import os
import random
import time

import pytest

from devtools.broker import Broker
from tests.deployment import Deployment, check_once_quiet
from tests.load import Load
from tests.roles import Role

KILLS = int(os.environ.get("REPRISE_TEST_KILLS", "7"))


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_folded_twice_however_often_anything_is_killed(
    deployment: Deployment, load: Load, seed: int
) -> None:
    moments = random.Random(seed)
    deployment.start(load)
    victims: list[Role | Broker] = [*deployment.roles, deployment.broker]
    # Each of them at least once for every seven kills.
    order = [one for _ in range(0, KILLS, len(victims)) for one in moments.sample(victims, 7)]
    for victim in order[:KILLS]:
        time.sleep(moments.random())
        deployment.kill_and_restart(victim, moments.random())
    check_once_quiet(deployment, load, seed=seed)
