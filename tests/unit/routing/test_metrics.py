"""What routing had to forget, and what became of promises, is counted."""

import random
import time
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from routing import by_target
from routing.decisions import answers as kept
from routing.decisions.answers import KeptAnswers
from routing.decisions.interface import RoutedDecision, RouteRequest
from routing.log.embedded import RoutingLog
from routing.metrics import ROUTING
from routing.observed.hot_prefixes import HOT_SCOPES_MAX
from routing.observed.promise_totals import Totals
from schemas.identities import PrefixScope
from schemas.metric_family import Family, RoleCollector, Samples
from schemas.routing_records import (
    LoadSample,
    LoadSource,
    OutcomeEvent,
    PrefixMark,
    Target,
)
from tests.routing import routing_log
from tests.unit.routing.observed.records import RUN, a_decision, an_outcome
from tests.unit.routing.sample_decisions import SCOPE, decision

MARKS = (PrefixMark(1, 7),)


def samples_of(log: RoutingLog, name: str) -> Samples:
    (family,) = [one for one in ROUTING if one.name == name]
    assert isinstance(family, Family)
    return family.samples(log)


def forgotten(log: RoutingLog) -> dict[str, float]:
    """By what it is; nothing that is 0."""
    found = {labels[0]: value for labels, value in samples_of(log, "reprise_routing_forgotten")}
    assert {"answers", "selections", "samples", "promises", "promise_rows", "hot_scopes"} <= set(
        found
    )
    return {name: value for name, value in found.items() if value}


def test_each_bound_that_was_reached_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = routing_log(tmp_path)
    assert forgotten(log) == {}
    for number in range(HOT_SCOPES_MAX + 3):
        scope = SCOPE._replace(model_name=f"m{number}")
        log.queue.push_decision(1, decision(number, scope=scope, marks=MARKS))
    log.writer.write()
    assert forgotten(log) == {"hot_scopes": 3}

    monkeypatch.setattr(by_target, "LOAD_TARGETS_MAX", 2)
    log.live.note(
        LoadSample(Target("default", name, 0), 100.0, LoadSource.POSTED, waiting=1)
        for name in "abcd"
    )
    assert forgotten(log) == {"hot_scopes": 3, "samples": 2}

    monkeypatch.setattr(kept, "ROUTE_ANSWERS_MAX", 2)
    answers = KeptAnswers(log.live.forgotten)
    for number in range(5):
        asked = RouteRequest(f"r{number}", PrefixScope(*SCOPE), 1000, [])
        answers.keep(asked, RoutedDecision(1, decision(number), 0.0, None, ("", "")))
    assert forgotten(log) == {"hot_scopes": 3, "samples": 2, "answers": 3}
    log.stop()


def test_counters_of_promises_are_the_sums_of_all_rows(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    log = routing_log(tmp_path)
    now = time.time()
    for number in range(60):
        held = 16 * chance.randrange(80)
        cached = min(held, 16 * chance.randrange(80))
        one = a_decision(number, prompt=2000, cached=cached, held=held, predicted_s=0.5)
        log.queue.push_decision(RUN, msgspec.structs.replace(one, time=now))
        if chance.random() < 0.9:
            event = chance.choice(list(OutcomeEvent))
            outcome = an_outcome(
                number,
                event,
                cached_tokens=None if chance.random() < 0.2 else 16 * chance.randrange(125),
                ttft_s=chance.choice([None, chance.random()]),
            )
            log.queue.push_outcomes([(RUN, msgspec.structs.replace(outcome, time=now))])
    log.writer.write()
    whole = Totals()
    for row in log.folded.read(lambda fold: fold.observations.totals.rows()).values():
        whole.add(row)
    registry, collector = CollectorRegistry(), RoleCollector()
    collector.add(ROUTING, lambda: log)
    registry.register(collector)
    exposed = [
        sample
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    ]
    found = {
        (sample.name.removeprefix("reprise_routing_"), *sample.labels.values()): sample.value
        for sample in exposed
    }
    assert min(whole.reported, whole.timed, whole.index) > 0, f"seed {seed}"
    for name in ("prompt", "promised", "actual", "unpromised"):
        assert found["tokens_total", name] == getattr(whole, name), f"seed {seed}"
    for name in ("reported", "unreported", "failed", "cancelled"):
        assert found["outcomes_total", name] == getattr(whole, name), f"seed {seed}"
    lost: dict[str, float] = {}
    for sample in exposed:
        if sample.name == "reprise_routing_lost_tokens_total":
            share = sample.labels["share"]
            lost[share] = lost.get(share, 0.0) + sample.value
    assert lost == {
        "workload": whole.workload,
        "routing": whole.routing,
        "index": whole.index,
    }, f"seed {seed}"
    assert found["decisions_total", "chosen"] + found["decisions_total", "refused"] == 60
    assert (
        found["ttft_ratio_bucket", "+Inf"]
        == found["timed_total", "yes"] + found["timed_total", "no"]
    )
    assert found["ttft_ratio_bucket", "1.0"] == sum(whole.ttft_ratios[:6]), f"seed {seed}"
    assert found["over_promise_bucket", "+Inf"] == whole.reported, f"seed {seed}"
    assert found["ttft_seconds_total", "actual"] == whole.ttft_actual_us / 1e6, f"seed {seed}"
    log.stop()
