"""What routing had to forget is counted, by what it is."""

import time
from pathlib import Path

import pytest

from query_api.routing import answers as kept
from query_api.routing.answers import KeptAnswers
from query_api.routing.interface import Routed, RouteRequest
from reprise.embedded.routing import RoutingLog
from reprise.metrics.routing import ROUTING
from schemas.conditions import Conditions
from schemas.identities import PrefixScope
from schemas.limits import HOT_SCOPES_MAX
from schemas.routing_records import LoadSample, LoadSource, PrefixMark, Target
from streams.routing import samples
from tests.unit.streams.routing.decisions import SCOPE, decision

MARKS = (PrefixMark(1, 7),)


def forgotten(log: RoutingLog) -> dict[str, float]:
    """By what it is; nothing that is 0."""
    (family,) = [one for one in ROUTING if one.name == "reprise_routing_forgotten"]
    found = {labels[0]: value for labels, value in family.samples(log)}
    assert {"answers", "selections", "samples", "promises", "promise_rows", "hot_scopes"} <= set(
        found
    )
    return {name: value for name, value in found.items() if value}


def test_each_bound_that_was_reached_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RoutingLog(tmp_path / "routing", age_max_s=1e9, conditions=Conditions(time.time))
    assert forgotten(log) == {}
    for number in range(HOT_SCOPES_MAX + 3):
        scope = SCOPE._replace(model_name=f"m{number}")
        log.queue.push_decision(1, decision(number, scope=scope, marks=MARKS))
    log.write()
    assert forgotten(log) == {"hot_scopes": 3}

    monkeypatch.setattr(samples, "LOAD_TARGETS_MAX", 2)
    log.live.note(
        LoadSample(Target("default", name, 0), 100.0, LoadSource.POSTED, waiting=1)
        for name in "abcd"
    )
    assert forgotten(log) == {"hot_scopes": 3, "samples": 2}

    monkeypatch.setattr(kept, "ROUTE_ANSWERS_MAX", 2)
    answers = KeptAnswers(log.live.forgotten)
    for number in range(5):
        asked = RouteRequest(f"r{number}", PrefixScope(*SCOPE), 1000, [])
        answers.keep(asked, Routed(1, decision(number), 0.0, None, ("", "")))
    assert forgotten(log) == {"hot_scopes": 3, "samples": 2, "answers": 3}
    log.stop()
