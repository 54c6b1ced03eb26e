"""The gap ledger of the whole service, in both of its forms: injected loss is what it says."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgpack
import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import BlockStored
from tests.contract.deployments import WAIT_S, Deployment, Tenant

pytestmark = pytest.mark.timeout(180)

BAD_BATCH = b"\xc1 no batch"
BAD_EVENT: bytes = msgpack.packb([1.0, [["BlockPinned", [1]]]])


def intervals(incarnation: dict[str, Any], kind: str) -> list[tuple[int, int, str]]:
    return [(one["first"], one["last"], one["cause"]) for one in incarnation[kind]["intervals"]]


def inject(publisher: Publisher, *lost: int) -> None:
    """Ten batches; those of these numbers are not sent live."""
    for number in range(10):
        publisher.publish([], lost=number in lost)


def test_what_was_dropped_and_cannot_be_asked_for_is_lost_number_for_number(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher)
    inject(publisher, 3, 4, 8)
    incarnation = tenant.await_batches(10)
    assert (incarnation["incarnation"], incarnation["current"]) == (1, True)
    assert intervals(incarnation, "lost") == [(3, 4, "missed"), (8, 8, "missed")]
    assert incarnation["seen"] == {"batches": 7, "intervals": [[0, 2], [5, 7], [9, 9]]}
    assert incarnation["lost"]["batches"] == 3
    assert incarnation["repaired"]["batches"] == incarnation["incomplete"]["batches"] == 0
    assert tenant.metric("reprise_ledger_batches_total", kind="lost", cause="missed") == 3.0


def test_what_a_replay_brings_is_repaired(tenant: Tenant) -> None:
    publisher = Publisher(PublisherOptions())
    publisher.publish([])
    publisher.publish([])
    tenant.until(lambda: publisher.published == 2, "two batches")
    tenant.connect(publisher, replay_endpoint=publisher.replay_endpoint)
    tenant.await_batches(2)
    # The link is up, and its engine was asked since: what is missing from here on was missed.
    reason = "replay_unmatched"  # nothing has come live yet that a replay could show
    tenant.until(lambda: tenant.services()[0]["Reason"] == reason, "the replay to be asked")
    publisher.publish([], lost=True)
    publisher.publish([])
    incarnation = tenant.await_batches(4)
    assert intervals(incarnation, "repaired") == [(0, 1, "joined_late"), (2, 2, "missed")]
    assert incarnation["seen"] == {"batches": 4, "intervals": [[0, 3]]}
    assert incarnation["lost"]["batches"] == 0
    assert tenant.metric("reprise_ledger_batches_total", kind="repaired") == 3.0
    publisher.close()


def test_what_cannot_be_read_is_lost_or_incomplete(tenant: Tenant, publisher: Publisher) -> None:
    tenant.connect(publisher)
    publisher.publish([])
    for payload in (BAD_EVENT, BAD_EVENT, BAD_BATCH, BAD_BATCH, BAD_EVENT):
        publisher._inlet.send_multipart([b"send", payload])
    publisher.publish([])
    incarnation = tenant.await_batches(7)
    assert intervals(incarnation, "incomplete") == [
        (1, 2, "unknown_event"),
        (5, 5, "unknown_event"),
    ]
    assert intervals(incarnation, "lost") == [(3, 4, "undecodable")]
    assert incarnation["seen"]["intervals"] == [[0, 2], [5, 6]]


@pytest.mark.both_forms
def test_it_is_the_same_in_msgpack_after_a_restart_and_from_the_log_alone(
    deployment: Deployment, tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher)
    inject(publisher, 2, 6)
    before = tenant.await_batches(10)
    path = f"/gaps?tenant_id={tenant.tenant_id}&instance_id=a&model=m"
    request = Request(deployment.api.base_url + path, headers={"Accept": "application/msgpack"})
    with urlopen(request, timeout=WAIT_S) as answer:
        assert answer.headers["Content-Type"] == "application/msgpack"
        packed = msgpack.unpackb(answer.read())
    assert packed["publishers"][0]["incarnations"] == [before]
    assert printed(tenant, *deployment.events()) == [before]
    assert printed(tenant, "--url", deployment.api.base_url) == [before]
    deployment.restart()
    assert tenant.gaps() == before


def printed(tenant: Tenant, *options: str) -> list[dict[str, Any]]:
    """What `reprise gaps --json` says of the tenant's publisher."""
    command = [sys.executable, "-m", "reprise", "gaps", "--json", "--tenant", tenant.tenant_id]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [publisher] = json.loads(done.stdout)["publishers"]
    found: list[dict[str, Any]] = publisher["incarnations"]
    return found


