"""What is booked at an instance that is unregistered does not pass to its successor."""

import msgspec
import pytest

from routing.decisions.live_load import LiveLoad
from routing.decisions.targets import unregistered_of
from routing.decisions.unbooked_load import TypicalRequest
from schemas.registration import Registration
from schemas.routing_records import LoadSample, LoadSource, Target, UnregisteredEngine
from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.test_endpoint import register, route

A = Target("default", "a", 0)


def gone(service: Service) -> Registration:
    """`a`, with ten requests under way and a long queue by its own word, is unregistered."""
    register(service, "a")
    for _ in range(10):
        route(service)
    service.router.observe([LoadSample(A, service.clock.now, LoadSource.SCRAPED, waiting=500)])
    [one] = service.table.registered()
    del service.table.registrations[one.publisher]
    service.router.forget([one])
    return one


def carried(live: LiveLoad, service: Service) -> tuple[float, int]:
    [found] = live.carried([A], service.clock.now, TypicalRequest(1.0, 1000.0, 0.001), {})
    return found.wait_s, found.requests


def test_a_successor_of_the_name_begins_with_nothing(service: Service) -> None:
    gone(service)
    assert service.live.counts()["released"] == 10
    register(service, "a")
    assert carried(service.live, service) == (0.0, 0)
    service.write()
    fold = service.folded.read(lambda fold: fold)
    assert (len(fold.bookings), fold.bookings.released, fold.samples.all()) == (0, 10, ())


def test_what_the_successor_was_sent_stays_when_the_log_brings_the_record(service: Service) -> None:
    gone(service)
    register(service, "a")
    route(service)
    service.write()
    assert carried(service.live, service)[1] == 1
    assert service.folded.read(lambda fold: len(fold.bookings)) == 1


def test_another_service_learns_of_it_by_the_log(service: Service) -> None:
    other = LiveLoad()
    gone(service)
    for offset, record in enumerate(service.queue.take(service.clock.now)):
        other.follow(offset, record, service.clock.now)
    assert carried(other, service) == (0.0, 0)


def test_a_report_of_what_was_released_has_come_too_late(service: Service) -> None:
    register(service, "a")
    answer = route(service)
    [one] = service.table.registered()
    service.router.forget([one])
    told = {"decision_id": answer["decision_id"], "event": "completed"}
    reply = service.client.post_json("/feedback", told)
    assert msgspec.json.decode(reply.body)["repeated"] == 1


@pytest.mark.parametrize("left", ["block_size", "model_name", "tenant_id", "dp_rank"])
def test_only_what_it_serves_no_more_is_gone(service: Service, left: str) -> None:
    """An engine may be registered for several block sizes, and serve several models."""
    register(service, "a")
    [one] = service.table.registered()
    value = {"block_size": 32, "model_name": "n", "tenant_id": "t", "dp_rank": 1}[left]
    other = msgspec.structs.replace(one, **{left: value})
    expected = [] if left == "block_size" else [UnregisteredEngine(A, "m")]
    assert unregistered_of([one], [one, other]) == expected
    assert len(unregistered_of([one, other], [])) == (1 if left == "block_size" else 2)


def test_bookings_of_its_other_models_stay(service: Service) -> None:
    register(service, "a")
    register(service, "a", dp_rank=1)
    first, second = (
        route(service, candidates=[{"instance_id": "a", "dp_rank": n}]) for n in (0, 1)
    )
    assert first["prefill"]["dp_rank"] != second["prefill"]["dp_rank"]
    service.router.forget([one for one in service.table.registered() if one.dp_rank == 0])
    assert service.live.counts()["under_way"] == 1
