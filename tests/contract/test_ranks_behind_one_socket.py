"""Ranks of an engine that something forwards from one address, each by numbers of its own."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from tests.contract.deployments import Tenant
from tests.contract.test_service_contract import TOKENS, chain
from tests.message_proxy import MessageProxy

pytestmark = pytest.mark.timeout(180)

RANKS = 4


class Engine:
    """Publishers of its ranks, and one address for all."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self.ranks = [Publisher(PublisherOptions(), dp_rank=rank) for rank in range(RANKS)]
        self.proxy = MessageProxy(*(one.endpoint for one in self.ranks))
        tenant.until(lambda: all(one.subscribers for one in self.ranks), "the proxy's links")

    def register(self, rank: int) -> None:
        publisher = self.ranks[rank]
        before = self.proxy.subscribers
        status, answer = self._tenant.register(publisher, endpoint=self.proxy.endpoint)
        assert status == 200, answer
        self._tenant.until(lambda: self.proxy.subscribers > before, "a subscription")

    def restart(self, rank: int) -> None:
        """This rank alone, from number 0 on."""
        before = self.ranks[rank]
        before.close()
        port = int(before.endpoint.rpartition(":")[2]) - rank
        options = PublisherOptions(endpoint=f"tcp://127.0.0.1:{port}")
        self.ranks[rank] = Publisher(options, dp_rank=rank)
        self._tenant.until(lambda: self.ranks[rank].subscribers, "the proxy's link")

    def close(self) -> None:
        self.proxy.close()
        for one in self.ranks:
            one.close()


@pytest.fixture
def engine(tenant: Tenant) -> Iterator[Engine]:
    with ExitStack() as stack:
        yield stack.enter_context(closing(Engine(tenant)))


def by_rank(tenant: Tenant) -> dict[str, int]:
    found: dict[str, int] = tenant.query(TOKENS)["a"]["DP"]
    return found


def standings(tenant: Tenant) -> dict[int, tuple[str, str]]:
    return {one["DPRank"]: (one["State"], one["Reason"]) for one in tenant.services()}


@pytest.mark.both_forms
def test_each_rank_follows_its_own_numbers(tenant: Tenant, engine: Engine) -> None:
    for rank in range(RANKS):
        engine.register(rank)
    for block in range(RANKS):
        for rank, publisher in enumerate(engine.ranks):
            if rank >= block:  # rank n stores n + 1 blocks, and numbers so many batches
                at, first = 16 * block, 100 * rank + block
                parent = first - 1 if block else None
                publisher.publish([chain(first, TOKENS[at : at + 16], parent)])
    held = {"0": 16, "1": 32, "2": 48, "3": 64}
    tenant.until(lambda: by_rank(tenant) == held, "the blocks of each rank")
    tenant.until(lambda: tenant.state() == "exact", "no rank is in doubt")
    _, answer = tenant.api.get(f"/gaps?tenant_id={tenant.tenant_id}")
    assert [one["totals"]["lost"] for one in answer["publishers"]] == [{}] * RANKS

    engine.restart(1)
    engine.ranks[1].publish([chain(500, TOKENS[:16])])
    tenant.until(lambda: by_rank(tenant) == held | {"1": 16}, "rank 1 has begun again")
    tenant.until(lambda: tenant.state() == "exact", "no rank is in doubt")

    engine.ranks[2].publish([chain(600, TOKENS)], lost=True)
    engine.ranks[2].publish([chain(700, TOKENS[:16])])
    tenant.until(lambda: standings(tenant)[2][0] == "degraded", "the loss of rank 2")
    others = {rank: state for rank, (state, _) in standings(tenant).items() if rank != 2}
    assert others == {0: "exact", 1: "exact", 3: "exact"}


@pytest.mark.both_forms
def test_a_rank_that_is_not_registered_is_named(tenant: Tenant, engine: Engine) -> None:
    engine.register(0)
    engine.ranks[0].publish([chain(1, TOKENS[:16])])
    tenant.await_longest(TOKENS, 16)
    tenant.until(lambda: tenant.state() == "exact", "rank 0 is in no doubt")
    engine.ranks[3].publish([chain(301, TOKENS)])
    tenant.until(lambda: standings(tenant)[0] == ("unconfirmed", "rank_missing"), "rank 3 is named")
    found = tenant.await_finding("ranks")
    assert (found["dp_ranks"], found["got"]) == ([0], "batches of rank 3")
    engine.register(3)
    tenant.until(lambda: standings(tenant)[0][0] == "exact", "rank 3 is registered")
    assert tenant.longest(TOKENS) == 16