def test_an_unregistered_publisher_has_no_ledger(tenant: Tenant, publisher: Publisher) -> None:
    tenant.connect(publisher)
    inject(publisher, 1)
    tenant.await_batches(10)
    tenant.unregister()
    tenant.until(lambda: tenant.gaps() == {"last_sequence": -1}, "an empty ledger")


def test_it_is_served_from_a_capture_too(
    deployment: Deployment, tenant: Tenant, publisher: Publisher, tmp_path: Path
) -> None:
    tenant.connect(publisher)
    inject(publisher, 1, 5)
    before = tenant.await_batches(10)
    file = str(tmp_path / "all.capture")
    command = [sys.executable, "-m", "reprise", "capture", *deployment.events(), "--out", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert printed(tenant, file) == [before]


class Numbered:
    """A publisher each of whose batches stores a block of its own: the index says which have come.

    Args:
        instance_id: its name.
        number: that no other one has.
        replays: whether it has a replay socket, with a buffer of so many batches.
    """

    def __init__(self, instance_id: str, number: int, *, replays: int) -> None:
        endpoint = "tcp://127.0.0.1:0" if replays else ""
        options = PublisherOptions(replay_endpoint=endpoint, buffer_batches=replays or 1)
        self.publisher = Publisher(options)
        self.instance_id = instance_id
        self.batches = 0
        self._number = number

    def tokens(self, batch: int) -> list[int]:
        """Of the block of one batch."""
        return [1000 * self._number + batch] * 16

    def publish(self, *, lost: bool = False) -> None:
        hashed = 1_000_000 * self._number + self.batches
        tokens = self.tokens(self.batches)
        event = BlockStored(block_hashes=[hashed], token_ids=tokens, block_size=16)
        self.publisher.publish([event], lost=lost)
        self.batches += 1


@pytest.fixture
def engines() -> Iterator[list[Numbered]]:
    """One that has all that it sent, one that has its last four batches, one without replays."""
    opened = [
        Numbered(name, number, replays=replays)
        for number, (name, replays) in enumerate((("all", 10_000), ("few", 4), ("none", 0)))
    ]
    yield opened
    for one in opened:
        one.publisher.close()


def test_whatever_is_killed_the_index_has_what_the_ledger_calls_seen_and_nothing_else(
    deployment: Deployment, tenant: Tenant, engines: list[Numbered]
) -> None:
    for one in engines:
        replay = {"replay_endpoint": one.publisher.replay_endpoint}
        fields = replay if replay["replay_endpoint"] else {}
        assert tenant.register(one.publisher, instance_id=one.instance_id, **fields)[0] == 200
    tenant.await_links(*(one.publisher for one in engines))
    for number in range(20):
        for one in engines:
            one.publish(lost=number in (7, 8, 12))
    await_all(tenant, engines)

    def publish() -> None:
        for _ in range(300):
            for one in engines:
                one.publish()
            time.sleep(0.01)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        deployment.restart()
        tenant.await_links(*(one.publisher for one in engines))
    finally:
        thread.join()
    for one in engines:
        one.publish()  # shows what was lost before it
    await_all(tenant, engines)
    for one in engines:
        seen = seen_of(tenant, one)
        found = {
            number
            for number in range(one.batches)
            if tenant.longest(one.tokens(number), one.instance_id) == 16
        }
        assert found == seen
        causes = {gap["cause"] for gap in incarnation_of(tenant, one)["lost"]["intervals"]}
        assert ("not_followed" in causes) == (one.instance_id != "all"), one.instance_id
        assert one.instance_id != "all" or seen == set(range(one.batches)), "its buffer covers all"
    command = [sys.executable, "-m", "reprise", "gaps", "--json", "--tenant", tenant.tenant_id]
    command += deployment.events()
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    served = tenant.api.get(f"/gaps?tenant_id={tenant.tenant_id}")[1]
    assert json.loads(done.stdout)["publishers"] == served["publishers"]


def incarnation_of(tenant: Tenant, engine: Numbered) -> dict[str, Any]:
    """The engine's only one."""
    path = f"/gaps?tenant_id={tenant.tenant_id}&instance_id={engine.instance_id}"
    publishers = tenant.api.get(path)[1]["publishers"]
    if not publishers:
        return {"last_sequence": -1, "seen": {"intervals": []}}
    [incarnation] = publishers[0]["incarnations"]
    found: dict[str, Any] = incarnation
    return found


def await_all(tenant: Tenant, engines: list[Numbered]) -> None:
    """Until the ledger accounts for all that they have published."""

    def is_there() -> bool:
        return all(
            incarnation_of(tenant, one)["last_sequence"] == one.batches - 1 for one in engines
        )

    tenant.until(is_there, "all batches in the ledger")


def seen_of(tenant: Tenant, engine: Numbered) -> set[int]:
    spans = incarnation_of(tenant, engine)["seen"]["intervals"]
    return {number for first, last in spans for number in range(first, last + 1)}
