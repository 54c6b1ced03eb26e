"""The log drops all that it has, and a worker that had folded nothing of it builds its table from
what comes: once an engine has cleared its cache, or has been started again, answers are exact.
"""

import asyncio

import pytest

from bridge.delivery.registrations_watch import LOG_START_LOOK_S
from bridge.heartbeats import HEARTBEAT_COMPLETE_S
from brokers.clients import partition_of
from query_api.replica.heartbeat_watch import HeartbeatWatch
from schemas.answer_states import AnswerState, Doubt
from schemas.identities import Offset
from schemas.topics import encode_stream
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.recovery import EVERY_OFFSET
from tests.simulation.history import run_seed
from tests.simulation.ledgers import held_by
from tests.simulation.loop import EPOCH_S
from tests.simulation.world_bridges import KAFKA, BridgeWorld

_SEEN_S = 3.0
"""Within which the next registration, and the next heartbeat behind it, are in the log."""


class RetentionWorld(BridgeWorld):
    """See the module: what follows on an ordinary history of bridges."""

    async def run(self) -> None:
        """See `World`."""
        await super().run()
        logs = self.broker.topics[KAFKA.topics.events.name]
        for log in logs:
            log.retire(log.end)
        tables = [(Fold(open_kernel(1337, name="reference")), HeartbeatWatch()) for _ in logs]
        for fold, _ in tables:
            fold.distrust(EVERY_OFFSET)
        for number, engine in enumerate(self.engines):
            engine.be_odd(None)
            if number % 2 and engine.up:
                engine.clear()
            else:
                engine.stop()
        await asyncio.sleep(1.0)
        self.crowd.heal()
        await self._until_quiet()
        self.crowd.send_last()
        end = self.loop.now + LOG_START_LOOK_S + HEARTBEAT_COMPLETE_S + _SEEN_S
        while self.loop.now < end:
            looked_at = self.loop.now
            await asyncio.sleep(0.25)
            for log, (fold, watch) in zip(logs, tables, strict=True):
                for message in log.records:
                    if message.offset > fold.offset:
                        fold.apply(Offset(message.offset), message.value or b"")
                now = self.loop.now
                watch.note(0, fold.bridges, now=now, unix=EPOCH_S + now, as_of=looked_at)
        self._check_tables(tables)

    def _check_tables(self, tables: list[tuple[Fold, HeartbeatWatch]]) -> None:
        for engine in self.engines:
            if engine.number not in self.registered:
                continue
            number = partition_of(
                encode_stream(engine.publisher.stream), KAFKA.topics.events.partitions
            )
            fold, watch = tables[number]
            said = fold.states.standing(engine.publisher, watch.fresh_until, self.loop.now)
            registered = {self.engines[one].publisher for one in self.registered}
            is_alone = engine.heard_ranks.keys() <= registered
            is_sure = is_alone and not engine.announced.is_hybrid
            due = AnswerState.EXACT if is_sure else AnswerState.UNCONFIRMED
            if not (is_alone and engine.is_hybrid and said.reason == Doubt.ATTENTION_ONLY):
                assert said.state is due, f"engine {engine.number}: {said}"
            assert held_by(fold, engine) == engine.held()


@pytest.mark.parametrize("seed", range(6))
def test_who_is_registered_is_in_the_log_whatever_that_has_dropped(seed: int) -> None:
    run_seed("retention", RetentionWorld, seed)
