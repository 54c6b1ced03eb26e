"""Engines that announce cached blocks again: what a router is answered once they are removed."""

import pytest

from lab.engines.publisher import Publisher
from lab.engines.wire import BlockRemoved, BlockStored
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


def await_state(tenant: Tenant, state: str, reason: str) -> None:
    def is_told() -> bool:
        (service,) = tenant.services()
        return (tenant.state(), service["State"], service["Reason"]) == (state, state, reason)

    tenant.until(is_told, f"answers that are {state} ({reason})")


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
    await_state(tenant, "exact", "")


def test_where_nothing_tells_copies_from_reports_what_may_be_gone_is_said(
    tenant: Tenant, publisher: Publisher
) -> None:
    """A chain of four blocks in nine batches; then each of the nine copies goes."""
    tenant.connect(publisher)
    for _ in range(9):
        publisher.publish([chain(0, 4)])
    tenant.await_longest(TOKENS, 64)
    await_state(tenant, "exact", "")
    publisher.publish([remove(1, 2, 3, 4)])
    await_state(tenant, "unconfirmed", "copies_unknown")
    tenant.await_longest(TOKENS, 64)
    for _ in range(8):
        publisher.publish([remove(1, 2, 3, 4)])
    tenant.await_longest(TOKENS, 0)
    await_state(tenant, "exact", "")
    assert "announced more often" in tenant.deployment.log()


def test_who_is_registered_as_not_reporting_is_believed(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher, kv_cache_report_mode="incremental")
    for _ in range(12):
        publisher.publish([chain(0, 3)])
    publisher.publish([remove(1, 2, 3), chain(3, 4)])
    tenant.await_longest(TOKENS, 64)
    await_state(tenant, "exact", "")
