"""Publishers of kinds that are not like vLLM, by the messages that their released code sent: what a
router is answered then. Registered over HTTP, and by Conductor's configuration file.
"""

import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
import zmq

from tests.contract.deployments import Tenant, tenant_of
from tests.unit.bridge.messages import captured_messages

pytestmark = pytest.mark.timeout(180)

PROMPT = list(range(1000, 1012))
BLOCK = 4
WAIT_MS = 10_000


class Case(NamedTuple):
    """A publisher, and what of the prompt is found after each of its messages."""

    kind: str
    version: str
    found: list[tuple[str, int]]


CASES = [
    Case(
        "TensorRT-LLM",
        "tensorrt-llm-main-2026",
        [("stored", 8), ("stored-child", 12), ("removed", 8), ("cleared", 0)],
    ),
    Case(
        "TensorRT-LLM",
        "tensorrt-llm-dynamo-1.6.1",
        [("stored", 8), ("stored-child", 12), ("removed", 8), ("cleared", 0)],
    ),
    Case(
        "TensorRT-LLM",
        "tensorrt-llm-api-1.2",
        [("created", 0), ("stored", 8), ("stored-one", 12), ("removed", 4)],
    ),
    Case(
        "Dynamo",
        "dynamo-1.6.1",
        [("stored", 8), ("stored-child", 12), ("stored-again", 12), ("removed-last", 8)],
    ),
    Case("Dynamo", "dynamo-json-1.6.1", [("stored", 8), ("cleared", 0)]),
]


EVENT_ID = re.compile(rb'(?<="event_id": )\d+')


class Sender:
    """A PUB socket that sends captured messages, each with the number of its turn; in JSON so have
    their events.
    """

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.bind("tcp://127.0.0.1:0")
        self.endpoint = self._socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._sent = 0
        self._events = count()

    def await_subscriber(self) -> None:
        assert self._socket.poll(WAIT_MS), f"nobody has subscribed to {self.endpoint}"
        self._socket.recv()

    def send(self, frames: list[bytes]) -> None:
        payload = EVENT_ID.sub(lambda _: b"%d" % next(self._events), frames[-1])
        numbered = [*frames[:-2], self._sent.to_bytes(8, "big"), payload]
        self._socket.send_multipart(numbered)
        self._sent += 1

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def sender() -> Iterator[Sender]:
    opened = Sender()
    yield opened
    opened.close()


def entry_of(case: Case, tenant: Tenant, sender: Sender) -> dict[str, object]:
    return {
        "endpoint": sender.endpoint,
        "type": case.kind,
        "modelname": "m",
        "block_size": BLOCK,
        "tenant_id": tenant.tenant_id,
    }


def check(case: Case, tenant: Tenant, sender: Sender) -> None:
    frames = {one.name: one.frames for one in captured_messages()}
    for name, matched in case.found:
        sender.send(frames[f"{case.version}/{name}"])
        tenant.await_longest(PROMPT, matched, block_size=BLOCK)
    assert tenant.metric("reprise_bridge_dropped_total") == 0


@pytest.mark.parametrize("case", CASES, ids=[case.version for case in CASES])
def test_a_publisher_that_is_registered_over_http_is_followed(
    tenant: Tenant, sender: Sender, case: Case
) -> None:
    body = {**entry_of(case, tenant, sender), "instance_id": "a", "dp_rank": 0}
    status, answer = tenant.api.post("/register", body)
    assert status == 200, answer
    sender.await_subscriber()
    check(case, tenant, sender)


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=["tensorrt-llm", "dynamo"])
def test_a_publisher_of_the_configuration_file_is_followed(
    tenant: Tenant, sender: Sender, tmp_path: Path, case: Case
) -> None:
    config = tmp_path / "conductor_config.json"
    entries = {"a": entry_of(case, tenant, sender)}
    config.write_text(json.dumps({"http_server_port": 1, "kvevent_instance": entries}))
    configured = tenant.deployment.configured(config, tmp_path)
    try:
        with tenant_of(configured, tenant.tenant_id) as here:
            sender.await_subscriber()
            check(case, here, sender)
    finally:
        configured.close()


DOUBTED = [
    (CASES[0], "partial_reuse", {"kv_partial_reuse": "none"}),
    (CASES[3], "groups_unknown", {"kv_cache_groups": "one", "kv_partial_reuse": "none"}),
]


