"""LMCache's own worker as a process, its engine a set of keys. Needs LMCache, and nothing of ours.

    python worker_process.py '{"instance_id": "a", "worker_id": 0, "pull": "127.0.0.1:8300", ...}'

Real are LMCache's worker, full sync sender, batched message sender, messages, configuration and
hashes of tokens. What is not: the engine and its cache, and torch, of which they use names only.

Takes a line of JSON for each of `_COMMANDS`, and answers each with one.
"""

import asyncio
import importlib
import json
import os
import sys
import time
import types
from typing import Any

from absent import leave_out  # type: ignore[import-not-found]  # beside this file

_ANSWERED_S = 30.0
_ABSENT = ("torch", "transformers", "lmcache.usage_telemetry")
_PACKAGES = ("lmcache.v1.storage_backend",)


def _load() -> types.SimpleNamespace:
    leave_out(_ABSENT, _PACKAGES)
    modules = {
        "LMCacheEngineConfig": "lmcache.v1.config",
        "LMCacheMetadata": "lmcache.v1.metadata",
        "LMCacheWorker": "lmcache.v1.cache_controller.worker",
        "BatchedMessageSender": "lmcache.v1.storage_backend.batched_message_sender",
        "BatchedP2PLookupMsg": "lmcache.v1.cache_controller.message",
        "OpType": "lmcache.v1.cache_controller.message",
        "ChunkedTokenDatabase": "lmcache.v1.token_database",
    }
    found = {name: getattr(_import(path), name) for name, path in modules.items()}
    return types.SimpleNamespace(**found)


def _import(path: str) -> types.ModuleType:
    """The module; since 0.5.7 those of the classic mode are apart."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise
    return importlib.import_module(path.replace("lmcache.", "lmcache.inprocess.", 1))


class _Backend:
    """What `LocalCPUBackend` is for the worker: its keys, and its name."""

    def __init__(self) -> None:
        self.held: dict[int, None] = {}

    def get_keys(self) -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(chunk_hash=key) for key in list(self.held)]

    def __str__(self) -> str:
        return "LocalCPUBackend"


class _Engine:
    """What `LMCacheEngine` is for the worker; tells how often and for how long it was frozen. What
    its controller has it do is a line of JSON in the journal, which survives the process.
    """

    def __init__(self, backend: _Backend, journal: str = "") -> None:
        self._journal = -1
        if journal:
            self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.storage_manager = types.SimpleNamespace(local_cpu_backend=backend)
        self.frozen = False
        self.freezes = 0
        self.frozen_s = 0.0
        self._since = 0.0

    def freeze(self, enabled: bool) -> None:
        now = time.monotonic()
        if enabled and not self.frozen:
            self.freezes += 1
            self._since = now
        elif self.frozen and not enabled:
            self.frozen_s = now - self._since
        self.frozen = enabled

    def _execute(self, name: str, tokens: int) -> int:
        if self._journal >= 0:
            os.write(self._journal, json.dumps([name, tokens]).encode() + b"\n")
        return tokens

    def lookup(self, tokens: list[int], search_range: list[str], lookup_id: str, pin: bool) -> int:
        assert pin, search_range
        return self._execute(lookup_id, len(tokens))

    def clear(self, locations: list[str]) -> int:
        return self._execute(locations[0], 7)  # no name of the command comes so far

    def compress(self, tokens: list[int], method: str, location: str, event_id: str) -> int:
        return self._execute(event_id, len(tokens))

    decompress = compress

    def move(
        self,
        tokens: list[int],
        old_position: str,
        new_position: tuple[str, str],
        event_id: str,
        do_copy: bool,
    ) -> int:
        return self._execute(event_id, len(tokens))

    def health(self) -> int:
        return 0


class _Process:
    def __init__(self, options: dict[str, Any]) -> None:
        self._lmcache = lmcache = _load()
        self._config = lmcache.LMCacheEngineConfig.from_defaults(
            enable_controller=True,
            chunk_size=options["chunk_size"],
            lmcache_instance_id=options["instance_id"],
            controller_pull_url=options["pull"],
            controller_reply_url=options["reply"],
            lmcache_worker_ports=[options["ports"][0]] * (options["worker_id"] + 1),
            lmcache_worker_heartbeat_delay_time=0,
            lmcache_worker_heartbeat_time=1,
            enable_p2p=True,
            p2p_host="127.0.0.1",
            p2p_init_ports=[options["ports"][1]] * (options["worker_id"] + 1),
            p2p_lookup_ports=[options["ports"][2]] * (options["worker_id"] + 1),
            extra_config={
                "full_sync_startup_delay_s": 0.1,
                "full_sync_status_poll_interval_s": 0.2,
                "full_sync_batch_size": options["batch_size"],
            },
        )
        metadata = lmcache.LMCacheMetadata(
            model_name="m",
            world_size=options["worker_id"] + 1,
            local_world_size=1,
            worker_id=options["worker_id"],
            local_worker_id=0,
            kv_dtype=None,
            kv_shape=(1, 2, 256, 1, 1),
        )
        self._metadata = metadata
        self._backend = _Backend()
        self._engine = _Engine(self._backend, options.get("journal", ""))
        self._worker = lmcache.LMCacheWorker(self._config, metadata, self._engine)
        self._sender = lmcache.BatchedMessageSender(
            metadata, self._config, str(self._backend), self._worker
        )

    def admit(self, keys: list[int]) -> object:
        """Stores chunks and tells of them, as a backend does."""
        for key in keys:
            self._backend.held[key] = None
            self._sender.add_kv_op(self._lmcache.OpType.ADMIT, key)
        return len(self._backend.held)

    def evict(self, keys: list[int]) -> object:
        """Evicts chunks and tells of them."""
        for key in keys:
            self._backend.held.pop(key, None)
            self._sender.add_kv_op(self._lmcache.OpType.EVICT, key)
        return len(self._backend.held)

    def lose(self, keys: list[int]) -> object:
        """Stores chunks; what tells of them is lost on its way."""
        self._sender.flush()
        for key in keys:
            self._backend.held[key] = None
            self._sender.sequence_number += 1
        return len(self._backend.held)

    def look_up(self, hashes: list[int]) -> object:
        """Who else has these chunks."""
        message = self._lmcache.BatchedP2PLookupMsg(
            hashes=hashes,
            instance_id=self._config.lmcache_instance_id,
            worker_id=self._metadata.worker_id,
        )
        answering = asyncio.run_coroutine_threadsafe(
            self._worker.async_put_and_wait_msg(message), self._worker.loop
        )
        return answering.result(_ANSWERED_S).layout_info

    def hash(self, tokens: list[int]) -> object:
        """The hashes of a prompt's chunks."""
        database = self._lmcache.ChunkedTokenDatabase(self._config, self._metadata)
        return [found[2] for found in database.process_tokens(tokens, make_key=False)]

    def state(self) -> object:
        """Of the engine."""
        engine = self._engine
        return {
            "frozen": engine.frozen,
            "freezes": engine.freezes,
            "frozen_s": engine.frozen_s,
            "heartbeat_url": self._worker.controller_heartbeat_url,
            "keys": len(self._backend.held),
        }

    def leave(self) -> object:
        """Says that it ends."""
        self._worker.deregister()
        return True


_COMMANDS = ("admit", "evict", "lose", "look_up", "hash", "state", "leave")


def main() -> None:
    """Runs until there are no more lines."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed
    process = _Process(json.loads(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        name = asked.pop("do")
        assert name in _COMMANDS, name
        print(json.dumps(getattr(process, name)(**asked)), file=answers, flush=True)


if __name__ == "__main__":
    main()
