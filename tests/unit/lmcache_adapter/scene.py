"""A controller without sockets: messages in, answers and records out."""

from collections.abc import Sequence
from typing import Any

import msgpack

from lmcache_adapter.controller.controller import Controller
from lmcache_adapter.controller.member import RememberedWorker
from lmcache_adapter.journal import WorkerReport
from lmcache_adapter.settings import Models
from lmcache_adapter.wire.messages import Reply, Request, decode, encode
from schemas.answer_states import Doubt
from schemas.codec import decode_record_events
from schemas.events import RemovedBlocks, StoredBlocks
from schemas.identities import PublisherKey
from schemas.records import EventsRecord, GapRecord, Record, ResetRecord
from tests.lmcache import CPU

PULL, REPLY, BEAT = 1, 2, 3
"""Links of the first worker; those of the next one are 10 higher."""


class Index:
    """What a fold would make of the records: blocks by publisher, each counted."""

    def __init__(self) -> None:
        self.held: dict[PublisherKey, dict[tuple[str, int], int]] = {}
        self.registered: dict[PublisherKey, Record] = {}
        self.degraded: dict[PublisherKey, str | None] = {}
        self.cursors: dict[PublisherKey, tuple[int, int]] = {}
        self.reasons: list[str] = []

    def apply(self, record: Record) -> None:
        publisher = record.publisher
        held = self.held.setdefault(publisher, {})
        match record:
            case ResetRecord():
                self._follow(publisher, record.incarnation, -1, -1)
                held.clear()
                self.degraded[publisher] = None
                self.reasons.append(record.reason)
            case GapRecord():
                self._follow(
                    publisher, record.incarnation, record.first_sequence, record.last_sequence
                )
                self.degraded[publisher] = record.reason
                self.reasons.append(f"gap {record.reason}")
            case EventsRecord():
                self._follow(
                    publisher, record.incarnation, record.first_sequence, record.last_sequence
                )
                for event in decode_record_events(record):
                    assert isinstance(event, StoredBlocks | RemovedBlocks)
                    change = 1 if isinstance(event, StoredBlocks) else -1
                    for i in range(0, len(event.hashes), 8):
                        key = (
                            event.medium.value,
                            int.from_bytes(event.hashes[i : i + 8], "little"),
                        )
                        held[key] = held.get(key, 0) + change
                        assert held[key] in (0, 1), "a chunk is held once, or not"
            case _:
                if type(record).__name__ == "RegisteredRecord":
                    self.registered[publisher] = record
                else:
                    self.registered.pop(publisher, None)
                    held.clear()
                    self.cursors.pop(publisher, None)

    def _follow(self, publisher: PublisherKey, incarnation: int, first: int, last: int) -> None:
        before = self.cursors.get(publisher, (0, -1))
        if incarnation == before[0]:
            assert first == before[1] + 1, "no batch is missing or comes twice"
        else:
            assert incarnation > before[0]
            assert first == -1, "a new incarnation begins with its reset"
        self.cursors[publisher] = (incarnation, last)

    def keys(self, publisher: PublisherKey) -> set[tuple[str, int]]:
        return {key for key, count in self.held.get(publisher, {}).items() if count}


class Scene:
    """One controller, its clock and what it has told."""

    def __init__(
        self,
        known: Sequence[RememberedWorker] = (),
        models: Models | None = None,
        index: Index | None = None,
    ) -> None:
        self.now = 1000.0
        self.index = index or Index()
        self.doubts: dict[PublisherKey, Doubt | None] = {}
        self.told: list[WorkerReport] = []
        self.controller = Controller(
            models or Models(),
            next_incarnation=lambda publisher: self.index.cursors.get(publisher, (0,))[0] + 1,
            clock=lambda: self.wall,
            known=known,
        )

    @property
    def wall(self) -> float:
        return 1_795_000_000.0 + self.now

    def ask(self, message: dict[str, Any], link: int = REPLY) -> dict[str, Any]:
        request = decode(msgpack.packb(message))
        assert isinstance(request, Request)
        reply: Reply = self.controller.answer(request, link, "h:8401", self.now, self.wall)
        answer: dict[str, Any] = msgpack.unpackb(encode(reply))
        self.settle()
        return answer

    def push(self, *messages: dict[str, Any], link: int = PULL) -> None:
        for message in messages:
            self.controller.take(decode(msgpack.packb(message)), link, self.now)
        self.settle()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.controller.look(self.now)
        self.settle()

    def settle(self) -> None:
        for told in self.controller.tell(self.now):
            self.told.append(told)
            for record in told.records:
                self.index.apply(record)
            self.doubts[told.publisher] = told.doubt


