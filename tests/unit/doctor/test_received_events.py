"""What is found wrong by what comes of publishers, or does not."""

from typing import Any

import msgspec
import pytest

from bridge.wire.drop_reasons import DropReason
from doctor.document import Finding
from doctor.reasons import REASONS
from query_api.ports import Lag, ServiceView
from schemas.answer_states import AnswerState, Doubt, Standing
from schemas.identities import DEFAULT_TENANT, Medium, PrefixScope
from schemas.positions import Confirmation, PublisherState
from schemas.registration import SGLANG, Registration
from schemas.troubles import Troubles
from streams.kernel.reference import REASONS as LEFT_OUT_REASONS
from tests.unit.doctor.conftest import NOW, Clinic


def only(clinic: Clinic) -> Finding:
    (found,) = clinic.findings()
    return found


def acts(clinic: Clinic, activity: str, since: float, reason: str = "") -> None:
    """All publishers of the clinic do so."""
    state = AnswerState.UNCONFIRMED if reason else AnswerState.EXACT

    def services() -> list[ServiceView]:
        standing = Standing(state, reason, since)
        return [
            ServiceView(
                one,
                clinic.table.states[one.publisher],
                False,
                standing,
                (activity, since),
            )
            for one in clinic.table.registered()
        ]

    clinic.table.services = services  # type: ignore[method-assign]


def test_an_instance_that_works_is_healthy(clinic: Clinic) -> None:
    clinic.register()
    document = clinic.document()
    assert document.findings == []
    (instance,) = document.instances
    assert (instance.instance_id, instance.verdict) == ("a", "healthy")
    assert [rank.received for rank in instance.ranks] == [3]


def test_blocks_of_another_size_are_said_with_both(clinic: Clinic) -> None:
    for rank in (0, 1):
        one = clinic.register(dp_rank=rank)
        state = PublisherState(incarnation=1, left_out={"block_size:32": 7}, left_out_at=5.0)
        clinic.has(one, state)
    found = only(clinic)
    assert (found.code, found.instance_id, found.dp_ranks) == ("block_size", "a", [0, 1])
    assert (found.expected, found.got, found.since) == ("4", "32", 5.0)
    assert "14 blocks" in found.cause
    assert '"block_size": 32' in found.remedy
    assert clinic.document().instances[0].verdict == found.cause


@pytest.mark.parametrize("size", [2, 32])
def test_of_some_blocks_of_another_size_it_is_not_said_to_register_that(
    clinic: Clinic, size: int
) -> None:
    one = clinic.register()
    publisher = clinic.table.kernel.open_publisher(one.stream, one.dp_rank)
    clinic.table.store(publisher, range(8), hashes=[1, 2])
    clinic.has(one, PublisherState(incarnation=1, left_out={f"block_size:{size}": 3}))
    found = only(clinic)
    assert (found.code, found.expected, found.got) == ("block_size", "4", str(size))
    assert (
        f"beside 2 blocks of 4, which answers count, it publishes blocks of {size}" in found.cause
    )
    assert found.remedy.startswith("leave it registered as it is")


def test_what_else_is_left_out_is_named_by_its_reason(clinic: Clinic) -> None:
    one = clinic.register()
    left_out = {"unknown_parent": 3, "extra_keys": 1}
    clinic.has(one, PublisherState(incarnation=1, left_out=left_out))
    found = only(clinic)
    assert (found.code, found.got) == ("left_out", "extra_keys (1), unknown_parent (3)")


def test_lost_batches_are_found(clinic: Clinic) -> None:
    one = clinic.register()
    clinic.has(one, PublisherState(incarnation=1, degraded_since=2, degraded_at=9.0))
    found = only(clinic)
    assert (found.code, found.since) == ("lost_batches", 9.0)
    assert "reprise gaps --instance a" in found.remedy


