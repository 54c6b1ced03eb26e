"""Events of the nodes on their way into the index: records, late or lost, and the fold of them.

Each node is a publisher. What one request changes there is one batch with the next sequence
number, and one record, encoded as the bridge encodes it. A record is folded once its delay is over.
A batch that is lost becomes a `gap` record in its place, as the bridge writes one: the index knows
that something is missing, and keeps what it has.
"""

import random
from heapq import heappop, heappush
from typing import Final

import msgspec

from lab.whatif.node import KERNEL_BLOCK_SIZE, Node, Pool
from schemas.events import BlockEvent, encode_events
from schemas.identities import DEFAULT_TENANT, Offset, PrefixScope, StreamKey
from schemas.records import EventsRecord, GapRecord, Record, RegisteredRecord, encode_record
from schemas.registration import VLLM, Registration
from streams.kernel import open_kernel
from streams.kernel.interface import InstanceMatch
from streams.table.fold import Fold

WHATIF_CHANGES_MAX: Final = 65_536  # of the index that wait to be dropped: nobody writes them

_MODEL: Final = "trace"
_INCARNATION: Final = 1


class Feed:
    """One index and the way to it.

    Attributes:
        lost: batches that never came.
    """

    def __init__(
        self, *, seed: int, delay_s: float, loss: float, kernel: str | None = None
    ) -> None:
        self.lost = 0
        self._kernel = open_kernel(seed, name=kernel)
        self._fold = Fold(self._kernel)
        self._delay_s = delay_s
        self._loss = loss
        self._random = random.Random(seed)
        self._offset = 0
        self._records = 0
        self._waiting: list[tuple[float, int, bytes]] = []
        self._scope = PrefixScope(DEFAULT_TENANT, _MODEL, "", KERNEL_BLOCK_SIZE, "")

    def register(self, node: Node) -> None:
        """Makes the node part of every answer, from now on."""
        registration = Registration(
            endpoint=f"tcp://{node.name}:5557",
            kind=VLLM,
            model_name=_MODEL,
            instance_id=node.name,
            block_size=KERNEL_BLOCK_SIZE,
        )
        self._append(
            RegisteredRecord(
                stream=registration.stream, dp_rank=0, bridge_time=0.0, registration=registration
            )
        )

    def publish(self, publisher: Node | Pool, events: list[BlockEvent], at: float) -> None:
        """Sends one batch, which the index has after the delay. A publisher's batches come in
        their order: one that a pool tells of a request that ends sooner waits for those before it.
        """
        at = publisher.told_at = max(publisher.told_at, at)
        sequence = publisher.sequence
        publisher.sequence += 1
        stream = StreamKey(DEFAULT_TENANT, _MODEL, KERNEL_BLOCK_SIZE, "", publisher.name)
        record: Record
        if self._loss and self._random.random() < self._loss:
            self.lost += 1
            record = GapRecord(
                stream=stream,
                dp_rank=0,
                bridge_time=at,
                incarnation=_INCARNATION,
                first_sequence=sequence,
                last_sequence=sequence,
                reason="simulated",
            )
        else:
            record = EventsRecord(
                stream=stream,
                dp_rank=0,
                bridge_time=at,
                incarnation=_INCARNATION,
                first_sequence=sequence,
                last_sequence=sequence,
                engine_time=at,
                events=msgspec.Raw(encode_events(events)),
            )
        heappush(self._waiting, (at + self._delay_s, self._records, encode_record(record)))
        self._records += 1

    def advance(self, now: float) -> None:
        """Folds all that has come by now."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            self._fold_next(heappop(waiting)[2])

    def ask(self, tokens: bytes) -> list[InstanceMatch]:
        """What each node holds of a prompt, sorted by its name; in blocks.

        The kernel hashes the prompt itself, as it does for `/query`.
        """
        return self._kernel.query(self._scope, tokens, (), None)

    def counters(self) -> dict[str, int]:
        """What the fold and the kernel have counted, but for zeros."""
        counted = {**self._fold.counters, **self._kernel.counters()}
        return {name: count for name, count in sorted(counted.items()) if count}

    def _append(self, record: Record) -> None:
        self._fold_next(encode_record(record))

    def _fold_next(self, encoded: bytes) -> None:
        skipped = self._fold.apply(Offset(self._offset), encoded)
        if skipped is not None:
            raise AssertionError(f"The fold skipped a record of the simulation: {skipped}")
        self._offset += 1
        if self._kernel.pending_changes() > WHATIF_CHANGES_MAX:
            self._kernel.take_changes()
