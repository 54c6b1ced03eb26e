"""A stand-in for Reprise: the routes that a router calls, over a naive follower of the engines."""

import threading
from collections.abc import Mapping

import msgspec
import zmq

from lab.engines.control import EngineServer, RequestError
from lab.engines.publisher import END_SEQUENCE
from lab.engines.wire import AllBlocksCleared, BlockStored, EngineEvent
from tests.unit.lab.event_batch import EventBatch

RankKey = tuple[str, int]


def rank_key(wanted: Mapping[str, object]) -> RankKey:
    return str(wanted["instance_id"]), msgspec.convert(wanted["dp_rank"], int)


class NaiveFollower:
    """What one publisher holds, by prefix tokens: the slow obvious reading of its events."""

    def __init__(self) -> None:
        self.prefixes: dict[int | bytes, tuple[int, ...]] = {}
        self.held: set[tuple[int | bytes, str | None]] = set()

    def apply(self, event: EngineEvent) -> None:
        if isinstance(event, AllBlocksCleared):
            self.held.clear()
        elif isinstance(event, BlockStored):
            parent = event.parent_block_hash
            prefix = () if parent is None else self.prefixes[parent]
            for number, block in enumerate(event.block_hashes):
                if event.block_size:
                    start = number * event.block_size
                    prefix += tuple(event.token_ids[start : start + event.block_size])
                    self.prefixes[block] = prefix
                self.held.add((block, event.medium))
        else:
            for block in event.block_hashes:
                assert (block, event.medium) in self.held, "removed what was not stored"
                self.held.remove((block, event.medium))

    def longest(self, tokens: tuple[int, ...], block_size: int, medium: str | None = None) -> int:
        held = {
            self.prefixes[block] for block, where in self.held if medium is None or where == medium
        }
        length = 0
        while length + block_size <= len(tokens) and tokens[: length + block_size] in held:
            length += block_size
        return length