@pytest.mark.parametrize("is_said", [False, True], ids=["default", "ruled out"])
@pytest.mark.parametrize(("case", "reason", "said"), DOUBTED, ids=["tensorrt-llm", "dynamo"])
def test_a_kind_that_hides_something_is_exact_where_its_registration_rules_that_out(
    tenant: Tenant, sender: Sender, case: Case, reason: str, said: dict[str, str], is_said: bool
) -> None:
    entry = {**entry_of(case, tenant, sender), "instance_id": "a", **(said if is_said else {})}
    status, answer = tenant.api.post("/register", entry)
    assert status == 200, answer
    sender.await_subscriber()
    frames = {one.name: one.frames for one in captured_messages()}
    name, matched = case.found[0]
    sender.send(frames[f"{case.version}/{name}"])
    tenant.await_longest(PROMPT, matched, block_size=BLOCK)
    due = ("exact", "") if is_said else ("unconfirmed", reason)

    def is_due() -> bool:
        (one,) = tenant.services()
        return (one["State"], one["Reason"]) == due

    tenant.until(is_due, f"{due} of {case.kind}")
    if is_said:
        return
    assert tenant.await_finding(reason)["instance_id"] == "a"
    # Said of an engine that is followed, it is so at once: nothing is sent any more.
    assert tenant.api.post("/register", entry | said)[0] == 400
    status, answer = tenant.api.post("/register", entry | said | {"replace": True})
    assert status == 200, answer
    due = ("exact", "")
    tenant.until(is_due, f"{due} of {case.kind}")
    assert tenant.longest(PROMPT, block_size=BLOCK) == matched
    (one,) = tenant.services()
    shown = (one["KvPartialReuse"], one["KvCacheGroups"])
    assert shown == ("none", said.get("kv_cache_groups", ""))
    name, matched = case.found[1]
    sender.send(frames[f"{case.version}/{name}"])
    tenant.await_longest(PROMPT, matched, block_size=BLOCK)
    assert (is_due(), tenant.metric("reprise_bridge_dropped_total")) == (True, 0)


def test_ranks_of_one_stream_are_registered_at_one_endpoint(tenant: Tenant, sender: Sender) -> None:
    """Each has its own of it; until all of them are registered the answers say so."""

    def register(rank: int) -> None:
        entry = entry_of(CASES[2], tenant, sender)
        said = {"kv_partial_reuse": "none"} if rank else {}
        body = {**entry, **said, "instance_id": "a", "dp_rank": rank}
        status, answer = tenant.api.post("/register", body)
        assert status == 200, answer

    def send(rank: int, data: dict[str, object]) -> None:
        event = {"event_id": 0, "attention_dp_rank": rank, "data": data}
        sender.send([b"", b"", json.dumps([event]).encode()])

    def store(rank: int) -> None:
        tokens = [{"token_id": token} for token in PROMPT[: BLOCK * (1 + rank)]]
        starts = range(0, len(tokens), BLOCK)
        blocks = [{"block_hash": 7 + at, "tokens": tokens[at : at + BLOCK]} for at in starts]
        send(rank, {"type": "stored", "parent_hash": None, "blocks": blocks})

    def standings() -> dict[int, tuple[str, str]]:
        return {one["DPRank"]: (one["State"], one["Reason"]) for one in tenant.services()}

    register(0)
    sender.await_subscriber()
    store(0)
    tenant.await_longest(PROMPT, 4, block_size=BLOCK)
    store(1)
    missing = ("unconfirmed", "rank_missing")
    tenant.until(lambda: standings() == {0: missing}, "that a rank is missing")
    register(1)

    def has_second() -> bool:
        """What was sent before its subscription has arrived nobody has received."""
        send(1, {"type": "created", "num_blocks_per_cache_level": [9]})
        store(1)
        return tenant.longest(PROMPT, block_size=BLOCK) == 8

    tenant.until(has_second, "the blocks of the second rank")
    due = {0: ("unconfirmed", "partial_reuse"), 1: ("exact", "")}
    tenant.until(lambda: standings() == due, "that each rank is as it is registered")
    assert tenant.await_finding("partial_reuse")["dp_ranks"] == [0]
    assert tenant.query(PROMPT, block_size=BLOCK)["a"]["DP"] == {"0": 4, "1": 8}
    assert tenant.metric("reprise_bridge_dropped_total") == 0
