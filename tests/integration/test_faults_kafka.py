"""Every process of the distributed form killed with -9 in random order, under a steady load: each
once. Orders, and moments within a step, are what seeds of the cluster try.
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
