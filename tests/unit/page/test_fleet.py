"""Documents of a service are joined by instance."""

from typing import Any

import msgspec
import pytest

from page.fleet import FleetDocuments, InstanceRow, instance_rows
from query_api.http.models import Services, TableDigest
from reprise.application import create_app
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from schemas.identities import LEFT_OUT, REPEATED
from tests.fakes import AsgiClient, FakeTable


@pytest.fixture
def client(table: FakeTable) -> AsgiClient:
    router = Router(table, RoutingQueue(), LiveLoad())
    return AsgiClient(create_app(table, table, router=router))


def register(client: AsgiClient, **fields: object) -> None:
    given: dict[str, object] = {"type": "vLLM", "modelname": "m", "block_size": 16, "dp_rank": 0}
    answer = client.post_json("/register", given | fields)
    assert answer.status == 200, answer.body


def joined(client: AsgiClient, **documents: Any) -> list[InstanceRow]:
    services = msgspec.json.decode(client.get("/services").body, type=Services).services
    return instance_rows(FleetDocuments(services, **documents))


def test_ranks_and_models_of_an_instance_are_one_row(client: AsgiClient) -> None:
    register(client, endpoint="tcp://127.0.0.1:1", instance_id="a")
    register(client, endpoint="tcp://127.0.0.1:2", instance_id="a", dp_rank=1)
    register(client, endpoint="tcp://127.0.0.1:3", instance_id="a", modelname="n")
    register(client, endpoint="tcp://127.0.0.1:4", instance_id="a", tenant_id="other")
    answer = client.get("/ui/instances")
    assert answer.status == 200
    found = answer.document()
    assert found["count"] == 2
    assert [
        (one["tenant_id"], one["instance_id"], one["publishers"]) for one in found["instances"]
    ] == [("default", "a", 3), ("other", "a", 1)]
    first = found["instances"][0]
    assert (first["models"], first["blocks"], first["requests"]) == (["m", "n"], 0, 0)


def test_what_no_answer_counts_is_no_block_of_an_instance(client: AsgiClient) -> None:
    """A block that was announced again without a medium, which may be a copy, counted twice."""
    register(client, endpoint="tcp://127.0.0.1:1", instance_id="a")
    names = {"tenant_id": "default", "model_name": "m", "block_size": 16, "additional_salt": ""}
    digest = client.get("/digest").document()
    digest["contexts"] = [
        names | {"lora_name": lora, "instance_id": "a", "digest": "0" * 16, "entries": 3}
        for lora in ("", REPEATED, f"{LEFT_OUT}unresolved")
    ]
    (row,) = joined(client, table=msgspec.convert(digest, TableDigest))
    assert row.blocks == 3


def test_what_cannot_be_had_is_not_known_of_an_instance(client: AsgiClient) -> None:
    register(client, endpoint="tcp://127.0.0.1:1", instance_id="a")
    (row,) = joined(client)
    assert (row.blocks, row.lost_batches, row.requests) == (None, None, None)
