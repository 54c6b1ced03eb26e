"""Bridges that come and go in order, beside engines that cannot be asked for what they have sent:
in the end the log has all of it, and every publisher is `exact`.
"""

import asyncio
from typing import Final

from bridge.delivery.partition_lag import LAG_BYTES_FIRST
from bridge.publisher.held_batches import HELD_BATCHES_MAX
from schemas.answer_states import Doubt
from schemas.records import GapRecord
from tests.simulation.history import History
from tests.simulation.loop import SimulatedLoop, State
from tests.simulation.world_bridges import BridgeWorld

CHANGES: Final = 6


class ChangesWorld(BridgeWorld):
    """Nothing fails in it: what is kept meanwhile has room."""

    def __init__(self, loop: SimulatedLoop, history: History) -> None:
        super().__init__(loop, history, replays=False)
        self.held_max, self.lag_bytes = HELD_BATCHES_MAX, LAG_BYTES_FIRST
        for engine in self.engines:
            engine.answers_http = min(1.0, 2 * engine.answers_http)  # all questions, or none

    async def run(self) -> None:
        """See `World`."""
        for host in self.hosts.values():
            self.start(host)
        for number in range(len(self.engines)):
            self.register(number)
        await self._until_settled()
        self.crowd.send_last()  # of a life of which nothing has come, nothing can be known
        observing = self.loop.create_task(self.observer.run())
        sending = self.loop.create_task(self._send())
        for _ in range(CHANGES):
            await self._change()
            await self._until_settled()
        sending.cancel()
        for host in self.hosts.values():
            self.start(host)
        await self._until_quiet()
        self.crowd.send_last()
        await asyncio.sleep(3.0)
        await self._until_quiet()
        if observing.done():
            observing.result()
        observing.cancel()
        self.check()

    async def _send(self) -> None:
        """Some send all the time, and some nothing for long."""
        idle = self.rng.choice([*self.engines, None])
        while True:
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.02, 0.2, 2.0)))
            engine = self.rng.choice(self.engines)
            if engine is not idle:
                self.crowd.serve(engine)

    async def _change(self) -> None:
        running = [one for one in self.hosts.values() if one.process.state is not State.DEAD]
        stopped = [one for one in self.hosts.values() if one.process.state is State.DEAD]
        if stopped and (len(running) == 1 or self.rng.random() < 0.5):
            self.start(self.rng.choice(stopped))
            return
        host = self.rng.choice(running)
        self.history.note(f"{host.name} is stopped")
        assert host.bridge is not None
        host.bridge.stop()
        assert host.task is not None
        await host.task

    async def _until_settled(self) -> None:
        """Until each publisher is live with one bridge, and with no other."""
        end = self.loop.now + 60.0
        while not self._is_settled():
            assert self.loop.now < end, "publishers have no owner, or two"
            await asyncio.sleep(0.1)

    def _is_settled(self) -> bool:
        running = [one for one in self.hosts.values() if one.process.state is not State.DEAD]
        if not all(one.bridge is not None and one.bridge.status().partitions for one in running):
            return False
        found = [
            one.registration.publisher
            for host in running
            if host.bridge is not None
            for one in host.bridge.status().publishers
            if one.state == "live" and one.connected
        ]
        followed = sum(len(one.bridge.pump.followed) for one in running if one.bridge is not None)
        return len(found) == len(set(found)) == followed == len(self.engines)

    def check(self) -> None:
        """See `BridgeWorld`; and nothing was lost."""
        super().check()
        gaps = [one for one in self._records() if isinstance(one, GapRecord)]
        assert gaps == []
        found = self.observer.standings()
        for one in self.engines:
            known = {"", Doubt.ATTENTION_ONLY} if one.is_hybrid else {""}
            due = {Doubt.ATTENTION_ONLY} if one.announced.is_hybrid else known
            assert found[one.publisher].reason in due, found
