"""A worker of LMCache by its script, as a process: it registers, sends heartbeats, and executes
commands. Plain pyzmq and msgpack.

    python -m tests.lmcache_worker_process '{"instance_id": "a", "worker_id": 0, "ports": [...],
        "command_port": 9000, "journal": "PATH"}'

What it executes is a line of JSON in the journal, which survives the process: name and tokens.
"""

import json
import os
import sys
import threading
import time
from typing import Any, Final

import msgpack
import zmq

from tests.lmcache import ScriptedWorker
from tests.lmcache_commands import plain_answer

BEAT_S: Final = 0.5


def main() -> None:
    """Runs until it is killed."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    replying = context.socket(zmq.REP)
    replying.bind(f"tcp://127.0.0.1:{options['command_port']}")
    worker = ScriptedWorker(
        options["ports"],
        options["instance_id"],
        options["worker_id"],
        peer="127.0.0.1:8200",
        command_port=options["command_port"],
    )
    threading.Thread(target=stay, args=(worker,), daemon=True).start()
    journal = os.open(options["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while True:
        request = msgpack.unpackb(replying.recv())
        answer = plain_answer(request)
        if "num_tokens" in answer:
            is_clear = request["type"] == "ClearWorkerMsg"
            name = request["location"] if is_clear else request["worker_event_id"]
            os.write(journal, json.dumps([name, answer["num_tokens"]]).encode() + b"\n")
        replying.send(msgpack.packb(answer))


def stay(worker: ScriptedWorker) -> None:
    """Registers, and says again and again that it is there."""
    while True:
        try:
            worker.register()
            while True:
                worker.heartbeat()
                time.sleep(BEAT_S)
        except zmq.Again:  # the controller is away
            worker.close()
            worker.reconnect()


if __name__ == "__main__":
    main()
