"""Commands to LMCache's workers, the same in both forms of the service, as processes.

Workers by their script: `tests/integration/test_lmcache_commands.py` does it with LMCache's own.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.contract.test_lmcache_contract import Served, name, served
from tests.lmcache import CPU, ScriptedWorker
from tests.lmcache_commands import CommandSocket, plain_answer

__all__ = ["name", "served"]

pytestmark = pytest.mark.timeout(180)

END_S = 6.0
"""Within this time every command has ended, by the clock of whoever has ended it: what its client
waits more is the machine's, which the tests share.
"""


class Commanded:
    """A worker that takes commands, in a running service."""

    def __init__(self, served: Served, instance_id: str, rank: int = 0) -> None:
        self.socket = CommandSocket()
        self.script = ScriptedWorker(
            served.ports,
            instance_id,
            rank,
            peer=f"10.0.0.{rank}:8200",
            command_port=self.socket.port,
        )
        self.script.register()

    def close(self) -> None:
        self.script.deregister()
        time.sleep(0.1)  # for ZeroMQ to send it
        self.script.close()
        self.socket.close()


def registered(served: Served, instance_id: str) -> int:
    """The instance's workers in the table that commands are made from."""
    services = served.deployment.api.get("/services")[1]["services"]
    return sum(one["InstanceID"] == instance_id for one in services)


@contextmanager
def workers_of(served: Served, instance_id: str, count: int = 1) -> Iterator[list[Commanded]]:
    found = [Commanded(served, instance_id, rank) for rank in range(count)]
    try:
        served.until(lambda: registered(served, instance_id) == count, "workers")
        yield found
    finally:
        for one in found:
            one.close()


def post(served: Served, path: str, body: object) -> tuple[int, dict[str, Any], str]:
    """Status, document, and where the command is said to be."""
    status, document, headers = served.deployment.api.exchange(path, body)
    return status, document, headers.get("location", "")


def state_of(served: Served, command_id: str, *, is_in_time: bool = True) -> dict[str, Any]:
    status, found = served.deployment.api.get(f"/commands/{command_id}")
    assert status == 200, found
    document: dict[str, Any] = found
    took = document["closed_at"] - document["issued_at"]
    assert not is_in_time or document["state"] == "pending" or took < END_S
    return document


def await_end(served: Served, command_id: str, *, is_in_time: bool = True) -> dict[str, Any]:
    def state() -> dict[str, Any]:
        return state_of(served, command_id, is_in_time=is_in_time)

    served.until(lambda: state()["state"] != "pending", "its end")
    return state()


@pytest.mark.both_forms
def test_workers_execute_what_lmcaches_routes_say(served: Served, name: str) -> None:
    with workers_of(served, name, 2) as workers, workers_of(served, f"{name}-b", 2):
        at = {"instance_id": name, "location": CPU}
        tokens = {"tokens": [1, 2, 3]}
        move = {"old_position": [name, CPU], "new_position": [f"{name}-b", CPU]} | tokens
        bodies: dict[str, tuple[dict[str, Any], int]] = {
            "clear": (at, 7),
            "pin": (at | tokens, 3),
            "move": (move, 3),
            "compress": (at | tokens | {"method": "cachegen"}, 3),
            "decompress": (at | tokens | {"method": "cachegen"}, 3),
        }
        for action, (body, count) in bodies.items():
            status, document, _ = post(served, f"/{action}", body)
            assert (status, document.get("num_tokens")) == (200, count), document
            assert document["event_id"].startswith(action.capitalize())
            finish = post(served, "/check_finish", {"event_id": document["event_id"]})
            assert finish[:2] == (200, {"status": "done"})
        status, document, _ = post(served, "/health", {"instance_id": name})
        assert (status, document["error_codes"]) == (200, {"0": 0, "1": 0})
        for rank, worker in enumerate(workers):
            kinds = [one["type"] for one in worker.socket.requests]
            assert kinds == [f"{one.capitalize()}WorkerMsg" for one in (*bodies, "health")]
            moved = worker.socket.requests[2]
            assert moved["new_position"] == [f"10.0.0.{rank}:8200", CPU]