@pytest.mark.parametrize(("incarnation", "code"), [(0, "unreached"), (3, "disconnected")])
def test_a_link_that_is_down_is_told_from_one_that_never_was(
    clinic: Clinic, incarnation: int, code: str
) -> None:
    one = clinic.register()
    clinic.has(one, PublisherState(incarnation=incarnation))
    acts(clinic, "disconnected", NOW - 1.0, "link_down")
    assert clinic.codes() == []  # an engine may be about to start
    acts(clinic, "disconnected", NOW - 60.0, "link_down")
    found = only(clinic)
    assert (found.code, found.expected) == (code, one.endpoint)
    assert ("binds only wildcard" in found.cause) is (code == "unreached")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Doubt.NO_ENDPOINT, "no_endpoint"),
        (Doubt.ENGINE_AWAY, "engine_away"),
        (Doubt.PROCESS_CHANGED, "process_changed"),
        (Doubt.REPLAY_SILENT, "replay"),
        (Doubt.REPLAY_DIFFERS, "replay"),
        (Doubt.SPOOLED, "spooled"),
        (Doubt.COPIES_UNKNOWN, "report_mode"),
        (Doubt.OBJECTS_WAIT, "objects_wait"),
        (Doubt.TIERS_CLEARED, "tiers_cleared"),
        (Doubt.HASHES_DIFFER, "hashes_differ"),
        (Doubt.CHUNKS_UNKNOWN, "chunks_unknown"),
        (Doubt.NEVER_REMOVED, "never_removed"),
        (Doubt.CHUNKS_DIFFER, "chunks_differ"),
        (Doubt.POOL_CLEARED, "pool_cleared"),
        (Doubt.POOL_REMOVED, "pool_removed"),
        (Doubt.LENDER_GONE, "lender_gone"),
        (Doubt.UNHELD_REMOVED, "unheld_removed"),
        (Doubt.PARTIAL_REUSE, "partial_reuse"),
        (Doubt.GROUPS_UNKNOWN, "groups_unknown"),
        (Doubt.DROPS_UNSAID, "drops_unsaid"),
        (Doubt.OUTCOMES_DIFFER, "outcomes_differ"),
        (Doubt.RANK_MISSING, "ranks"),
        (Doubt.NO_HEARTBEAT, "not_followed"),
    ],
)
def test_a_doubt_that_stays_is_found_and_a_young_one_is_not(
    clinic: Clinic, reason: Doubt, code: str
) -> None:
    clinic.register()
    clinic.doubts("a", reason, NOW - 1.0)
    assert clinic.codes() == []
    clinic.doubts("a", reason, NOW - 60.0)
    assert clinic.codes() == [code]


def test_what_outcomes_contradict_is_one_finding(clinic: Clinic) -> None:
    """The likeliest cause, while the latest outcomes say it."""
    clinic.register()
    clinic.doubts("a", Doubt.OUTCOMES_DIFFER, NOW - 60.0)
    clinic.serves(20, promised=1200, cached=0)
    assert clinic.codes() == ["matches_more"]


@pytest.mark.parametrize("reason", [Doubt.NO_REPLAY, Doubt.CATCHING_UP, Doubt.NOTHING_REPLAYED])
def test_what_an_idle_engine_is_is_no_finding(clinic: Clinic, reason: Doubt) -> None:
    clinic.register()
    clinic.doubts("a", reason, 1.0)
    assert clinic.codes() == []
    notes = ["no_replay"] if reason is Doubt.NO_REPLAY else []
    assert [note.code for note in clinic.document().notes] == notes


