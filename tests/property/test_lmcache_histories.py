"""Random histories of an LMCache worker: what says that it is exact equals the worker's cache, and
a full sync makes it so, whatever was lost, cut or restarted before.
"""

import random
from collections.abc import Callable

import pytest

from lmcache_adapter.worker.full_sync import LMCACHE_SYNC_IDLE_S
from lmcache_adapter.worker.worker import LMCACHE_SYNC_AGAIN_MAX_S
from schemas.answer_states import Doubt
from tests.lmcache import CPU, DISK
from tests.unit.lmcache_adapter.scene import REPLY, Cache, Scene
from tests.unit.lmcache_adapter.worker.test_worker import restarted

SEEDS = 400
STEPS = 60


class History:
    """One worker and what happens to it and to us."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cache = Cache(Scene())
        self.cache.register()
        self.link = 1_000_000  # by which is pushed; no other link has such a number
        self.pushed_by = 0
        self.syncs = 0
        self.batches: list[dict[str, object]] = []
        self.sync_id = ""
        self.has_disk = self.random.random() < 0.3
        self.cache.has_tags = self.random.random() < 0.3

    def step(self) -> None:
        weighted: list[tuple[int, Callable[[], None]]] = [
            (30, self.operate),
            (10, self.beat),
            (10, self.push_batch),
            (6, self.pass_time),
            (5, self.cut),
            (4, self.ask_status),
            (2, self.restart_worker),
            (2, self.restart_bridge),
        ]
        [step] = self.random.choices([step for _, step in weighted], [w for w, _ in weighted])
        step()
        self.check()

    def operate(self) -> None:
        location = DISK if self.has_disk and self.random.random() < 0.3 else CPU
        # A frozen cache stores nothing; it may still evict.
        kinds = ["evict"] if self.batches and location == CPU else ["admit", "admit", "evict"]
        changes = [
            (self.random.choice(kinds), self.random.randrange(12))
            for _ in range(self.random.randrange(1, 5))
        ]
        message = self.cache.operations(*changes, location=location)
        self.cache.scene.push(message, link=self.link)
        self.pushed_by = self.link

    def cut(self) -> None:
        """The link breaks; what was under way may be lost, batches of a full sync included."""
        for _ in range(self.random.randrange(3)):
            self.cache.operations(("evict", self.random.randrange(12)))
        if self.random.random() < 0.5 and self.batches:
            self.batches.pop()
        self.cache.scene.controller.link_down(self.link, self.cache.scene.now)
        self.cache.scene.settle()
        self.link += 1

    def beat(self) -> None:
        if self.cache.beat() and not self.batches:
            self.begin_sync()

    def begin_sync(self) -> None:
        self.syncs += 1
        self.sync_id = f"s{self.syncs}"
        self.batches = self.cache.start_sync(self.sync_id, batch_keys=3)
        self.random.shuffle(self.batches)

    def push_batch(self) -> None:
        if self.batches:
            self.cache.scene.push(self.batches.pop(), link=self.link)

    def ask_status(self) -> None:
        if self.sync_id and self.cache.status(self.sync_id)["can_exit_freeze"]:
            self.batches = []

    def pass_time(self) -> None:
        self.cache.scene.wait(self.random.choice([1.0, 5.0, LMCACHE_SYNC_IDLE_S + 1]))
        self.ask_status()

    def restart_worker(self) -> None:
        before, self.link = self.link, self.link + 1
        late = self.cache.operations(("admit", self.random.randrange(12)))
        self.batches, self.sync_id = [], ""
        has_pushed = before == self.pushed_by  # else nobody can tell whose link it is
        if not has_pushed or self.random.random() < 0.5:
            self.cache.scene.controller.link_down(before, self.cache.scene.now)
            self.cache.register()
        else:
            self.cache.register()
            self.cache.scene.push(late, link=before)

    def restart_bridge(self) -> None:
        locations = self.cache.scene.controller.known()[0].locations
        restarted(self.cache, *locations)
        self.link += 1
        self.cache.scene.ask(self.cache.message("FullSyncStatus", sync_id="none"), REPLY)

    def check(self) -> None:
        if self.cache.doubt is None and self.cache.degraded is None:
            assert self.cache.indexed == self.cache.truth

    def finish(self) -> None:
        """Nothing is lost any more: heartbeats come, and what is asked for is sent."""
        self.batches = []
        for _ in range(12):
            self.cache.scene.wait(LMCACHE_SYNC_AGAIN_MAX_S + 1)
            self.beat()
            while self.batches:
                self.push_batch()
            self.operate()
        doubt, has_tags = self.cache.doubt, self.cache.has_tags
        if doubt is None or not has_tags:
            on_cpu = {key for key in self.cache.indexed if key[0] == "CPU"}
            assert on_cpu == {key for key in self.cache.truth if key[0] == "CPU"}
        if not self.has_disk:
            assert doubt is None or (has_tags and doubt is Doubt.COPIES_UNKNOWN)
            assert self.cache.degraded is None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_exact_is_the_workers_cache(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.finish()
