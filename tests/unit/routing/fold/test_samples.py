"""The newest sample of each target, within a bound that each tenant keeps for itself."""

import pytest

from routing import by_target as module
from routing.fold.samples import Samples
from schemas.routing_records import LoadSample, LoadSource, Target


def sample(tenant: str, number: int, at: float = 100.0) -> LoadSample:
    return LoadSample(Target(tenant, str(number), 0), at, LoadSource.POSTED, waiting=number)


def test_the_newest_counts_whatever_comes_last() -> None:
    samples = Samples()
    assert samples.note(sample("t", 1, 100.0))
    assert not samples.note(sample("t", 1, 99.0))
    newest = samples.newest(Target("t", "1", 0), 100.0)
    assert newest is not None
    assert newest.observed_at == 100.0


def test_what_was_said_of_one_that_is_gone_is_forgotten() -> None:
    samples = Samples()
    samples.note(sample("t", 1))
    for _ in range(2):
        samples.forget(Target("t", "1", 0))
    assert (len(samples), samples.all()) == (0, ())


def test_the_tenant_of_most_targets_loses_its_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_TARGETS_MAX", 8)
    samples = Samples()
    for number in range(3):
        samples.note(sample("quiet", number))
    for number in range(100):
        samples.note(sample("loud", number))
    kept = [(one.target.tenant_id, one.waiting) for one in samples.all()]
    assert [one for one in kept if one[0] == "quiet"] == [("quiet", n) for n in range(3)]
    assert [one for one in kept if one[0] == "loud"] == [("loud", n) for n in range(95, 100)]
    assert samples.dropped == 95


def test_a_restored_one_goes_on_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_TARGETS_MAX", 4)
    samples, restored = Samples(), Samples()
    for number in (3, 1, 2, 1, 0):
        samples.note(sample("t", number))
    restored.restore(samples.all())
    for one in (samples, restored):
        one.note(sample("t", 9))
    assert restored.all() == samples.all()
