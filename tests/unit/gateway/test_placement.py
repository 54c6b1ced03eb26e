"""What the gateway's former process had under way."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from gateway.feature import gateway_feature
from gateway.gateway import Gateway
from gateway.placement import ASKED_BY
from gateway.settings import Affinity, GatewaySettings
from page.summary import SummarySource
from query_api.grpc.grpc_settings import ListenAddress
from query_api.http.feature import HttpParts
from query_api.http.metrics import HttpMetrics
from query_api.http.requests.bodies import Bodies
from routing.decisions.interface import RouteRequest
from routing.decisions.router import Router
from routing.http.decisions import decision_document, decision_summary
from routing.log.embedded import RoutingLog
from schemas.identities import PrefixScope
from schemas.registration import NO_EVENTS, Registration
from schemas.routing_records import Refusal
from tests.fakes import FakeTable, registration
from tests.gateway import World
from tests.routing import routing_log
from tests.unit.gateway.test_exchange import PROMPT, run
from tests.unit.gateway.test_pairs import LONG, pair

SCOPE = PrefixScope("default", "m", "", 16, "")


@pytest.mark.parametrize(("shares_log", "left"), [(False, 1), (True, 2)])
def test_requests_of_a_killed_gateway_end_at_its_next_start(
    tmp_path: Path, shares_log: bool, left: int
) -> None:
    table = FakeTable()
    engine = Registration(
        endpoint="",
        kind=NO_EVENTS,
        model_name="m",
        instance_id="a",
        block_size=16,
        http_endpoint="http://127.0.0.1:1",
    )
    asyncio.run(table.register(engine))
    log = _log(tmp_path)
    router = Router(table, log.queue, log.live)
    router.route(RouteRequest("", SCOPE, 100, [], asked_by=ASKED_BY))
    router.route(RouteRequest("", SCOPE, 100, []))
    log.stop()

    log = _log(tmp_path)
    router = Router(table, log.queue, log.live, shares_log=shares_log)
    assert log.live.counts()["under_way"] == 2
    asyncio.run(_opened(Gateway(GatewaySettings(), table, table, router)))
    assert log.live.counts()["under_way"] == left
    log.stop()
    log = _log(tmp_path)
    assert log.folded.read(lambda fold: len(fold.bookings)) == left
    log.stop()


def test_requests_of_the_gateway_can_be_told_in_the_log() -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        assert (await found.client.post(PROMPT)).status == 200
        [last] = found.router.live.recent(1, lambda tenant: True)
        assert last.decision.request_id.startswith(ASKED_BY)

    run(scenario)


def test_engines_that_no_link_leads_to_yet_are_chosen_by_what_they_hold() -> None:
    async def scenario(found: World) -> None:
        urls = {name: (await found.add(name)).url for name in ("a", "b", "c")}
        found.table.registrations.clear()
        publishers = {
            name: found.table.add(registration(name, block_size=16, http_endpoint=url))
            for name, url in urls.items()
        }
        found.table.connected = False
        found.table.store(publishers["b"], range(64), hashes=range(4), block_size=16)
        body = {"model": "m", "prompt": list(range(70)), "max_tokens": 1}
        for _ in range(4):
            answer = await found.client.post(body, path="/v1/completions")
            assert (answer.status, answer.header("reprise-by-load")) == (200, "no_candidate")
        [last] = found.router.live.recent(1, lambda tenant: True)
        shown = decision_summary(last)
        assert (shown.refused, shown.by_load) == ("no_candidate", "no_candidate")
        assert found.seen() == {"a": 0, "b": 4, "c": 0}
        other = {"model": "m", "prompt": list(range(100, 170)), "max_tokens": 1}
        for _ in range(3):
            await found.client.post(other, path="/v1/completions")
        assert found.seen() == {"a": 1, "b": 5, "c": 1}, "in turn"

    run(scenario)


def test_decision_without_the_index_says_so_for_as_long_as_it_is_kept() -> None:
    async def scenario(found: World) -> None:
        await found.add("a")
        by_load = (await found.client.post(PROMPT)).header("reprise-decision")
        tokens = {"model": "m", "prompt": list(range(70)), "max_tokens": 1}
        by_index = (await found.client.post(tokens, "/v1/completions")).header("reprise-decision")
        found.table.ready = False
        await found.client.post(tokens, "/v1/completions")
        kept = found.router.live.recent(9, lambda tenant: True)
        named = [(one.decision_id, one.by_load) for one in map(decision_document, kept)]
        assert named[1:] == [(by_index, ""), (by_load, "no_tokenizer")]
        assert named[0][1] == "stale"
        assert all(one.outcomes for one in kept), "a report leaves it as it is"

    run(scenario)


def test_decisions_are_among_what_the_page_says_was_asked() -> None:
    async def scenario(found: World) -> None:
        metrics = HttpMetrics(CollectorRegistry(), Bodies())
        make = gateway_feature(found.gateway)
        make(cast(HttpParts, SimpleNamespace(view=found.table, metrics=metrics)))
        source = SummarySource(found.table, metrics, found.router, "1")
        engine = await found.add("a")
        found.table.registrations.clear()
        publisher = found.table.add(registration("a", block_size=16, http_endpoint=engine.url))
        found.table.store(publisher, range(64), hashes=range(4), block_size=16)
        body = {"model": "m", "prompt": list(range(80)), "max_tokens": 1}
        for _ in range(3):
            assert (await found.client.post(body, path="/v1/completions")).status == 200
        assert (await found.client.post(PROMPT)).header("reprise-by-load") == "no_tokenizer"
        asked = (source.summary().queries or {})["gateway"]
        assert (asked.count, asked.tokens, asked.hit_tokens) == (4, 240, 64 + 2 * 80), (
            "the first one's blocks are predicted"
        )
        assert source.counted().queries == source.summary().queries

    run(scenario)


async def _opened(gateway: Gateway) -> None:
    await gateway.open()
    await gateway.close()


def _log(directory: Path) -> RoutingLog:
    return routing_log(directory)


def test_session_whose_engine_takes_a_part_alone_costs_one_decision() -> None:
    async def scenario(found: World) -> None:
        await pair(found)
        for _ in range(3):
            assert (await found.client.post(LONG, "/v1/completions")).status == 200
        found_decisions = found.router.live.recent(9, lambda tenant: True)
        assert [one.decision.refused for one in found_decisions] == [Refusal.NO] * 3

    run(scenario, settings=GatewaySettings(listen=ListenAddress(), affinity=Affinity.HARD))
