"""What releases do beside their events, by what an engine says of itself."""

import msgspec
import pytest

from doctor.releases import FAULTS, version_of
from schemas.engine_facts import EngineFacts
from schemas.positions import Confirmation, PublisherState
from schemas.registration import PublisherKind
from tests.unit.doctor.conftest import Clinic


def notes(clinic: Clinic, kind: str, version: str) -> list[str]:
    one = msgspec.structs.replace(clinic.register(), kind=PublisherKind(kind))
    clinic.table.registrations[one.publisher] = one
    facts = EngineFacts(version=version)
    said = Confirmation("bridge", facts=facts)
    clinic.has(one, PublisherState(incarnation=1, sequence=3, confirmation=said))
    document = clinic.document()
    assert document.findings == []
    assert {one.code for one in document.notes} <= {"release"}
    return [one.cause.partition(", and ")[2] for one in document.notes]


@pytest.mark.parametrize(
    ("kind", "version", "words"),
    [
        ("vLLM", "0.16.2", ["salts and images"]),
        ("vLLM", "v0.17.0", []),
        ("vLLM", "0.28.1.dev3+g0123", ["SimpleCPUOffloadConnector"]),
        ("vLLM", "0.30.0", []),
        ("vLLM", "dev", []),
        ("vLLM", "0.0.0", []),
        ("SGLang", "0.5.5", ["hangs on", "clears alone", "salts"]),
        ("SGLang", "0.5.17.post1", ["salts", "comes back"]),
        ("SGLang", "0.5.23", []),
        ("TensorRT-LLM", "0.5.5", []),
    ],
)
def test_a_release_is_named_where_its_events_leave_something_out(
    clinic: Clinic, kind: str, version: str, words: list[str]
) -> None:
    found = notes(clinic, kind, version)
    assert len(found) == len(words)
    assert all(word in one for word, one in zip(words, found, strict=True))


def test_each_fault_ends_with_a_release() -> None:
    for fault in FAULTS:
        assert fault.since < fault.before
        assert version_of(".".join(map(str, fault.since))) == fault.since


def test_an_engine_that_does_not_say_its_release_has_no_note(clinic: Clinic) -> None:
    one = clinic.register()
    state = PublisherState(incarnation=1, sequence=3, confirmation=Confirmation("bridge"))
    clinic.has(one, state)
    assert clinic.document().notes == []
