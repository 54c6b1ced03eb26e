"""What `GET /doctor` finds of mistakes that are made with real engines, in both forms."""

import zmq

from simulation.engines.publisher import Publisher
from simulation.engines.wire import BlockStored
from tests.contract.deployments import Tenant

BLOCK = range(16)


def test_an_instance_that_works_is_healthy(tenant: Tenant, publisher: Publisher) -> None:
    tenant.connect(publisher, replay_endpoint=publisher.replay_endpoint)
    publisher.publish([BlockStored(block_hashes=[1], token_ids=list(BLOCK), block_size=16)])
    tenant.await_longest(BLOCK, 16)
    tenant.until(lambda: not tenant.findings(), "no findings")
    (instance,) = tenant.examined()
    assert (instance["verdict"], instance["indexed_blocks"]) == ("healthy", 1)
    assert [rank["received"] for rank in instance["ranks"]] == [0]


def test_a_wrong_block_size_is_found_and_ends_when_it_is_mended(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher, replay_endpoint=publisher.replay_endpoint)
    publisher.publish([BlockStored(block_hashes=[1], token_ids=list(range(32)), block_size=32)])
    found = tenant.await_finding("block_size")
    assert (found["expected"], found["got"]) == ("16", "32")
    assert '"block_size": 32' in found["remedy"]
    assert tenant.unregister()[0] == 200
    tenant.connect(publisher, replay_endpoint=publisher.replay_endpoint, block_size=32)
    tenant.await_longest(range(32), 32, block_size=32)
    tenant.until(lambda: not tenant.findings(), "no findings")


def test_an_engine_that_binds_nothing_is_found(tenant: Tenant) -> None:
    """It connects, as vLLM does to an address that is neither a wildcard nor ipc."""
    context = zmq.Context()
    engine = context.socket(zmq.PUB)
    address = "tcp://127.0.0.1:9"
    engine.connect(address)
    body = {"endpoint": address, "type": "vLLM", "modelname": "m", "instance_id": "a"}
    more = {"block_size": 16, "dp_rank": 0, "tenant_id": tenant.tenant_id}
    assert tenant.api.post("/register", body | more)[0] == 200
    found = tenant.await_finding("unreached")
    assert found["expected"] == address
    assert "binds only wildcard" in found["cause"]
    context.destroy(linger=0)