def test_a_hybrid_model_is_found_and_explains_what_was_promised_too_much(clinic: Clinic) -> None:
    one = clinic.register()
    clinic.has(one, PublisherState(incarnation=1, sequence=3, sparse_blocks=0))
    clinic.doubts("a", Doubt.ATTENTION_ONLY, 0.0)
    (hybrid,) = clinic.document().notes
    assert (hybrid.code, hybrid.instance_id) == ("attention_only", "a")
    clinic.has(one, PublisherState(incarnation=1, sequence=3, sparse_blocks=12))
    (hybrid,) = clinic.document().notes
    assert hybrid.got == "12 of other groups"
    assert clinic.document().instances[0].ranks[0].left_out == {"attention_only": 12}
    clinic.serves(20, promised=1200, cached=400)
    hybrid, more = clinic.document().notes
    assert (hybrid.code, more.code) == ("attention_only", "matches_more")
    assert "follow from `attention_only`" in more.cause
    assert clinic.findings() == []  # a model is no mistake
    assert clinic.document().instances[0].verdict == "healthy"
    clinic.has(one, PublisherState(incarnation=1, sequence=3, sparse_blocks=12, degraded_since=2))
    lost, more = clinic.findings()
    assert (lost.code, more.code) == ("lost_batches", "matches_more")
    assert [one.code for one in clinic.document().notes] == ["attention_only"]


def test_a_model_that_is_registered_with_several_groups_is_no_mistake(clinic: Clinic) -> None:
    one = clinic.register()
    clinic.doubts("a", Doubt.GROUPS_UNKNOWN, NOW - 60.0)
    assert clinic.codes() == ["groups_unknown"]
    several = msgspec.structs.replace(one, kv_cache_groups="several")
    clinic.table.registrations[one.publisher] = several
    assert clinic.codes() == []
    assert [note.code for note in clinic.document().notes] == ["groups_unknown"]


def test_an_engine_with_lmcache_is_not_told_another_word(clinic: Clinic) -> None:
    one = msgspec.structs.replace(clinic.register(), kv_offloading="lmcache")
    clinic.table.registrations[one.publisher] = one
    clinic.doubts("a", Doubt.NEVER_REMOVED, NOW - 60.0)
    (note,) = clinic.document().notes
    assert (note.code, note.got) == ("never_removed", "never_removed")
    assert "native" not in note.remedy + note.cause
    assert clinic.codes() == []


def test_adapters_that_an_engine_may_load_anew_are_named_in_a_note(clinic: Clinic) -> None:
    one = msgspec.structs.replace(clinic.register(), kind=SGLANG)
    clinic.table.registrations[one.publisher] = one
    engine = clinic.table.kernel.open_publisher(*one.publisher)
    clinic.table.store(engine, range(4), hashes=[1])
    assert clinic.document().notes == []
    clinic.table.store(engine, range(4), hashes=[9], lora_name="poet")
    (found,) = clinic.document().notes
    assert (found.code, found.instance_id) == ("adapter_reloaded", "a")
    assert found.cause.endswith("not: poet")
    assert clinic.codes() == []
    clinic.serves(20, promised=1200, cached=0)
    (more,) = clinic.findings()
    assert (more.code, more.remedy) == ("matches_more", "see `adapter_reloaded`")
    assert "adapters were loaded again" in more.cause
    clinic.doubts("a", Doubt.OUTCOMES_DIFFER, NOW - 60.0)
    (more,) = clinic.findings()
    assert "switched off" in more.cause, "exact answers said so"
    never = msgspec.structs.replace(one, lora_reload="none")
    clinic.table.registrations[one.publisher] = never
    assert clinic.document().notes == []


def test_adapters_that_an_instance_may_have_loaded_are_named(clinic: Clinic) -> None:
    one, kernel = clinic.register(), clinic.table.kernel
    pool = kernel.open_publisher(one.stream._replace(instance_id="pool"), 0)
    assert clinic.codes() == []
    names = [f"adapter-{number}" for number in range(7)]
    for number, name in enumerate(names):
        clinic.table.store(
            pool, range(4), hashes=[number], lora_name=name, medium=Medium.CPU, shared=True
        )
    found = only(clinic)
    assert (found.code, found.instance_id) == ("adapter_unknown", "a")
    assert found.cause.endswith("adapter-3, adapter-4 and 2 more")
    engine = kernel.open_publisher(*one.publisher)
    clinic.table.store(engine, range(4), hashes=[9], lora_name=names[0])
    assert only(clinic).cause.endswith("adapter-4, adapter-5 and 1 more")


