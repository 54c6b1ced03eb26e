"""What publishers cost that are up and silent, with replay sockets.

Each has sent one batch. All are to be `exact`, and are asked now and then whether anything is
missing, less often the longer they are silent: so CPU is taken once they have been for a while.
"""

import time
from collections import Counter
from typing import Final

from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.service import Service
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes
from lab.traffic.event_load import LoadPlan
from reprise.http.open_files import raise_open_files_limit

BLOCKS: Final = 4


def measure(sizes: Sizes) -> list[Figure]:
    raise_open_files_limit()
    plan = LoadPlan(blocks=BLOCKS, blocks_per_event=BLOCKS, block_size=BLOCK_SIZE, seed=SEED)
    count = sizes.silent_publishers
    with (
        Service() as service,
        Publishers(plan, publishers=count, own_prompts=True, replays=True) as publishers,
    ):
        publishers.connect(service)
        service.wait_folded(publishers.send().last_sequence, poll_s=0.5)
        time.sleep(sizes.silent_s)
        before_s, began = service.cpu_s(), time.monotonic()
        time.sleep(sizes.silent_s / 3)
        share = 100 * (service.cpu_s() - before_s) / (time.monotonic() - began)
        states = Counter(one.state for one in service.publishers())
    name = f"{count:,} publishers, up and silent: CPU"
    note = ", ".join(f"{many:,} {state}" for state, many in sorted(states.items()))
    return [Figure(name=name, unit="% of a core", runs=[share], note=note)]
