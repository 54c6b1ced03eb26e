"""`/health`, `/ready` and `/digest`."""

import hashlib

import msgspec

from schemas.positions import Position
from streams.kernel import open_kernel
from tests.fakes import SEED, AsgiClient, FakeTable, registration


def test_health_is_200_whether_ready_or_not(table: FakeTable, client: AsgiClient) -> None:
    health = client.get("/health").document()
    assert health.pop("version")
    assert health == {
        "status": "alive",
        "ready": True,
        "role": "embedded",
        "problem": "",
        "conditions": [],
        "kernel": table.kernel.name,
        "seed": SEED,
        "position": "0:1234",
    }
    table.ready, table.problem = False, "replaying 7 records"
    reply = client.get("/health")
    assert reply.status == 200
    assert reply.document()["ready"] is False
    assert reply.document()["problem"] == "replaying 7 records"
    assert reply.document()["conditions"] == [
        {
            "part": "recovery",
            "reason": "recovering",
            "message": "replaying 7 records",
            "since": 1000.0,
            "level": "unavailable",
        }
    ]


def test_what_is_degraded_is_told_and_keeps_it_ready(table: FakeTable, client: AsgiClient) -> None:
    table.problem = "no space left"
    assert client.get("/health").document()["conditions"][0]["level"] == "degraded"
    assert client.get("/ready").status == 200


def test_ready_is_503_with_the_reason_until_recovered(table: FakeTable, client: AsgiClient) -> None:
    table.ready, table.problem, table.at = False, "replaying 7 records", (Position(0, -1),)
    reply = client.get("/ready")
    assert reply.status == 503
    assert reply.document() == {
        "ready": False,
        "error": "replaying 7 records",
        "reason": "recovering",
        "position": "0:-1",
    }
    table.ready = True
    reply = client.get("/ready")
    assert (reply.status, reply.document()) == (200, {"ready": True, "position": "0:-1"})


def test_the_digest_depends_on_what_is_held_not_on_the_order(
    table: FakeTable, client: AsgiClient
) -> None:
    other = FakeTable(open_kernel(SEED))
    for target, names in ((table, ("a", "b")), (other, ("b", "a"))):
        for name in names:
            target.store(target.add(registration(name)), range(8), hashes=[1, 2])
    from query_api.http.health import digest_document

    document = client.get("/digest").document()
    assert document == digest_document(other.kernel, "0:1234")
    assert (document["position"], document["kernel"]) == ("0:1234", table.kernel.name)
    assert [context["instance_id"] for context in document["contexts"]] == ["a", "b"]
    assert [context["entries"] for context in document["contexts"]] == [2, 2]
    packed = b"".join(
        msgspec.msgpack.encode(["default", "m", "", 4, "", name, int(context["digest"], 16)])
        for name, context in zip(("a", "b"), document["contexts"], strict=True)
    )
    assert document["digest"] == hashlib.sha256(packed).hexdigest()
    publisher = other.add(registration("a"))
    other.store(publisher, range(8, 12), hashes=[3], parent=2)
    assert digest_document(other.kernel, "")["digest"] != document["digest"]
