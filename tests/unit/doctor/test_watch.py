"""The standing condition while outcomes contradict what is answered."""

import pytest

from doctor.watch import OutcomeWatch
from schemas.conditions import Conditions
from tests.unit.doctor.conftest import NOW, Clinic


@pytest.fixture
def conditions() -> Conditions:
    return Conditions(lambda: NOW)


def watch_of(clinic: Clinic, conditions: Conditions) -> OutcomeWatch:
    return OutcomeWatch(
        clinic.table,
        clinic.service.router,
        conditions,
        on_fault=lambda: None,
        clock=lambda: NOW,
    )


def test_it_begins_with_enough_outcomes_and_ends_with_as_many_good_ones(
    clinic: Clinic, conditions: Conditions
) -> None:
    clinic.register()
    watch = watch_of(clinic, conditions)
    clinic.serves(19, promised=0, cached=1200)
    watch.look()
    assert conditions.all() == ()
    clinic.serves(1, promised=0, cached=1200)
    watch.look()
    (condition,) = conditions.all()
    assert (condition.part, condition.reason) == ("outcomes", "matches_nothing")
    assert condition.message.startswith(
        "outcomes contradict what is said of 1 of 1 instances: default/a (m) is said to hold"
        " nothing, and holds much: the index has no block of it"
    )
    for _ in range(2):
        clinic.minute += 1
        clinic.serves(10, promised=1200, cached=1200)
    watch.look()
    assert conditions.all() == ()


def test_of_who_is_not_registered_any_more_nothing_is_said(
    clinic: Clinic, conditions: Conditions
) -> None:
    one = clinic.register()
    clinic.serves(20, promised=1200, cached=0)
    watch = watch_of(clinic, conditions)
    watch.look()
    assert conditions.all()[0].reason == "matches_more"
    del clinic.table.registrations[one.publisher]
    watch.look()
    assert conditions.all() == ()


def test_what_agrees_is_no_condition(clinic: Clinic, conditions: Conditions) -> None:
    clinic.register()
    clinic.serves(50, promised=800, cached=800)
    watch = watch_of(clinic, conditions)
    watch.look()
    watch.stop()
    assert conditions.all() == ()