def test_whom_it_reads_and_nobody_is_called_is_named(clinic: Clinic) -> None:
    one = msgspec.structs.replace(clinic.register(), reads=("b", "c", "pool"))
    clinic.table.registrations[one.publisher] = one
    clinic.register("b")
    found = only(clinic)
    assert (found.code, found.instance_id) == ("reads_unknown", "a")
    assert found.got == "c, pool"
    clinic.register("c")
    clinic.register("pool", block_size=2 * one.block_size)
    assert only(clinic).got == "pool", "that one is of another scope"
    clinic.table.registrations[one.publisher] = msgspec.structs.replace(one, reads=())
    assert clinic.codes() == []


def test_who_serves_and_publishes_nothing_is_found(clinic: Clinic) -> None:
    one = clinic.register()
    clinic.has(one, PublisherState())
    assert clinic.codes() == []
    clinic.serves(19, promised=0, cached=0)
    assert clinic.codes() == []  # too few to say so
    clinic.serves(1, promised=0, cached=0)
    assert clinic.codes() == ["no_events"]


def test_more_than_fits_is_an_engine_that_never_removes(clinic: Clinic) -> None:
    one = msgspec.structs.replace(clinic.register(), kv_capacity_tokens=400)
    clinic.table.registrations[one.publisher] = one
    publisher = clinic.table.kernel.open_publisher(one.stream, 0)
    clinic.table.store(publisher, range(4 * 120), hashes=range(1, 121))
    assert clinic.codes() == []  # 120 of 100: counted a little late
    clinic.table.store(publisher, range(5000, 5160), hashes=range(1001, 1041))
    found = only(clinic)
    assert (found.code, found.expected, found.got) == ("never_removes", "at most 100", "160")
    instance = clinic.document().instances[0]
    assert (instance.indexed_blocks, instance.capacity_blocks) == (160, 100)


def test_nothing_that_is_registered_is_found_by_who_sees_all(clinic: Clinic) -> None:
    assert clinic.codes() == ["nothing_registered"]
    assert clinic.document(sees_all=False).findings == []


@pytest.mark.parametrize(
    ("asked", "code", "expected", "got"),
    [
        ({"model_name": "M"}, "asked_model", "m", "M"),
        ({"block_size": 16}, "asked_block_size", "4", "16"),
        ({"additional_salt": "s"}, "asked_salt", '""', "s"),
        ({"tenant_id": "acme"}, "asked_tenant", "", "acme"),
    ],
)
def test_questions_about_what_nobody_has_are_found(
    clinic: Clinic, asked: dict[str, Any], code: str, expected: str, got: str
) -> None:
    clinic.register()
    scope = PrefixScope("default", "m", "", 4, "")
    clinic.unknown.note(scope)
    assert clinic.codes() == []
    for _ in range(7):
        clinic.unknown.note(scope._replace(**asked))
    found = only(clinic)
    assert (found.code, found.expected, found.got) == (code, expected, got)
    assert found.cause.startswith("7 times it was asked for")


def test_a_question_about_what_an_engine_is_follows_from_its_registration(clinic: Clinic) -> None:
    """The registration is to be mended, and the question is right."""
    one = clinic.register()
    clinic.has(one, PublisherState(incarnation=1, left_out={"block_size:16": 3}))
    for size in (16, 32):
        for _ in range(7):
            clinic.unknown.note(PrefixScope("default", "m", "", size, ""))
    asked_other, cause, following = clinic.document().findings
    assert (asked_other.code, asked_other.got) == ("asked_block_size", "32")
    assert (cause.code, cause.got) == ("block_size", "16")
    assert (following.code, following.got) == ("asked_block_size", "16")
    assert following.remedy == "mend `block_size` first, and look again"
    assert asked_other.remedy == "ask with the `block_size` that the engines have"