class Cache:
    """A worker's cache and its messages; what it holds is the truth.

    Attributes:
        held: keys by location.
        has_tags: whether it may hold several of one name; how many more than one, in `more`.
    """

    def __init__(self, scene: Scene, instance_id: str = "a", worker_id: int = 0) -> None:
        self.scene = scene
        self.instance_id, self.worker_id = instance_id, worker_id
        self.held: dict[str, set[int]] = {CPU: set()}
        self.has_tags = False
        self.more: dict[str, dict[int, int]] = {}
        self.numbers: dict[str, int] = {}
        self.peer: str | None = f"{instance_id}:8200"
        self.links = 0
        self.is_registered = False

    @property
    def publisher(self) -> PublisherKey:
        models = Models()
        return PublisherKey(models.of(self.instance_id).stream(self.instance_id), self.worker_id)

    def message(self, kind: str, **fields: object) -> dict[str, Any]:
        named: dict[str, Any] = {"type": f"{kind}Msg", "instance_id": self.instance_id}
        return named | {"worker_id": self.worker_id} | fields

    def _address(self) -> dict[str, object]:
        return {"ip": "10.0.0.1", "port": 9000, "peer_init_url": self.peer}

    def register(self) -> dict[str, Any]:
        """As a new process: it holds nothing, and its links are other ones."""
        self.held, self.numbers, self.more = {CPU: set()}, {}, {}
        self.links += 100 if self.is_registered else 0
        self.is_registered = True
        return self.scene.ask(self.message("Register", **self._address()), REPLY + self.links)

    def beat(self) -> list[str]:
        """A heartbeat; the reasons of the full syncs that are asked for."""
        message = self.message("Heartbeat", **self._address())
        answer = self.scene.ask(message, BEAT + self.links)
        return [command["reason"] for command in answer["commands"]]

    def operations(self, *changes: tuple[str, int], location: str = CPU) -> dict[str, Any]:
        """The message of what happens; it happens, sent or not."""
        held = self.held.setdefault(location, set())
        more = self.more.setdefault(location, {})
        first = self.numbers.get(location, 0)
        done = []
        for kind, key in changes:
            if kind == "admit" and key in held:
                if not self.has_tags:
                    continue  # it announces what it has not
                more[key] = more.get(key, 0) + 1
            elif kind == "admit":
                held.add(key)
            elif more.get(key):
                more[key] -= 1
            else:
                held.discard(key)
            done.append((kind, key))
        self.numbers[location] = first + len(done)
        listed = [
            {"op_type": kind, "key": key, "seq_num": first + i}
            for i, (kind, key) in enumerate(done)
        ]
        return self.message("BatchedKVOperation", location=location, operations=listed)

    def admit(self, *keys: int, location: str = CPU) -> None:
        message = self.operations(*(("admit", key) for key in keys), location=location)
        self.scene.push(message, link=PULL + self.links)

    def evict(self, *keys: int, location: str = CPU) -> None:
        message = self.operations(*(("evict", key) for key in keys), location=location)
        self.scene.push(message, link=PULL + self.links)

    def start_sync(self, sync_id: str = "s", batch_keys: int = 2) -> list[dict[str, Any]]:
        """Begins a full sync; returns its batches."""
        keys = self.on_cpu
        batches = [keys[i : i + batch_keys] for i in range(0, len(keys), batch_keys)] or [[]]
        answer = self.scene.ask(
            self.message(
                "FullSyncStart",
                location=CPU,
                sync_id=sync_id,
                total_keys=len(keys),
                batch_count=len(batches),
            ),
            REPLY + self.links,
        )
        assert answer["accepted"], answer
        return [
            self.message(
                "FullSyncBatch", location=CPU, sync_id=sync_id, batch_id=number, keys=batch
            )
            for number, batch in enumerate(batches)
        ]

    def end_sync(self, sync_id: str = "s", total: int | None = None) -> None:
        total = len(self.on_cpu) if total is None else total
        self.scene.push(
            self.message("FullSyncEnd", location=CPU, sync_id=sync_id, actual_total_keys=total),
            link=PULL + self.links,
        )

    def sync(self, sync_id: str = "s") -> None:
        """A whole full sync."""
        for batch in self.start_sync(sync_id):
            self.scene.push(batch, link=PULL + self.links)
        self.end_sync(sync_id)

    def status(self, sync_id: str = "s") -> dict[str, Any]:
        message = self.message("FullSyncStatus", sync_id=sync_id)
        return self.scene.ask(message, REPLY + self.links)

    @property
    def on_cpu(self) -> list[int]:
        """What a full sync has."""
        more = self.more.get(CPU, {})
        return [key for key in sorted(self.held[CPU]) for _ in range(1 + more.get(key, 0))]

    @property
    def indexed(self) -> set[tuple[str, int]]:
        return self.scene.index.keys(self.publisher)

    @property
    def truth(self) -> set[tuple[str, int]]:
        tiers = {CPU: "CPU"}
        return {
            (tiers.get(location, "DISK"), key % 2**64)
            for location, keys in self.held.items()
            for key in keys
        }

    @property
    def doubt(self) -> Doubt | None:
        return self.scene.doubts[self.publisher]

    @property
    def degraded(self) -> str | None:
        return self.scene.index.degraded.get(self.publisher)
