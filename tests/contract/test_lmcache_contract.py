"""LMCache's workers by their script, against both forms of the service as processes.

`tests/integration/test_lmcache_worker.py` does the same with LMCache's own code.
"""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from brokers.broker_settings import KafkaSettings
from devtools.broker import free_ports
from tests.kafka_fixtures import own_topics, settings_for
from tests.lmcache import CPU, DISK, ScriptedWorker
from tests.lmcache_service import CHUNK, LmcacheService

pytestmark = pytest.mark.timeout(180)

MODELS = {"default": {"modelname": "m", "block_size": CHUNK, "hash_algorithm": "builtin"}}


class Served(LmcacheService):
    """A form of the service whose bridge is LMCache's controller, too."""

    def __init__(self, directory: Path, kafka: KafkaSettings | None) -> None:
        self.ports = free_ports(3)
        models = directory / "models.json"
        models.write_text(json.dumps(MODELS))
        listed = ",".join(map(str, self.ports))
        options = ("--lmcache", f"127.0.0.1:{listed}", "--set", f"lmcache.models={models}")
        super().__init__(directory, kafka, *options)

    def workers(self, instance_id: str) -> list[dict[str, Any]]:
        status, answer = self.deployment.api.get(f"/controller/workers?instance_id={instance_id}")
        if status == 404:
            return []
        assert status == 200, answer
        assert answer["total_count"] == len(answer["workers"])
        found: list[dict[str, Any]] = answer["workers"]
        return found


