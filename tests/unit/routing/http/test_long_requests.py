"""A request that runs for long is under way until its end, which is accepted and learned from."""

from typing import Any

import msgspec
import pytest

from routing.fold.booking import BOOKING_EXPIRY_MAX_S, BOOKING_EXPIRY_S
from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.test_endpoint import register, route


def told(service: Service, answer: dict[str, Any], event: str, **fields: Any) -> dict[str, int]:
    body = {"decision_id": answer["decision_id"], "event": event, **fields}
    found: dict[str, int] = msgspec.json.decode(service.client.post_json("/feedback", body).body)
    return found


def passes(service: Service, seconds: float) -> None:
    """So much time, in which others are served."""
    end = service.clock.now + seconds
    while service.clock.now < end:
        service.clock.now = min(service.clock.now + 50.0, end)
        told(service, route(service), "completed")
        service.write()


def ends(service: Service, answer: dict[str, Any]) -> None:
    outputs = service.folded.read(lambda fold: fold.estimates.rows().outputs[0].outputs)
    assert service.live.counts()["under_way"] == 1
    ended = told(service, answer, "completed", output_tokens=60_000)
    assert ended == {"accepted": 1, "repeated": 0, "unknown": 0}
    service.write()
    assert service.live.counts()["under_way"] == 0
    learned = service.folded.read(lambda fold: fold.estimates.rows().outputs[0])
    assert learned.outputs == outputs + 1
    assert learned.decode_s > 100.0


def test_its_output_counts(service: Service) -> None:
    register(service, "a")
    told(service, route(service), "completed", output_tokens=1)
    answer = route(service, expected_output_tokens=60_000)
    told(service, answer, "dispatched")
    told(service, answer, "first_token")
    passes(service, 4 * BOOKING_EXPIRY_S)
    ends(service, answer)


def test_each_report_that_it_goes_on_prolongs_it(service: Service) -> None:
    register(service, "a")
    told(service, route(service), "completed", output_tokens=1)
    answer = route(service)
    told(service, answer, "first_token")
    for _ in range(5):
        passes(service, BOOKING_EXPIRY_S - 10.0)
        assert told(service, answer, "progress")["accepted"] == 1
    assert told(service, answer, "progress")["repeated"] == 1, "it is known to live"
    ends(service, answer)
    assert service.folded.read(lambda fold: len(fold.bookings)) == 0


@pytest.mark.parametrize("event", ["dispatched", "first_token"])
def test_what_is_told_again_says_that_it_goes_on_and_counts_once(
    service: Service, event: str
) -> None:
    register(service, "a")
    answer = route(service)
    for _ in range(5):
        told(service, answer, event, ttft_ms=5.0)
        passes(service, BOOKING_EXPIRY_S - 10.0)
    assert service.live.counts()["under_way"] == 1
    timed = service.folded.read(lambda fold: fold.estimates.rows().prefill[0].outcomes)
    assert timed == 1


def test_its_promise_is_kept_open(service: Service) -> None:
    register(service, "a", blocks=2)
    answer = route(service, expected_output_tokens=60_000)
    passes(service, 8 * BOOKING_EXPIRY_S)
    told(service, answer, "completed", prompt_tokens=64, cached_tokens=32)
    service.write()
    totals = service.folded.read(lambda fold: fold.observations.totals.noted)
    assert (totals.reported, totals.actual) == (1, 32)


def test_what_nobody_reports_of_ends_however_long_it_was_to_take(service: Service) -> None:
    register(service, "a")
    route(service, expected_output_tokens=2**31 - 1)
    passes(service, BOOKING_EXPIRY_MAX_S + 100.0)
    assert service.live.counts()["under_way"] == 0
    assert service.live.counts()["expired"] == 1
