"""Engines that announce cached blocks again: what a router is answered once they are removed."""

import uuid
from collections.abc import Iterator

import pytest

from schemas.limits import HIT_REPORT_SCORE
from simulation.engines.publisher import Publisher, PublisherOptions
from simulation.engines.wire import BlockRemoved, BlockStored
from tests.contract.deployments import Deployment, Distributed, Embedded, Tenant, tenant_of
from tests.kafka_fixtures import own_topics, settings_for

pytestmark = pytest.mark.timeout(180)

TOKENS = list(range(2000, 2064))


@pytest.fixture(scope="module", params=["embedded", pytest.param("kafka", marks=pytest.mark.slow)])
def deployment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "embedded":
        yield from closing(Embedded(directory))
        return
    kafka = request.getfixturevalue("kafka")
    with own_topics(kafka) as prefix:
        yield from closing(Distributed.round(settings_for(kafka, prefix), directory))


def closing(opened: Deployment) -> Iterator[Deployment]:
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def tenant(deployment: Deployment) -> Iterator[Tenant]:
    with tenant_of(deployment, f"t-{uuid.uuid4().hex[:8]}") as tenant:
        yield tenant


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    opened = Publisher(PublisherOptions())
    yield opened
    opened.close()


def chain(first: int, end: int) -> BlockStored:
    """These blocks of the prompt, each with a hash that is its number from 1 on."""
    return BlockStored(
        block_hashes=list(range(first + 1, end + 1)),
        parent_block_hash=first or None,
        token_ids=TOKENS[16 * first : 16 * end],
        block_size=16,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )


def remove(*hashes: int) -> BlockRemoved:
    return BlockRemoved(block_hashes=list(hashes), medium="GPU")


def test_where_it_is_registered_one_removal_is_enough(tenant: Tenant, publisher: Publisher) -> None:
    tenant.connect(publisher, kv_cache_report_mode="full")
    publisher.publish([chain(0, 3)])
    publisher.publish([chain(0, 3), chain(3, 4)])
    publisher.publish([chain(0, 2)])
    tenant.await_longest(TOKENS, 64)
    publisher.publish([remove(4)])
    tenant.await_longest(TOKENS, 48)
    publisher.publish([remove(3, 2)])
    tenant.await_longest(TOKENS, 16)
    assert tenant.metric("reprise_bridge_reports_total") == 3


def test_it_is_found_out_and_what_was_counted_twice_is_taken_back(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher)
    publisher.publish([chain(0, 4)])
    for _ in range(HIT_REPORT_SCORE):
        publisher.publish([chain(0, 3)])
    tenant.await_longest(TOKENS, 64)
    publisher.publish([remove(4, 3)])
    tenant.await_longest(TOKENS, 32)
    assert "announces cached blocks again as stored" in tenant.deployment.log()


def test_one_that_has_two_copies_holds_the_second_one(tenant: Tenant, publisher: Publisher) -> None:
    tenant.connect(publisher)
    publisher.publish([chain(0, 4)])
    publisher.publish([chain(0, 4)])
    publisher.publish([remove(4, 3), remove(2)])
    tenant.await_longest(TOKENS, 64)
    publisher.publish([remove(4)])
    tenant.await_longest(TOKENS, 48)