def test_other_tokens_follow_from_a_salt_that_nobody_has(clinic: Clinic) -> None:
    one = clinic.register()
    clinic.has(one, PublisherState(incarnation=1))
    clinic.serves(20, promised=0, cached=1200)
    assert clinic.codes() == ["matches_nothing"]
    for _ in range(7):
        clinic.unknown.note(PrefixScope("default", "m", "", 4, "s"))
    salt, found = clinic.document().findings
    assert (salt.code, found.code) == ("asked_salt", "matches_nothing")
    assert found.cause.endswith("This may well follow from `asked_salt`")


def test_an_adapter_without_blocks_is_no_finding(clinic: Clinic) -> None:
    clinic.register()
    clinic.unknown.note(PrefixScope("default", "m", "adapter", 4, ""))
    assert clinic.codes() == []


def test_who_sees_some_tenants_hears_of_theirs(clinic: Clinic) -> None:
    one = clinic.register(tenant_id="acme")
    clinic.has(one, PublisherState(incarnation=1, degraded_since=2))
    assert clinic.document(lambda tenant_id: tenant_id == "acme").findings[0].tenant_id == "acme"
    document = clinic.document(lambda tenant_id: tenant_id == DEFAULT_TENANT, sees_all=False)
    assert (document.findings, document.instances) == ([], [])


def test_a_full_disk_is_told_from_other_conditions(clinic: Clinic) -> None:
    clinic.register()
    clinic.table.problem = "recovering 7 records"
    assert clinic.codes() == ["condition"]
    clinic.table.problem = "Cannot append at /data: no space left on its file system"
    found = only(clinic)
    assert (found.code, found.instance_id) == ("disk", "")
    assert "free space" in found.remedy


@pytest.mark.parametrize(
    ("lag", "codes"),
    [
        (Lag(5, 5, 1.0, reachable=True), []),
        (Lag(5, 5, 30.0, reachable=True), ["behind"]),
        (Lag(200_000, 5, 1.0, reachable=True), ["behind"]),
        (Lag(0, 0, 0.0, reachable=False), ["behind"]),
    ],
)
def test_a_replica_that_is_behind_is_found(clinic: Clinic, lag: Lag, codes: list[str]) -> None:
    clinic.register()
    clinic.table.lag = lag
    assert clinic.codes() == codes


# What its bridge says against it


def says(clinic: Clinic, troubles: Troubles, **state: Any) -> Registration:
    """Its bridge says so of `a`, which is registered."""
    one = clinic.register()
    said = Confirmation("b", troubles=troubles)
    clinic.has(one, PublisherState(confirmation=said, **state))
    return one


def test_who_sends_nothing_that_can_be_used_is_told_what_was_expected_and_what_came(
    clinic: Clinic,
) -> None:
    says(clinic, Troubles(6, "frame_count", "Expected 3 frames, got 2"))
    acts(clinic, "disconnected", NOW - 60.0, "link_down")
    found = only(clinic)
    assert found.code == "dropped", "an engine that has ended is one finding, and was reached"
    assert "6 messages, batches or events" in found.cause
    assert "frame_count: Expected 3 frames, got 2" in found.cause
    assert "Its link is down now" in found.cause
    assert found.expected.startswith("three frames")
    assert found.got == "Expected 3 frames, got 2"
    assert "docs/compatibility.md" in found.remedy
    (rank,) = clinic.document().instances[0].ranks
    assert (rank.dropped, rank.last_drop) == (6, "frame_count: Expected 3 frames, got 2")


def test_lost_batches_that_were_dropped_follow_from_that(clinic: Clinic) -> None:
    troubles = Troubles(3, "undecodable", "Expected an array")
    says(clinic, troubles, incarnation=1, sequence=2, degraded_since=0, degraded_at=9.0)
    dropped, lost = clinic.findings()
    assert (dropped.code, lost.code) == ("dropped", "lost_batches")
    assert lost.remedy == "mend `dropped` first, and look again"


def test_what_was_dropped_and_has_healed_is_no_finding(clinic: Clinic) -> None:
    says(clinic, Troubles(3, "bad_tokens", "Expected tokens"), incarnation=1, sequence=2)
    assert clinic.codes() == []