def test_a_record_goes_on_without_its_client(served: Served, name: str) -> None:
    with workers_of(served, name, 2) as workers:
        body = {"action": "pin", "instance_id": name, "location": CPU, "tokens": [1]}
        status, document, location = post(served, "/commands", body | {"workers": [1]})
        assert (status, document["state"]) == (202, "pending")
        assert location == f"/commands/{document['command_id']}"
        found = await_end(served, document["command_id"])
        assert (found["state"], [one["worker_id"] for one in found["workers"]]) == ("done", [1])
        assert [len(one.socket.requests) for one in workers] == [0, 1]


def test_a_worker_that_is_silent_is_named_and_the_next_command_is_executed(
    served: Served, name: str
) -> None:
    with workers_of(served, name, 2) as workers:
        workers[1].socket.answer = lambda request: None
        status, document, location = post(served, "/clear", {"instance_id": name, "location": CPU})
        assert (status, document["reason"]) == (504, "timeout"), document
        assert "worker 1: timeout" in document["error"]
        assert "worker 0" not in document["error"]
        found = state_of(served, location.rpartition("/")[2])
        assert found["state"] == "partial"
        assert [one["outcome"] for one in found["workers"]] == ["ok", "timeout"]
        workers[1].socket.answer = plain_answer
        assert post(served, "/clear", {"instance_id": name, "location": CPU})[0] == 200


def test_an_error_of_a_worker_is_told(served: Served, name: str) -> None:
    with workers_of(served, name) as workers:
        workers[0].socket.answer = lambda request: {"type": "ErrorMsg", "error": "no such place"}
        status, document, _ = post(served, "/clear", {"instance_id": name, "location": "Nowhere"})
        assert (status, document["reason"]) == (409, "refused")
        assert "worker 0: refused: no such place" in document["error"]


def test_a_worker_that_is_gone_ends_a_command_in_time(served: Served, name: str) -> None:
    with workers_of(served, name) as workers:
        workers[0].script.close()
        workers[0].socket.close()
        status, document, location = post(served, "/clear", {"instance_id": name, "location": CPU})
        assert (status, document["reason"]) in ((409, "refused"), (504, "timeout"))
        assert state_of(served, location.rpartition("/")[2])["state"] == "failed"
        workers[0] = Commanded(served, name)  # to be closed again


@pytest.mark.both_forms
def test_what_became_of_commands_is_known_after_kill_9_of_all(served: Served, name: str) -> None:
    with workers_of(served, name) as workers:
        status, document, _ = post(served, "/clear", {"instance_id": name, "location": CPU})
        assert status == 200
        workers[0].socket.answer = lambda request: None
        body = {"action": "clear", "instance_id": name, "location": CPU}
        _, pending, _ = post(served, "/commands", body)
        served.deployment.restart()
        found = await_end(served, document["event_id"])
        assert (found["state"], found["workers"][0]["num_tokens"]) == ("done", 7)
        found = await_end(served, pending["command_id"], is_in_time=False)  # nobody was there
        assert found["state"] == "failed"
        assert len(workers[0].socket.requests) <= 2, "nothing is executed twice"


@pytest.mark.both_forms
def test_a_command_that_no_bridge_executes_is_ended(served: Served, name: str) -> None:
    if served.bridge is None:
        pytest.skip("the embedded form has no bridge that could be away")
    with workers_of(served, name):
        served.bridge.kill()
        try:
            status, document, location = post(
                served, "/clear", {"instance_id": name, "location": CPU}
            )
        finally:
            served.bridge.start()
        assert (status, document["reason"]) == (504, "timeout")
        assert "no bridge has executed it" in document["error"]
        assert state_of(served, location.rpartition("/")[2])["state"] == "failed"


def test_many_at_once_each_end_once(served: Served, name: str) -> None:
    with workers_of(served, name, 2) as workers:
        body = {"instance_id": name, "location": CPU, "tokens": [1, 2]}
        answers: list[tuple[int, dict[str, Any], str]] = []

        def ask() -> None:
            answers.extend(post(served, "/pin", body) for _ in range(4))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [status for status, _, _ in answers] == [200] * 16
        names = {document["event_id"] for _, document, _ in answers}
        for rank, worker in enumerate(workers):
            executed = {one["worker_event_id"] for one in worker.socket.requests}
            assert executed == {f"Worker{rank}{one}" for one in names}
            assert len(worker.socket.requests) == 16
