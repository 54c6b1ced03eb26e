"""Whatever body of `/route`, `/feedback` and `/load` is accepted, the records that it leads to are
read back as they were written, are folded, and the fold's checkpoint is read back, too.

A record that cannot be read would cost everybody whose decisions stand in it. Seeds: SEEDS; values
are the least and the most of what the types take, infinities, and names of many bytes.
"""

import random
from typing import Any

import msgspec
import pytest

from routing.fold.fold import RoutingFold
from routing.policies.table import POLICIES
from schemas.codec import decode_routing
from schemas.limits import NAME_BYTES_MAX
from schemas.routing_records import encode_routing
from tests.fakes import FakeTable
from tests.unit.routing.http.conftest import Service

SEEDS = range(40)
BODIES = 25

INTEGERS = (0, 1, 2, 255, 65_537, 2**31 - 1, 2**31, 2**40, 2**53, 2**62, 2**63 - 1, 2**64 - 1, -1)
NUMBERS = (0.0, 5e-324, 1e-9, 0.5, 1.0, 1e9, 2.0**53, 1e300, 1e308, -1.0, float("inf"), 17)
NAMES = (
    "",
    "a",
    "b",
    "x" * NAME_BYTES_MAX,
    "€" * (NAME_BYTES_MAX // 3),
    "\0",
    "😀" * 256,
    "a" * 1025,
)
EVENTS = ("dispatched", "first_token", "completed", "failed", "cancelled")
PARAMETERS = (
    "alpha",
    "beta",
    "work",
    "full_load_s",
    "max_penalty_s",
    "fetch",
    "guard",
    "temperature",
)


def some(chance: random.Random, **fields: Any) -> dict[str, Any]:
    """Some of the fields."""
    return {name: value for name, value in fields.items() if chance.random() < 0.5}


def load(chance: random.Random, now: float) -> dict[str, Any]:
    """What an instance is said to carry."""
    return some(
        chance,
        running=chance.choice(INTEGERS),
        waiting=chance.choice(INTEGERS),
        prefill_tokens=chance.choice(INTEGERS),
        kv_usage=chance.choice((*NUMBERS, 0.99)),
        kv_capacity_tokens=chance.choice(INTEGERS),
        observed_at=chance.choice((*NUMBERS, now, now - 30.0, now + 3.0)),
    )


def route(chance: random.Random, now: float) -> dict[str, Any]:
    """A body; most have something that is refused, and enough have not."""
    body: dict[str, Any] = {
        "model": chance.choice(NAMES[1:4]),
        "block_size": chance.choice((1, 16)),
    }
    if chance.random() < 0.5:
        body["token_ids"] = [7] * chance.choice((0, 1, 16, 300))
    else:
        body["block_hashes"] = [2**64 - 1, *range(1, chance.choice((1, 3, 200)))]
        body["block_size"] = chance.choice((1, 16, *INTEGERS))
        body |= some(chance, prompt_tokens=chance.choice(INTEGERS))
    if chance.random() < 0.8:
        body["candidates"] = [
            {"instance_id": name}
            | some(
                chance,
                dp_rank=chance.choice((0, 1, 65_535)),
                role=chance.choice(("prefill", "decode", "combined", NAMES[3])),
                endpoint=chance.choice(NAMES),
                labels={"class": chance.choice(NAMES[1:6])},
                load=load(chance, now) if chance.random() < 0.5 else {},
            )
            for name in chance.sample(NAMES[1:6], chance.randint(1, 4))
        ]
    rare = {
        "tenant_id": chance.choice(NAMES),
        "request_id": chance.choice((*NAMES, f"r{chance.randrange(9)}")),
        "session_id": chance.choice(NAMES),
        "lora_name": chance.choice(NAMES),
        "cache_salt": chance.choice(NAMES),
        "expected_output_tokens": chance.choice(INTEGERS),
        "priority": chance.choice((0, -(2**31), 2**31 - 1, 2**31)),
        "slo": some(chance, ttft_ms=chance.choice(NUMBERS), tbt_ms=chance.choice(NUMBERS)),
        "phase": chance.choice(("combined", "prefill", "decode", "pair")),
        "policy": policy(chance),
    }
    return body | {name: value for name, value in rare.items() if chance.random() < 0.25}


def policy(chance: random.Random) -> str:
    """One that there is, perhaps with a parameter that it may not have."""
    name = chance.choice(sorted(POLICIES))
    if chance.random() < 0.5:
        return name
    value = chance.choice(("0", "1e6", "1e308", "inf", "-inf", "nan", "-1", "on", "off"))
    return f"{name}:{chance.choice(PARAMETERS)}={value}"


def report(chance: random.Random, now: float, decisions: list[str]) -> dict[str, Any]:
    """Of a decision that was made, mostly."""
    told: dict[str, Any] = {"event": chance.choice(EVENTS)}
    if decisions and chance.random() < 0.9:
        told["decision_id"] = chance.choice(decisions)
    else:
        told["request_id"] = chance.choice(("a", "r1", NAMES[3]))
    return told | {
        name: value
        for name, value in {
            "at": chance.choice((*NUMBERS, now, now - 5.0)),
            "instance_id": chance.choice(NAMES),
            "dp_rank": chance.choice((0, 65_535)),
            "prompt_tokens": chance.choice(INTEGERS),
            "cached_tokens": chance.choice(INTEGERS),
            "output_tokens": chance.choice(INTEGERS),
            "queue_ms": chance.choice(NUMBERS),
            "prefill_ms": chance.choice(NUMBERS),
            "ttft_ms": chance.choice(NUMBERS),
            "tbt_ms": chance.choice(NUMBERS),
            "error": chance.choice(NAMES),
        }.items()
        if chance.random() < 0.2
    }


def posted(service: Service, path: str, body: Any, *, packed: bool) -> tuple[int, Any]:
    """In msgpack, which has infinities, or in JSON, which has none."""
    if packed:
        reply = service.client.post_msgpack(path, body)
        return reply.status, msgspec.msgpack.decode(reply.body)
    reply = service.client.post_json(path, body)
    return reply.status, msgspec.json.decode(reply.body)


def played(service: Service, chance: random.Random) -> dict[str, int]:
    """Some bodies; how many of each kind were accepted."""
    accepted = {"/route": 0, "/feedback": 0, "/load": 0}
    decisions: list[str] = []
    for _ in range(BODIES):
        now = service.clock.now = service.clock.now + chance.choice((0.0, 0.1, 61.0, 1e4))
        path = chance.choice(("/route", "/route", "/feedback", "/load"))
        if path == "/route":
            body: Any = route(chance, now)
        elif path == "/feedback":
            body = [report(chance, now, decisions) for _ in range(chance.randint(1, 3))]
        else:
            body = load(chance, now) | {"instance_id": chance.choice(NAMES[1:6])}
        status, answer = posted(service, path, body, packed=chance.random() < 0.5)
        assert status in (200, 202, 400, 429, 503), (status, answer, body)
        accepted[path] += status in (200, 202)
        if path == "/route" and status == 200:
            decisions.append(answer["decision_id"])
    return accepted


@pytest.mark.parametrize("seed", [*SEEDS, 1184])
def test_what_is_accepted_is_read_back(seed: int) -> None:
    service, chance = Service(FakeTable()), random.Random(seed)
    for _ in range(4):
        played(service, chance)
        for record in service.queue.take(service.clock.now):
            assert decode_routing(encode_routing(record)) == record
            service.live.follow(service.folded.offset + 1, record, service.clock.now)
    encoded = service.folded.read_all(RoutingFold.dump)
    assert RoutingFold.load(encoded).dump() == encoded
    for path in ("/routing", "/models", "/promises", "/prefixes", "/advice"):
        assert service.client.get(path).status == 200


def test_enough_is_accepted_to_mean_something() -> None:
    service, chance = Service(FakeTable()), random.Random(1)
    total = {"/route": 0, "/feedback": 0, "/load": 0}
    for _ in range(20):
        for path, count in played(service, chance).items():
            total[path] += count
    assert min(total.values()) > 20, total