def test_a_reason_that_blocks_are_left_out_for_is_said_once(clinic: Clinic) -> None:
    troubles = Troubles(3, "bad_tokens", "Expected an array of tokens")
    says(clinic, troubles, incarnation=1, left_out={"bad_tokens": 3}, left_out_at=9.0)
    assert clinic.codes() == ["dropped"]


def test_a_constant_number_is_said(clinic: Clinic) -> None:
    says(clinic, Troubles(repeats=1), incarnation=1)
    assert clinic.codes() == [], "an engine may restart"
    says(clinic, Troubles(repeats=5), incarnation=6)
    found = only(clinic)
    assert (found.code, found.expected) == ("repeated_numbers", "0, 1, 2, ...")
    assert "every batch has number 0: 6 came one after the other" in found.cause


def test_a_number_whose_bytes_are_reversed_is_said(clinic: Clinic) -> None:
    one = clinic.register()
    state = PublisherState(incarnation=1, sequence=3 << 56, degraded_since=0, degraded_at=9.0)
    clinic.has(one, state)
    found = only(clinic)
    assert f"Its numbers are little-endian: {3 << 56} is 3" in found.cause
    assert "big-endian" in found.remedy


def test_a_replay_socket_that_never_answered_is_said_at_once_and_of_an_exact_one(
    clinic: Clinic,
) -> None:
    one = says(clinic, Troubles(has_dead_replay=True), incarnation=1)
    one = msgspec.structs.replace(one, replay_endpoint="tcp://e:5558")
    clinic.table.registrations[one.publisher] = one
    found = only(clinic)
    assert (found.code, found.got) == ("replay", "no answer")
    assert "nothing listens at tcp://e:5558" in found.cause
    clinic.doubts("a", Doubt.REPLAY_SILENT, NOW - 60.0)
    assert clinic.codes() == ["replay"]
    acts(clinic, "disconnected", NOW - 60.0, "link_down")
    assert clinic.codes() == ["disconnected"], "an engine that has ended answers nothing"


def test_a_name_that_cannot_be_looked_up_is_said_in_the_words_of_the_system(
    clinic: Clinic,
) -> None:
    words = "[Errno -2] Name or service not known"
    says(clinic, Troubles(link=words))
    acts(clinic, "disconnected", NOW - 60.0, "link_down")
    found = only(clinic)
    assert (found.code, found.got) == ("unreached", words)
    assert "the host name is wrong" in found.cause
    assert "can look up" in found.remedy


def test_why_no_stream_comes_up_is_said_in_the_words_of_its_server(clinic: Clinic) -> None:
    words = "its server streams no KV-cache events: not enabled"
    one = msgspec.structs.replace(says(clinic, Troubles(link=words)), endpoint="grpc://e:50051")
    clinic.table.registrations[one.publisher] = one
    acts(clinic, "disconnected", NOW - 60.0, "link_down")
    found = only(clinic)
    assert (found.code, found.got) == ("unreached", words)
    assert "--kv-events-config" in found.remedy
    assert "host name" not in found.cause


def test_an_http_address_that_is_no_engines_is_said(clinic: Clinic) -> None:
    says(clinic, Troubles(http="HTTP 404 for each of /metrics, /version"), incarnation=1)
    found = only(clinic)
    assert (found.code, found.got) == ("no_engine", "HTTP 404 for each of /metrics, /version")
    assert "is this vLLM?" in found.cause
    says(clinic, Troubles(http="HTTP 404 for each of /metrics, /version"))
    acts(clinic, "disconnected", NOW - 60.0, "link_down")
    found = only(clinic)
    assert found.code == "unreached", "an engine that is not there is one finding"
    assert "is this vLLM?" in found.cause


def test_each_reason_of_a_refusal_has_words() -> None:
    passed_over = {DropReason.OTHER_RANK, DropReason.OTHER_GROUP, DropReason.NO_BLOCK}
    left_out = set(LEFT_OUT_REASONS.values()) - {"", "block_size"} | {"overflow"}
    assert REASONS.keys() == {reason.value for reason in set(DropReason) - passed_over} | left_out