class StubService:
    """Serves the routes on loopback. Until `recovered` is set it is alive and not ready."""

    def __init__(self) -> None:
        self.registered: dict[RankKey, Mapping[str, object]] = {}
        self.unregistered: list[RankKey] = []
        self.sequences: dict[RankKey, list[int]] = {}
        self.failing = False
        self.promised_ttft_ms = 5.0
        self.reports: list[dict[str, object]] = []
        self.decided = 0
        self.recovered = True
        self._followers: dict[RankKey, NaiveFollower] = {}
        self._lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._server = EngineServer(
            "127.0.0.1",
            0,
            routes={
                ("GET", "/ready"): self._ready,
                ("GET", "/services"): self._services,
                ("POST", "/register"): self._register,
                ("POST", "/unregister"): self._unregister,
                ("POST", "/query"): self._query,
                ("POST", "/route"): self._route,
                ("POST", "/feedback"): self._feedback,
                ("GET", "/global_view"): self._global_view,
            },
        )
        self.url = f"http://127.0.0.1:{self._server.port}"

    def close(self) -> None:
        self._server.close()
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._context.term()

    def _ready(self, _: bytes) -> object:
        if not self.recovered:
            raise RequestError("recovering")
        return {"ready": True}

    def _services(self, _: bytes) -> object:
        with self._lock:
            services = [
                {
                    "TenantID": wanted["tenant_id"],
                    "InstanceID": instance_id,
                    "ModelName": wanted["modelname"],
                    "BlockSize": wanted["block_size"],
                    "DPRank": dp_rank,
                    "Endpoint": wanted["endpoint"],
                    "Sequence": self.sequences.get((instance_id, dp_rank), [-1])[-1],
                }
                for (instance_id, dp_rank), wanted in self.registered.items()
            ]
        return {"count": len(services), "services": services}

    def _register(self, body: bytes) -> object:
        wanted = msgspec.json.decode(body, type=dict[str, object])
        key = rank_key(wanted)
        with self._lock:
            if key in self.registered and self.registered[key] != wanted:
                raise RequestError(f"conflicting registration for service key: {key}")
            known = key in self.registered
            self.registered[key] = wanted
            self._followers.setdefault(key, NaiveFollower())
        if not known:
            ready = threading.Event()
            thread = threading.Thread(target=self._follow, args=(key, wanted, ready))
            self._threads.append(thread)
            thread.start()
            ready.wait()
        return {"status": "registered successfully", "instance_id": key[0]}

    def _unregister(self, body: bytes) -> object:
        wanted = msgspec.json.decode(body, type=dict[str, object])
        key = rank_key(wanted)
        with self._lock:
            self.unregistered.append(key)
            if self.registered.pop(key, None) is None:
                raise RequestError(f"service not found: {key}")
            self._followers.pop(key, None)
        return {"status": "unregistered successfully"}

    def _query(self, body: bytes) -> object:
        if self.failing:
            raise RequestError("failing")
        wanted = msgspec.json.decode(body, type=dict[str, object])
        tokens = tuple(msgspec.convert(wanted["token_ids"], list[int]))
        size = msgspec.convert(wanted["block_size"], int)
        instances: dict[str, dict[str, object]] = {}
        with self._lock:
            ranks = {key: f.longest(tokens, size) for key, f in self._followers.items()}
        for (instance_id, dp_rank), length in ranks.items():
            entry = instances.setdefault(instance_id, {"longest_matched": 0, "GPU": 0, "DP": {}})
            entry["longest_matched"] = max(length, msgspec.convert(entry["longest_matched"], int))
            entry["DP"] = {**msgspec.convert(entry["DP"], dict[str, int]), str(dp_rank): length}
        return {"default": instances}

    def _route(self, body: bytes) -> object:
        """To the candidate that holds most; of equals the first."""
        if self.failing:
            raise RequestError("failing")
        wanted = msgspec.json.decode(body, type=dict[str, object])
        tokens = tuple(msgspec.convert(wanted["token_ids"], list[int]))
        size = msgspec.convert(wanted["block_size"], int)
        candidates = msgspec.convert(wanted["candidates"], list[dict[str, object]])
        with self._lock:
            held = {key: f.longest(tokens, size) for key, f in self._followers.items()}
            self.decided += 1
        best = max(candidates, key=lambda one: held.get(rank_key(one), 0))
        return {
            "decision_id": f"{self.url}-{self.decided}",
            "prefill": {
                "instance_id": best["instance_id"],
                "dp_rank": best["dp_rank"],
                "cached_tokens": held.get(rank_key(best), 0),
                "ttft_ms": {"expected": self.promised_ttft_ms},
            },
        }

    def _feedback(self, body: bytes) -> object:
        if self.failing:
            raise RequestError("failing")
        reports = msgspec.json.decode(body, type=list[dict[str, object]])
        with self._lock:
            self.reports += reports
        return {"accepted": len(reports), "repeated": 0, "unknown": 0}

    def _global_view(self, _: bytes) -> object:
        with self._lock:
            counts = [len({b for b, _ in f.held}) for f in self._followers.values()]
        return {"context_count": 1, "contexts": [{"model_name": "m", "prefix_count": sum(counts)}]}

    def _follow(self, key: RankKey, wanted: Mapping[str, object], ready: threading.Event) -> None:
        with self._context.socket(zmq.SUB) as socket:
            socket.set(zmq.LINGER, 0)
            socket.subscribe(b"")
            socket.connect(str(wanted["endpoint"]))
            ready.set()
            expected: int | None = None
            while not self._stop.is_set() and key in self.registered:
                if not socket.poll(50):
                    continue
                _, sequence, payload = socket.recv_multipart()
                batches = [(int.from_bytes(sequence, "big"), payload)]
                if expected is None:  # a subscription takes a moment
                    batches = self._missed(str(wanted["replay_endpoint"]), batches[0][0]) + batches
                    if self._stop.is_set():
                        return  # of what was missed a part may not have come
                elif batches[0][0] != expected:
                    return  # it was killed, and another engine has its port
                expected = batches[-1][0] + 1
                with self._lock:
                    for one in batches:
                        self._apply(key, *one)

    def _missed(self, replay_endpoint: str, end: int) -> list[tuple[int, bytes]]:
        """The batches before sequence `end`, as the engine replays them."""
        missed: list[tuple[int, bytes]] = []
        if not replay_endpoint:
            return missed
        with self._context.socket(zmq.DEALER) as socket:
            socket.set(zmq.LINGER, 0)
            socket.connect(replay_endpoint)
            socket.send_multipart([b"", bytes(8)])
            while not self._stop.is_set():  # an engine that was killed answers no more
                if not socket.poll(50):
                    continue
                *_, sequence, payload = socket.recv_multipart()
                if sequence == END_SEQUENCE or int.from_bytes(sequence, "big") >= end:
                    return missed
                missed.append((int.from_bytes(sequence, "big"), payload))
        return missed

    def _apply(self, key: RankKey, sequence: int, payload: bytes) -> None:
        self.sequences.setdefault(key, []).append(sequence)
        if key in self._followers:
            for event in msgspec.msgpack.decode(payload, type=EventBatch).events:
                self._followers[key].apply(event)
