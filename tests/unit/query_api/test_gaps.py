"""`GET /gaps`: the ledger as a document, of those who are asked for."""

from typing import Any

import pytest

from query_api.gaps import GapsDocument, LedgerView, PublisherFilter, gaps_document
from schemas.positions import PublisherState
from streams.table.ledger import Account, Incarnation, Interval, Ledger
from tests.fakes import AsgiClient, FakeTable, registration

LOST = Account(9, (Interval(4, 5, "missed", 10.0, 10.0),), forgotten=2, forgotten_batches=7)
REPAIRED = Account(3, (Interval(6, 8, "reconnected", 11.0, 12.0),))
KNOWN = Ledger(
    incarnations=(
        Incarnation(number=3, began_at=1.0, reason="restarted", last=20, repaired=REPAIRED),
        Incarnation(number=4, began_at=2.0, reason="restarted", lost=LOST),
    ),
    forgotten=2,
    lost={"missed": 40},
    repaired={"reconnected": 3},
)
STATE = PublisherState(incarnation=4, sequence=11)
NOTHING = {"batches": 0, "intervals": [], "forgotten": {"intervals": 0, "batches": 0}}


@pytest.fixture
def known(table: FakeTable) -> FakeTable:
    """A table that knows the ledgers of three publishers."""
    for instance_id, tenant_id, model in (("b", "t", "m"), ("a", "t", "m"), ("a", "u", "n")):
        one = registration(instance_id, tenant_id=tenant_id, model_name=model).publisher
        table.known[one] = KNOWN
        table.states[one] = STATE
    return table


def named(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["tenant_id"], one["instance_id"]) for one in document["publishers"]]


def test_each_number_is_seen_or_lost_and_it_is_said_when_and_why() -> None:
    one = registration("a").publisher
    [publisher] = gaps_document(
        [LedgerView(one, KNOWN, STATE)], "0:9", PublisherFilter()
    ).publishers
    assert publisher.totals.lost == {"missed": 40}
    assert publisher.forgotten_incarnations == 2
    first, second = publisher.incarnations
    assert (first.current, second.current) == (False, True)
    assert (first.first_sequence, first.last_sequence) == (0, 20)
    assert (first.seen.batches, first.seen.intervals) == (21, [[0, 20]])
    assert (second.first_sequence, second.last_sequence) == (0, 11)
    assert second.seen.batches + second.lost.batches == 12
    assert second.seen.intervals == [[6, 11]], "behind the losses that are forgotten"


def test_the_document_has_every_field(client: AsgiClient, known: FakeTable) -> None:
    reply = client.get("/gaps?instance_id=b")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    [publisher] = reply.document()["publishers"]
    assert reply.document()["position"] == "0:1234"
    assert {name: publisher[name] for name in ("tenant_id", "model_name", "dp_rank")} == {
        "tenant_id": "t",
        "model_name": "m",
        "dp_rank": 0,
    }
    assert publisher["incarnations"][0] == {
        "incarnation": 3,
        "current": False,
        "began_at": 1.0,
        "reason": "restarted",
        "first_sequence": 0,
        "last_sequence": 20,
        "seen": {"batches": 21, "intervals": [[0, 20]]},
        "lost": NOTHING,
        "repaired": {
            "batches": 3,
            "intervals": [
                {
                    "first": 6,
                    "last": 8,
                    "batches": 3,
                    "cause": "reconnected",
                    "at": 11.0,
                    "until": 12.0,
                }
            ],
            "forgotten": {"intervals": 0, "batches": 0},
        },
        "incomplete": NOTHING,
    }
    assert publisher["incarnations"][1]["lost"]["forgotten"] == {"intervals": 2, "batches": 7}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("", [("t", "a"), ("t", "b"), ("u", "a")]),
        ("?tenant_id=t", [("t", "a"), ("t", "b")]),
        ("?instance_id=a&model=n", [("u", "a")]),
        ("?tenant_id=nobody", []),
        ("?something=else&tenant_id=u", [("u", "a")]),
    ],
)
def test_only_those_who_are_asked_for_are_shown_in_order(
    client: AsgiClient, known: FakeTable, asked: str, found: list[tuple[str, str]]
) -> None:
    assert named(client.get(f"/gaps{asked}").document()) == found


def test_the_answer_comes_in_msgpack_too(client: AsgiClient, known: FakeTable) -> None:
    packed = client.get("/gaps", accept="application/msgpack")
    assert packed.headers["content-type"] == "application/msgpack"
    assert packed.document() == client.get("/gaps").document()


def test_what_cannot_be_a_name_is_refused(client: AsgiClient) -> None:
    reply = client.get("/gaps?instance_id=%ff")
    assert (reply.status, reply.document()["reason"]) == (400, "invalid_parameter")


def test_a_publisher_of_which_nothing_came_ends_before_its_first_batch() -> None:
    ledger = Ledger(incarnations=(Incarnation(number=1),))
    view = LedgerView(registration("a").publisher, ledger, None)
    document: GapsDocument = gaps_document([view], "", PublisherFilter())
    [incarnation] = document.publishers[0].incarnations
    assert (incarnation.first_sequence, incarnation.last_sequence) == (0, -1)
    assert (incarnation.seen.batches, incarnation.seen.intervals) == (0, [])
