"""The simulated fleet: what it sends, who is asked, and what is said of it."""

import json
import time

import msgspec
import pytest

from lab.benchmarks.report.machine import describe_machine
from lab.benchmarks.scaling import probing
from lab.benchmarks.scaling.fleet import followed_max, jobs_of, shares
from lab.benchmarks.scaling.fleet_process import (
    FleetSent,
    PublishersJob,
    SentMessage,
    batch_of,
    events_of,
)
from lab.benchmarks.scaling.fleet_report import FleetPlan, Sample, Summary, table_lines
from lab.benchmarks.scaling.probing import Prober
from lab.engines.wire import BlockRemoved, BlockStored
from schemas.limits import PUBLISHERS_MAX

JOB = PublishersJob(
    address="127.0.0.1", first=5, publishers=3, period_s=1, blocks=2, held=2, told_every=1, seed=7
)
SENT = FleetSent(
    messages=9,
    stored_blocks=18,
    removed_blocks=6,
    last_sequences=[2, 2, 2],
    late_s=0.0,
    cpu_s=0.0,
)


def test_publishers_are_shared_evenly() -> None:
    assert shares(10, 3) == [range(3), range(3, 6), range(6, 10)]
    assert shares(2, 2) == [range(1), range(1, 2)]


def test_a_process_follows_what_its_bound_and_its_files_allow() -> None:
    assert followed_max(20_000) == (20_000 - 1_024 - 200) // 5
    assert followed_max(1_000_000) == PUBLISHERS_MAX
    assert followed_max(10) == 1


def test_jobs_have_addresses_of_their_own_and_tell_of_different_publishers() -> None:
    jobs = jobs_of(FleetPlan(publishers=5_100, seconds=1))
    assert [(job.first, job.publishers) for job in jobs] == [(0, 1700), (1700, 1700), (3400, 1700)]
    assert len({job.address for job in jobs}) == 3
    assert all(job.publishers % job.told_every for job in jobs)


def test_a_batch_stores_a_prompt_and_removes_the_oldest_one() -> None:
    [first] = events_of(JOB, 5, 0)
    assert isinstance(first, BlockStored)
    removed, stored = events_of(JOB, 5, 2)
    assert isinstance(removed, BlockRemoved)
    assert isinstance(stored, BlockStored)
    assert sorted(removed.block_hashes) == sorted(first.block_hashes)
    assert list(stored.token_ids) == batch_of(7, 5, 2, 2).tokens
    assert batch_of(7, 5, 2, 2) != batch_of(7, 6, 2, 2)


class FakeClient:
    """Answers with what `answers` has for it, in turn; the last one again and again."""

    answers: list[object]

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address

    def send(self, request: bytes) -> None:
        assert b"/query?hits_only=1" in request

    def receive(self) -> bytes:
        answers = FakeClient.answers
        return json.dumps(answers.pop(0) if len(answers) > 1 else answers[0]).encode()

    def close(self) -> None: ...


class Lines:
    """What a process of publishers says."""

    def __init__(self, *said: object) -> None:
        self._lines = [msgspec.json.encode(one) for one in said]

    def readline(self) -> bytes:
        return self._lines.pop(0) if self._lines else b""


def ask(monkeypatch: pytest.MonkeyPatch, *answers: object, sequence: int = 0) -> Prober:
    monkeypatch.setattr(probing, "Client", FakeClient)
    monkeypatch.setattr(probing, "ASK_AGAIN_S", 0.0)
    FakeClient.answers = list(answers)
    told = SentMessage(publisher=6, sequence=sequence, at=time.monotonic())
    prober = Prober(JOB, Lines(told, SENT), [("", 1)] * 3, found_s=0.0 if len(answers) == 1 else 60)
    prober.run()
    assert prober.sent == SENT
    return prober


def hit(publisher: int, tokens: int = 32) -> object:
    return {"default": {f"fleet-{publisher}": {"longest_matched": tokens}}}


def test_it_is_asked_until_an_answer_has_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    [one] = ask(monkeypatch, {}, {"default": {}}, hit(6), {}).answered
    assert (one.asked, one.wrong, one.removed_shown) == (3, "", False)
    assert one.seconds is not None


def test_blocks_that_no_answer_has_in_time_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    [one] = ask(monkeypatch, {}).answered
    assert (one.seconds, one.wrong) == (None, "")


@pytest.mark.parametrize("answer", [hit(5), hit(6, 16)])
def test_other_publishers_and_shorter_prefixes_are_wrong(
    monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    [one] = ask(monkeypatch, answer, {}).answered
    assert one.seconds is None
    assert one.wrong.startswith("expected {'fleet-6': 32}, got: ")


def test_what_was_removed_must_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    [one] = ask(monkeypatch, hit(6), hit(6), sequence=2).answered
    assert one.removed_shown
    [one] = ask(monkeypatch, hit(6), {}, sequence=2).answered
    assert not one.removed_shown


def test_a_process_that_ends_too_soon_is_an_error() -> None:
    prober = Prober(JOB, Lines(), [("", 1)] * 3, found_s=0.0)
    prober.run()
    assert prober.error == "the publishers' process has ended"


def test_the_table_of_a_run() -> None:
    sample = Sample(at=10.0, cpu_s=3.0, memory_bytes=200 * 2**20, files=5_100, files_most=2_600)
    summary = Summary(
        machine=describe_machine(),
        plan=FleetPlan(publishers=1_000, seconds=60),
        services=2,
        open_files_limit=20_000,
        registered_s=4.0,
        followed_s=1.0,
        memory_empty_bytes=100 * 2**20,
        memory_followed_bytes=100 * 2**20 + 1_000 * 90 * 1024,
        files_empty=100,
        idle_cpu=0.1,
        busy_cpu=0.25,
        messages=6_000,
        blocks=24_000,
        late_s=0.05,
        publishers_cpu=0.2,
        asked=600,
        missed=3,
        wrong=1,
        removed_shown=1,
        behind=0,
        states={"exact": 999, "degraded missed": 1},
        found_s=(0.012, 0.05, 0.2),
        samples=[sample],
    )
    lines = table_lines(summary)
    assert "| memory of a publisher | 90 KiB |" in lines
    assert "| open files of a publisher | 5.00 |" in lines
    assert "| asked for, found, not found in time, wrong | 600, 596, 3, 2 |" in lines
    assert "| until an answer has a block, p50 / p99 / most | 12 / 50 / 200 ms |" in lines
    assert "| states in the end | 1 degraded missed, 999 exact |" in lines