@pytest.fixture(scope="module")
def served(
    form: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp(f"lmcache-{form}")
    if form == "embedded":
        with closing(Served(directory, None)) as served:
            yield served
        return
    kafka = request.getfixturevalue("kafka")
    with (
        own_topics(kafka) as prefix,
        closing(Served(directory, settings_for(kafka, prefix))) as served,
    ):
        yield served


@pytest.fixture
def name() -> str:
    return f"lmc-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def worker(served: Served, name: str) -> Iterator[ScriptedWorker]:
    with ScriptedWorker(served.ports, name, peer="127.0.0.1:8200") as worker:
        worker.register()
        yield worker
        worker.deregister()
        time.sleep(0.1)  # for ZeroMQ to send it


def test_what_a_worker_stores_and_evicts_is_answered(
    served: Served, worker: ScriptedWorker, name: str
) -> None:
    assert worker.heartbeat() == []
    keys = [10, -20 % 2**64, 30, 40]
    worker.admit([10, -20, 30])
    worker.admit([10, -20, 30, 40], DISK)
    served.await_match(keys, name, 4, 3, 4, "exact")
    worker.evict([-20])
    served.await_match(keys, name, 4, 1, 4, "exact")
    worker.push(  # two messages in one
        worker.operations("evict", [30, 40], DISK), worker.operations("evict", [10], DISK)
    )
    served.await_match(keys, name, 3, 1, 0, "exact")


@pytest.mark.both_forms
def test_a_worker_is_listed_as_it_registered(
    served: Served, worker: ScriptedWorker, name: str
) -> None:
    worker.admit([1, 2])
    worker.admit([3], DISK)
    served.await_match([1, 2], name, 2, 2, 0, "exact")
    status, answer = served.deployment.api.get("/services")
    assert status == 200
    [service] = [one for one in answer["services"] if one["InstanceID"] == name]
    assert (service["Type"], service["Endpoint"]) == ("LMCache", "tcp://127.0.0.1:9000")
    assert (service["ModelName"], service["BlockSize"], service["DPRank"]) == ("m", CHUNK, 0)
    [listed] = served.workers(name)
    assert (listed["ip"], listed["port"], listed["worker_id"]) == ("127.0.0.1", 9000, 0)
    assert (listed["peer_init_url"], listed["key_count"]) == ("127.0.0.1:8200", 3)
    assert listed["registration_time"] > 1_600_000_000
    status, stats = served.deployment.api.get("/controller/key-stats")
    assert status == 200
    [mine] = [one for one in stats["instances"] if one["instance_id"] == name]
    assert (mine["key_count"], mine["worker_count"]) == (3, 1)
    assert stats["total_key_count"] >= 3


@pytest.mark.both_forms
def test_a_loss_is_told_and_repaired_by_a_full_sync(
    served: Served, worker: ScriptedWorker, name: str
) -> None:
    worker.admit([1, 2, 3])
    served.await_match([1, 2, 3], name, 3, 3, 0, "exact")
    worker.operations("evict", [2])  # lost
    worker.admit([4])
    served.await_match([1, 2, 3, 4], name, 4, 4, 0, "degraded")
    [command] = worker.heartbeat()
    assert command == {
        "command_type": "full_sync",
        "reason": "operations_missed",
        "args": None,
    }
    keys = [1, 3, 4, *range(100, 1100)]
    worker.sync("s", keys)
    answered: list[dict[str, Any]] = []

    def is_released() -> bool:
        answered.append(worker.sync_status("s"))
        return bool(answered[-1]["can_exit_freeze"])

    served.until(is_released, "the end of the freeze")
    assert answered[-1]["is_complete"]
    assert answered[-1]["missing_batches"] == []
    served.await_match(keys, name, len(keys), len(keys), 0, "exact")
    assert served.match([1, 2, 3], name)[0] == 1
    assert worker.heartbeat() == []


def test_missing_batches_are_named_and_the_cache_is_released_with_the_last_one(
    served: Served, worker: ScriptedWorker, name: str
) -> None:
    worker.operations("admit", [0])  # lost
    worker.admit([1])
    served.await_match([1], name, 1, 1, 0, "degraded")
    assert worker.heartbeat()
    assert worker.start_sync("s", 6, 3)["accepted"]
    worker.push_batch("s", 1, [2, 3])

    def missing() -> list[int]:
        answer = worker.sync_status("s")
        assert not answer["can_exit_freeze"]
        found: list[int] = answer["missing_batches"]
        return found

    served.until(lambda: missing() == [0, 2], "two missing batches")
    worker.push_batch("s", 0, [0, 1])
    worker.push_batch("s", 2, [4, 5])
    worker.push_end("s", 6)
    served.until(lambda: worker.sync_status("s")["can_exit_freeze"], "the end of the freeze")
    served.await_match(range(6), name, 6, 6, 0, "exact")


def test_a_worker_is_told_who_has_its_chunks(
    served: Served, worker: ScriptedWorker, name: str
) -> None:
    worker.admit([7001, 7002, 7003])
    served.await_match([7001], name, 1, 1, 0, "exact")
    with ScriptedWorker(served.ports, f"{name}-other", peer="127.0.0.1:8300") as other:
        other.register()
        found = other.look_up([7001, 7002, 7003, 7004])
        assert found == [[name, CPU, 3, "127.0.0.1:8200"]]
        assert other.look_up([9999]) == [["", "", 0, ""]]
        assert worker.look_up([7001]) == [["", "", 0, ""]], "itself does not count"
        other.deregister()
        served.until(lambda: not served.workers(f"{name}-other"), "its end")


def test_a_prompt_is_looked_up_by_its_tokens(
    served: Served, worker: ScriptedWorker, name: str
) -> None:
    tokens = [ord(one) for one in name]  # 12 of them, and nobody else's
    first = hash((0, tuple(tokens[:4]), ()))
    second = hash((first, tuple(tokens[4:8]), ()))
    worker.admit([first, second])
    served.await_match([first % 2**64, second % 2**64], name, 2, 2, 0, "exact")
    status, answer = served.deployment.api.post("/lookup", {"tokens": tokens})
    assert status == 200, answer
    assert answer["layout_info"][name] == [CPU, 8]
    status, answer = served.deployment.api.post("/lookup", {"tokens": tokens[1:]})
    assert name not in answer["layout_info"]


def test_a_worker_that_leaves_is_no_more(served: Served, name: str) -> None:
    with ScriptedWorker(served.ports, name) as worker:
        worker.register()
        worker.admit([1])
        served.await_match([1], name, 1, 1, 0, "exact")
        worker.deregister()
        served.until(lambda: not served.workers(name), "its end")
    served.until(lambda: served.match([1], name)[0] in (-1, 0), "the end of its blocks")


def test_of_workers_that_share_chunks_the_one_that_has_least_counts(
    served: Served, worker: ScriptedWorker, name: str
) -> None:
    keys = [1, 2, 3, 4]
    with ScriptedWorker(served.ports, name, 1) as other:
        other.register()
        for one in (worker, other):
            one.heartbeat()
            one.admit(keys)
        served.await_match(keys, name, 4, 4, 0, "exact")
        other.evict(keys[1:])
        served.await_match(keys, name, 1, 1, 0, "exact")
        other.deregister()
        served.await_match(keys, name, 0, 0, 0, "exact")


def test_a_new_process_of_a_worker_begins_anew(served: Served, name: str) -> None:
    with ScriptedWorker(served.ports, name) as worker:
        worker.register()
        worker.admit([1, 2])
        served.await_match([1, 2], name, 2, 2, 0, "exact")
    served.await_match([1, 2], name, 2, 2, 0, "unconfirmed")
    with ScriptedWorker(served.ports, name) as worker:
        worker.register()
        worker.admit([2])
        served.await_match([2, 1], name, 1, 1, 0, "exact")
        worker.deregister()
        served.until(lambda: not served.workers(name), "its end")


@pytest.mark.both_forms
def test_what_is_on_disk_outlasts_a_restart_in_order(served: Served, name: str) -> None:
    with ScriptedWorker(served.ports, name) as worker:
        worker.register()
        worker.admit([1, 2, 3])
        worker.admit([1, 2, 3, 4], DISK)
        served.await_match([1, 2, 3, 4], name, 4, 3, 4, "exact")
        served.deployment.restart(in_order=True)
        served.until(lambda: worker.heartbeat_or_nothing(), "an answer to a heartbeat")
        worker.sync("s", [1, 2, 3])
        served.until(lambda: worker.sync_status("s")["can_exit_freeze"], "the end of the freeze")

        def reason() -> str:
            services = served.deployment.api.get("/services")[1]["services"]
            [mine] = [one for one in services if one["InstanceID"] == name]
            return str(mine["Reason"])

        served.until(lambda: reason() == "not_synced", "the full sync")
        served.await_match([1, 2, 3, 4], name, 4, 3, 4, "unconfirmed")
        worker.evict([4], DISK)
        served.await_match([1, 2, 3, 4], name, 3, 3, 3, "exact")
        worker.deregister()
        served.until(lambda: not served.workers(name), "its end")


def test_bytes_that_are_no_messages_are_counted_and_nobody_is_harmed(
    served: Served, worker: ScriptedWorker, name: str
) -> None:
    worker.admit([1])
    served.await_match([1], name, 1, 1, 0, "exact")
    before = served.metric("reprise_lmcache_dropped_total", reason="malformed")
    with ScriptedWorker(served.ports, name) as hostile:
        hostile.push_raw(b"\xc1", b"{", b"")
        answer = hostile.ask_raw(b"\x93\x01\x02")
    assert answer["type"] == "ErrorMsg"
    served.until(
        lambda: served.metric("reprise_lmcache_dropped_total", reason="malformed") >= before + 4,
        "four bad messages",
    )
    worker.admit([2])
    served.await_match([1, 2], name, 2, 2, 0, "exact")


@pytest.mark.both_forms
def test_after_kill_9_of_all_a_worker_is_asked_for_what_it_holds(served: Served, name: str) -> None:
    with ScriptedWorker(served.ports, name) as worker:
        worker.register()
        worker.admit([1, 2, 3])
        worker.admit([8], DISK)
        worker.admit([9])
        served.await_match([1, 2, 3], name, 3, 3, 0, "exact")
        served.deployment.restart()
        assert served.match([1, 2, 3], name)[:3] == (3, 3, 0), "what it was"
        worker.evict([1])  # nobody knows whether this comes
        served.until(lambda: worker.heartbeat_or_nothing(), "an answer to a heartbeat")
        worker.sync("s", [2, 3, 9])
        served.until(lambda: worker.sync_status("s")["can_exit_freeze"], "the end of the freeze")
        served.await_match([2, 3, 9, 1], name, 3, 3, 0, "degraded")  # what is on disk is lost
        assert served.match([1], name)[0] == 0
        worker.deregister()
        served.until(lambda: not served.workers(name), "its end")
