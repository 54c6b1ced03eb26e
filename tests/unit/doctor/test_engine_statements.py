"""What is found wrong by what engines say of themselves."""

from typing import Any

import msgspec
import pytest

from doctor.document import Finding
from schemas.answer_states import Doubt
from schemas.engine_facts import EngineFacts
from schemas.positions import Confirmation, PublisherState
from schemas.registration import Registration
from tests.unit.doctor.conftest import Clinic


def says(clinic: Clinic, one: Registration, clock_s: float = 0.0, **facts: Any) -> None:
    said = Confirmation("b", facts=EngineFacts(**facts), clock_s=clock_s)
    clinic.has(one, PublisherState(incarnation=1, sequence=3, confirmation=said))


def only(clinic: Clinic) -> Finding:
    (found,) = clinic.findings()
    return found


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"publishes": False}, "events_off"),
        ({"caches": False}, "prefix_caching_off"),
        ({"is_asleep": True}, "asleep"),
    ],
)
def test_what_is_switched_off_is_found(clinic: Clinic, facts: dict[str, Any], code: str) -> None:
    one = clinic.register()
    unsaid: dict[str, Any] = dict.fromkeys(facts)
    says(clinic, one, **unsaid)
    assert clinic.codes() == []
    says(clinic, one, **{name: not value for name, value in facts.items()})
    assert clinic.codes() == []
    says(clinic, one, **facts)
    assert clinic.codes() == [code]


def test_a_model_by_another_name_is_found_unless_routers_use_the_registered_one(
    clinic: Clinic,
) -> None:
    one = clinic.register()
    says(clinic, one, models=("m", "adapter"))
    assert clinic.codes() == []
    says(clinic, one, models=("llama", "adapter"))
    found = only(clinic)
    assert (found.code, found.expected, found.got) == ("model_name", "m", "llama, adapter")
    assert '"modelname": "llama"' in found.remedy
    clinic.serves(1, promised=800, cached=800)
    assert clinic.codes() == []
    clinic.doubts("a", Doubt.MODEL_CHANGED, 0.0)
    assert clinic.codes() == ["model_name"]


def test_another_block_size_is_found_before_the_first_block(clinic: Clinic) -> None:
    one = clinic.register()
    says(clinic, one, block_size=4)
    assert clinic.codes() == []
    says(clinic, one, block_size=32)
    assert (only(clinic).code, only(clinic).got) == ("block_size", "32")
    publisher = clinic.table.kernel.open_publisher(one.stream, 0)
    clinic.table.store(publisher, range(4), hashes=[1])
    assert clinic.codes() == []  # its events are right, whatever its metrics call a block


def test_ranks_that_are_not_registered_are_named(clinic: Clinic) -> None:
    def at(rank: int, instance_id: str = "a") -> None:
        one = clinic.register(instance_id, dp_rank=rank)
        one = msgspec.structs.replace(one, http_endpoint="http://e:1")
        clinic.table.registrations[one.publisher] = one
        says(clinic, one, ranks=(0, 1, 2))

    at(0)
    found = only(clinic)
    assert (found.code, found.expected, found.got) == ("ranks", "0, 1, 2", "0")
    at(1)
    assert only(clinic).remedy.endswith(": 2")
    at(2, "a-2")  # by a name of its own
    assert clinic.codes() == []


@pytest.mark.parametrize(("clock_s", "got"), [(3600.0, "-3,600 s"), (-60.0, "+60 s")])
def test_a_clock_that_is_far_off_is_found(clinic: Clinic, clock_s: float, got: str) -> None:
    one = clinic.register()
    says(clinic, one, clock_s=clock_s)
    assert (only(clinic).code, only(clinic).got) == ("clock", got)


def test_more_than_its_engine_has_room_for_is_found(clinic: Clinic) -> None:
    one = clinic.register()
    says(clinic, one, blocks=10)
    publisher = clinic.table.kernel.open_publisher(one.stream, 0)
    clinic.table.store(publisher, range(4 * 16), hashes=range(1, 17))
    assert (only(clinic).code, only(clinic).expected) == ("never_removes", "at most 10")


def test_the_document_has_what_each_engine_says(clinic: Clinic) -> None:
    one = clinic.register()
    says(clinic, one, version="0.33.0", models=("m",), block_size=4)
    (rank,) = clinic.document().instances[0].ranks
    assert rank.engine is not None
    assert (rank.engine.version, rank.engine.models, rank.engine.block_size) == ("0.33.0", ["m"], 4)
