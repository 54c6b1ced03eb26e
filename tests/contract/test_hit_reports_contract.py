"""Engines that announce cached blocks again: what a router is answered once they are removed."""

import pytest

from schemas.limits import HIT_REPORT_SCORE
from simulation.engines.publisher import Publisher
from simulation.engines.wire import BlockRemoved, BlockStored
from tests.contract.deployments import Tenant

pytestmark = pytest.mark.timeout(180)

TOKENS = list(range(2000, 2064))


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
