"""Which instances a segment belongs to, and what `GET /memory` shows."""

import msgspec
import pytest

from query_api.segments import SegmentOwners, segment_views
from schemas.answer_states import AnswerState, Standing
from schemas.memory_segments import MEMORY_FORGOTTEN_S, MEMORY_GONE_S, SegmentKey, SegmentState
from schemas.registration import Registration
from tests.fakes import AsgiClient, FakeTable, registration

A = SegmentKey("node-1", "kvcached_vLLM_4711")


def state(**changes: object) -> SegmentState:
    known = SegmentState(
        bridge="b-1",
        inode=7,
        total=1000,
        used=400,
        preallocated=100,
        observed_at=990.0,
        changed_at=950.0,
        since=900.0,
    )
    return msgspec.structs.replace(known, **changes)


def named(segment: str, instance: str = "a", *, dp_rank: int = 0) -> Registration:
    one = registration(instance, dp_rank=dp_rank, endpoint=f"tcp://{instance}:{5557 + dp_rank}")
    return msgspec.structs.replace(one, memory_segment=segment)


@pytest.mark.parametrize(
    ("pattern", "is_its"),
    [
        ("kvcached_vLLM_4711", True),
        ("kvcached_vLLM_4712", False),
        ("kvcached_vLLM_471", False),
        ("KVCACHED_vLLM_4711", False),
        ("kvcached_*", True),
        ("*_471?", True),
        ("kvcached_vLLM_471[0-5]", True),
        ("kvcached_vLLM_471[!0-5]", False),
        ("node-1/kvcached_vLLM_4711", True),
        ("node-2/kvcached_vLLM_4711", False),
        ("node-?/kvcached_*", True),
        ("node-2/*", False),
        ("node-1/*", True),
        ("node-2/kvcached_*", False),
        ("node-?/kvcached_vLLM_4711", True),
        ("node-?/kvcached_vLLM_4712", False),
        ("*/kvcached_SGLang_*", False),
        ("*/*", True),
        ("/kvcached_vLLM_4711", True),
        ("node-1/", False),
        ("", False),
        ("[", False),
        ("[z-a]*", False),
        ("*" * 1024, True),
        ("*a" * 512, False),
    ],
)
def test_a_registration_names_a_segment_or_a_pattern_of_it(pattern: str, is_its: bool) -> None:
    one = named(pattern)
    assert SegmentOwners([one]).of(A) == ((one,) if is_its else ())


def test_a_segment_may_belong_to_several_and_one_may_have_several() -> None:
    ranks = [named("kvcached_*", dp_rank=rank) for rank in (1, 0)]
    other = named(A.segment, "b")
    owners = SegmentOwners([other, *ranks, registration("c")])
    assert owners.of(A) == (ranks[1], ranks[0], other)
    assert owners.of(SegmentKey("node-2", "kvcached_x")) == (ranks[1], ranks[0])
    assert owners.of(SegmentKey("node-2", "x")) == ()


def test_segments_are_shown_sorted_with_what_they_are_worth() -> None:
    other = SegmentKey("node-0", "z")
    views = segment_views({A: state(), other: state(gone=True)}, [named("kvcached_*")], now=1000.0)
    assert [one.key for one in views] == [other, A]
    assert [one.standing for one in views] == ["gone", "live"]
    assert [one.age_s for one in views] == [10.0, 10.0]
    assert [len(one.instances) for one in views] == [0, 1]
    [ahead] = segment_views({A: state(observed_at=1001.0)}, (), now=1000.0)
    assert (ahead.standing, ahead.age_s) == ("live", 0.0), "its clock is ahead of ours"


def test_what_a_table_may_forget_is_not_shown(table: FakeTable) -> None:
    """It forgets with its next record of a segment, which may not come."""
    segments = {A: state(), SegmentKey("node-0", "z"): state(gone=True)}

    def shown(after_s: float) -> list[str]:
        views = segment_views(segments, (), now=990.0 + after_s)
        return [one.standing.value for one in views]

    assert shown(MEMORY_GONE_S) == ["gone", "stale"]
    assert shown(MEMORY_GONE_S + 1) == ["stale"]
    assert shown(MEMORY_FORGOTTEN_S) == ["stale"]
    assert shown(MEMORY_FORGOTTEN_S + 1) == []


def test_memory_is_answered_in_both_forms(table: FakeTable, client: AsgiClient) -> None:
    table.segments = {A: state(writer="alive"), SegmentKey("node-2", "x"): state()}
    one = named("node-1/kvcached_*")
    table.registrations[one.publisher] = one
    table.standings["a"] = Standing(AnswerState.UNCONFIRMED, "disconnected", 5.0)
    expected = {
        "host": "node-1",
        "segment": "kvcached_vLLM_4711",
        "state": "live",
        "total": 1000,
        "used": 400,
        "preallocated": 100,
        "pressure": 0.5,
        "instances": [
            {
                "tenant_id": "default",
                "model_name": "m",
                "instance_id": "a",
                "dp_rank": 0,
                "state": "unconfirmed",
                "reason": "disconnected",
            }
        ],
        "writer": "alive",
        "age": 10.0,
        "observed_at": 990.0,
        "changed_at": 950.0,
        "since": 900.0,
        "inode": 7,
        "bridge": "b-1",
    }
    document = client.get("/memory").document()
    assert document["count"] == 2
    assert document["segments"][0] == expected
    assert document["segments"][1]["host"] == "node-2"
    assert document["segments"][1]["instances"] == [], "nobody names it, and it is shown"
    packed = client.get("/memory", accept="application/msgpack")
    assert packed.headers["content-type"] == "application/msgpack"
    assert packed.document() == document


def test_without_segments_it_is_empty(client: AsgiClient) -> None:
    assert client.get("/memory").document() == {"count": 0, "segments": []}


def test_a_registration_is_shown_with_its_segment(table: FakeTable, client: AsgiClient) -> None:
    body = {
        "endpoint": "tcp://a:1",
        "type": "vLLM",
        "modelname": "m",
        "instance_id": "a",
        "block_size": 4,
        "dp_rank": 0,
        "memory_segment": "kvcached_*",
    }
    assert client.post_json("/register", body).status == 200
    [service] = client.get("/services").document()["services"]
    assert service["MemorySegment"] == "kvcached_*"
    reply = client.post_json("/register", body | {"memory_segment": "other"})
    assert reply.document()["reason"] == "invalid_registration", "it is another registration"
