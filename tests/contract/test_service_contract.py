"""The whole service, as engines and routers meet it: what both of its forms must do alike."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgpack
import msgspec
import pytest

from bridge.sockets.raw_message import RawMessage
from lab.engines.cache import CacheSizes, EngineCache, Offload
from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import AllBlocksCleared, BlockRemoved, BlockStored, EngineEvent
from schemas.identities import Offset
from schemas.limits import HEARTBEAT_S
from schemas.records import encode_record
from schemas.registration import PublisherKind, Registration
from streams.kernel import open_kernel
from streams.table.fold import Fold
from tests.building import prefix_hashes
from tests.contract.deployments import Tenant, tenant_of
from tests.engine_http import engine_server
from tests.unit.bridge.publisher.sequencers import Sequencers

pytestmark = pytest.mark.timeout(180)

TOKENS = list(range(1000, 1064))
MSGPACK = {"Content-Type": "application/msgpack"}


def chain(first: int, tokens: list[int], parent: int | None = None) -> BlockStored:
    """Blocks with hashes first, first + 1, ... for the tokens, 16 a block."""
    return BlockStored(
        block_hashes=list(range(first, first + len(tokens) // 16)),
        parent_block_hash=parent,
        token_ids=tokens,
        block_size=16,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )


# Events and answers


def test_events_become_answers_and_answers_follow_removals(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher)
    tenant.await_longest(TOKENS, 0)
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    assert tenant.longest([*TOKENS, 1, 2, 3]) == 64
    assert tenant.longest(TOKENS[:40]) == 32
    assert tenant.longest(list(range(64))) == 0
    publisher.publish([BlockRemoved(block_hashes=[3], medium="GPU")])
    tenant.await_longest(TOKENS, 32)
    publisher.publish([AllBlocksCleared()])
    tenant.await_longest(TOKENS, 0)


def test_hashes_find_what_their_tokens_find(tenant: Tenant, publisher: Publisher) -> None:
    tenant.connect(publisher)
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    fields = {"model": "m", "block_size": 16, "tenant_id": tenant.tenant_id}
    found = tenant.api.post("/query_by_hash", fields | {"seq_hashes": prefix_hashes(TOKENS, 16)})
    assert found == tenant.api.post("/query", fields | {"token_ids": TOKENS})


@pytest.mark.both_forms
def test_text_finds_what_its_tokens_find_and_an_engine_makes_them(
    tenant: Tenant, publisher: Publisher
) -> None:
    with engine_server() as engine:
        engine.starts(1000.0, publisher)
        engine.replies["/tokenize"] = (200, json.dumps({"tokens": TOKENS}).encode())
        engine.replies["/version"] = (200, b'{"version": "0.33.0"}')
        tenant.connect(publisher, http_endpoint=engine.url)
        publisher.publish([chain(1, TOKENS)])
        tenant.await_longest(TOKENS, 64)
        fields = {"model": "m", "block_size": 16, "tenant_id": tenant.tenant_id}
        by_tokens = tenant.api.post("/query", fields | {"token_ids": TOKENS})
        chat = {"messages": [{"role": "user", "content": "Hello"}]}

        def made_by(text: Mapping[str, object]) -> str:
            return tenant.api.exchange("/query", {**fields, **text})[2]["reprise-tokens"]

        tenant.until(lambda: "unproven" not in made_by(chat), "the engine has said its version")
        for text, source in ((chat, "engine"), ({"prompt": TOKENS}, "given")):
            status, answer, headers = tenant.api.exchange("/query", fields | text)
            assert (status, answer) == by_tokens
            assert headers["reprise-tokens"] == f"{source}; count=64; reused=0"
        assert json.loads(engine.posted[0])["messages"] == chat["messages"]
        tenant.await_candidate()
        routed = tenant.api.post("/route", fields | chat)[1]["prefill"]
        assert (routed["instance_id"], routed["prompt_tokens"]) == ("a", 64)
        engine.replies["/tokenize"] = (500, b"")
        status, answer, headers = tenant.api.exchange("/route", fields | chat)
        assert (status, headers["reprise-tokens"]) == (200, "none; reason=engine_silent")
        status, answer = tenant.api.post("/query", fields | chat)
        assert (status, answer["reason"]) == (503, "tokens_engine_silent")


def test_images_adapters_and_salts_are_found_by_what_queries_say_of_them(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher)
    rows = [("sql", "blue"), ("sql", ("a3f1", 4)), ("sql", ("a3f1", -12)), ("sql",)]
    stored = msgspec.structs.replace(chain(1, TOKENS), lora_name="sql", extra_keys=rows)
    publisher.publish([stored, chain(11, TOKENS[:32])])
    tenant.await_longest(TOKENS, 32)
    image = {"hash": "a3f1", "offset": 20, "length": 20}
    named = {"lora_name": "sql", "cache_salt": "blue"}
    tenant.await_longest(TOKENS, 64, media=[image], **named)
    assert tenant.longest(TOKENS, media=[image]) == 16
    assert tenant.longest(TOKENS, media=[image | {"hash": "b7d2"}], **named) == 16
    assert tenant.longest(TOKENS, **named) == 16
    assert tenant.longest(TOKENS, extra_keys=rows) == 64
    tenant.await_candidate()
    body = {"model": "m", "block_size": 16, "token_ids": TOKENS, "tenant_id": tenant.tenant_id}
    status, routed = tenant.api.post("/route", body | {"extra_keys": rows, "reserve": False})
    assert status == 200, routed
    assert routed["prefill"]["cached_tokens"] == 64
    status, routed = tenant.api.post("/route", body | {"media": [], "reserve": False})
    assert status == 200, routed
    assert routed["prefill"]["cached_tokens"] == 32


def test_blocks_of_an_owner_are_a_set_that_the_engines_clear_leaves(
    tenant: Tenant, publisher: Publisher
) -> None:
    """vLLM's KVCR tier: announced twice and removed once, a block is gone."""
    tenant.connect(publisher)
    publisher.publish([chain(1, TOKENS)])
    blocks = [chain(1 + n, TOKENS[16 * n : 16 * n + 16], parent=n or None) for n in range(4)]
    replace = msgspec.structs.replace
    for _ in range(2):
        publisher.publish([replace(one, medium="CPU", ownership="kvcr") for one in blocks])
    tenant.until(lambda: tenant.state() == "exact", "an exact answer")
    publisher.publish([AllBlocksCleared()])
    tenant.await_batches(4)
    tenant.await_longest(TOKENS, 64)
    publisher.publish([BlockRemoved(block_hashes=[4], medium="CPU", ownership="kvcr")])
    tenant.await_longest(TOKENS, 48)
    publisher.publish([BlockRemoved(block_hashes=[1], medium="CPU")])  # is the engine's own
    tenant.await_batches(6)
    assert (tenant.longest(TOKENS), tenant.state()) == (48, "unconfirmed")


class _SaltedArrays:
    """An SGLang engine's encoder: its events are arrays, whose eighth element has the salt."""

    def encode(
        self, events: Sequence[EngineEvent], *, timestamp_s: float, dp_rank: int | None
    ) -> bytes:
        arrays = []
        for event in events:
            assert isinstance(event, BlockStored)
            hashes, tokens = list(event.block_hashes), list(event.token_ids)
            row: list[object] = ["BlockStored", hashes, None, tokens, 16, None, "GPU"]
            arrays.append([*row, {"cache_salt": "pepper"}])
        packed: bytes = msgpack.packb([timestamp_s, arrays, dp_rank])
        return packed


def test_prompts_with_a_salt_of_sglang_are_others_than_those_without(
    tenant: Tenant, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_encoder", _SaltedArrays())
    tenant.connect(publisher, type="SGLang")
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64, cache_salt="pepper")
    assert tenant.longest(TOKENS) == 0
    assert tenant.longest(TOKENS, cache_salt="salt") == 0
    assert tenant.metric("reprise_bridge_dropped_total", reason="unknown_field") == 0


def test_one_instance_hosts_several_models_and_ranks(tenant: Tenant) -> None:
    ranks = [Publisher(PublisherOptions(), dp_rank=rank) for rank in (0, 1)]
    other = Publisher(PublisherOptions())
    tenant.connect(*ranks)
    tenant.connect(other, modelname="n")
    ranks[0].publish([chain(1, TOKENS[:32])])
    ranks[1].publish([chain(1, TOKENS)])
    other.publish([chain(1, TOKENS[:16])])
    tenant.await_longest(TOKENS, 64)
    tenant.await_longest(TOKENS, 16, model="n")
    tenant.until(lambda: tenant.query(TOKENS)["a"]["DP"] == {"0": 32, "1": 64}, "both ranks")
    status, answer = tenant.unregister(dp_rank=1)
    assert (status, answer["removed_instances"]) == (200, [f"a|{tenant.tenant_id}|1"])
    tenant.await_longest(TOKENS, 32)
    assert tenant.longest(TOKENS, model="n") == 16
    for one in (*ranks, other):
        one.close()


def test_the_answers_name_each_instance_and_no_other_tenant_sees_them(
    tenant: Tenant, publisher: Publisher
) -> None:
    other = Publisher(PublisherOptions())
    tenant.connect(publisher)
    tenant.connect(other, instance_id="b")
    publisher.publish([chain(1, TOKENS[:48])])
    other.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 48)
    tenant.await_longest(TOKENS, 64, instance_id="b")
    assert tenant.query(TOKENS).keys() == {"a", "b"}
    assert tenant.query(TOKENS, tenant_id="nobody") == {}
    assert tenant.query(TOKENS, model="none") == {}
    assert tenant.query(TOKENS, block_size=32) == {}
    other.close()


def digest_of(publisher: Publisher, registration: Registration) -> tuple[str, int]:
    """Digest and entries of a fold, made here, of all that the engine published."""
    sequencer, fold = Sequencers(), Fold(open_kernel(1337))
    sequencer.add(registration)
    messages = [
        RawMessage(registration.publisher, [b"", number.to_bytes(8, "big"), payload], 0.0)
        for number, payload in list(publisher._buffer)
    ]
    for offset, record in enumerate(sequencer.process(messages, 0.0)):
        assert fold.apply(Offset(offset), encode_record(record)) is None
    (view,) = fold.kernel.contexts()
    return f"{view.digest:016x}", view.entries


@pytest.mark.both_forms
def test_answers_and_digest_are_the_engines_own_truth_under_eviction_and_offloading(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher)
    sizes = CacheSizes(block_size=16, gpu_blocks=40, cpu_blocks=60)
    cache = EngineCache(sizes, offload=Offload.WRITE_THROUGH)
    prompts = [[7 * n + i // 48 for i in range(16 * (1 + n % 7))] for n in range(120)]
    for prompt in prompts:
        publisher.publish(cache.run(prompt).events)
    publisher.publish([])
    tenant.until(lambda: tenant.services()[0]["Sequence"] == len(prompts), "all batches folded")
    for prompt in prompts:
        answer = tenant.query(prompt)["a"]
        assert answer["longest_matched"] == cache.longest_held(prompt)
        assert answer["GPU"] == cache.longest_held(prompt, "GPU")
        assert answer["CPU"] == cache.longest_held(prompt, "CPU")
    registration = Registration(
        endpoint=publisher.endpoint,
        kind=PublisherKind("vLLM"),
        model_name="m",
        instance_id="a",
        block_size=16,
        tenant_id=tenant.tenant_id,
    )
    assert tenant.digests() == {("m", "a"): digest_of(publisher, registration)}


# What the engines do


def test_a_restart_of_the_engine_leaves_no_ghosts(tenant: Tenant) -> None:
    first = Publisher(PublisherOptions())
    tenant.connect(first)
    first.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    first.close()
    tenant.until(
        lambda: not tenant.deployment.followed(tenant.tenant_id), "the end of the first engine"
    )
    second = Publisher(PublisherOptions(endpoint=first.endpoint))
    tenant.await_links(second)
    other = list(range(5000, 5032))
    second.publish([chain(9, other)])
    tenant.await_longest(other, 32)
    assert tenant.longest(TOKENS) == 0
    assert tenant.services()[0]["Incarnation"] == 2
    second.close()


def test_a_lost_batch_is_told_in_every_answer_until_a_clear(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher, kv_offloading="none")
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    tenant.until(lambda: tenant.state() == "exact", "exact answers")
    publisher.publish([chain(50, TOKENS)], lost=True)
    publisher.publish([chain(70, list(range(16)))])
    tenant.until(lambda: tenant.state() == "degraded", "the gap")
    assert tenant.longest(TOKENS) == 64
    assert tenant.metric("reprise_bridge_lost_batches_total") == 1.0
    assert tenant.services()[0]["DegradedSince"] == 1
    publisher.publish([AllBlocksCleared()])
    tenant.until(lambda: tenant.state() == "exact", "the clear")
    assert tenant.services()[0]["DegradedSince"] is None


def test_what_a_lost_batch_may_have_stored_beside_the_gpu_is_not_known_behind_a_clear(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher)
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    publisher.publish([msgspec.structs.replace(chain(1, TOKENS), medium="CPU")], lost=True)
    publisher.publish([chain(70, list(range(16)))])
    tenant.until(lambda: tenant.state() == "degraded", "the gap")
    publisher.publish([AllBlocksCleared()])
    tenant.until(lambda: tenant.services()[0]["Reason"] == "tiers_cleared", "the clear")
    publisher.publish([])
    tenant.until(lambda: tenant.services()[0]["Sequence"] == 4, "a further batch")
    assert tenant.state() == "unconfirmed"


def test_a_batch_that_cannot_be_decoded_is_told_in_every_answer_until_a_clear(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher, kv_offloading="none")
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    tenant.until(lambda: tenant.state() == "exact", "exact answers")
    publisher._inlet.send_multipart([b"send", b"\xc1 no batch"])
    tenant.until(lambda: tenant.state() == "degraded", "the batch")
    assert tenant.longest(TOKENS) == 64
    assert tenant.metric("reprise_bridge_dropped_total", reason="undecodable") == 1.0
    publisher.publish([AllBlocksCleared()])
    tenant.until(lambda: tenant.state() == "exact", "the clear")


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (["BlockRemoved", [1.5], "GPU"], "bad_hashes"),
        (["BlockPinned", [1]], "unknown_event"),
    ],
)
def test_an_event_that_cannot_be_used_is_told_in_every_answer_until_a_clear(
    tenant: Tenant, publisher: Publisher, event: list[object], reason: str
) -> None:
    """The rest of its batch counts."""
    tenant.connect(publisher, kv_offloading="none")
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    tenant.until(lambda: tenant.state() == "exact", "exact answers")
    good = ["BlockStored", [70], None, list(range(16)), 16, None, "GPU"]
    batch = msgpack.packb([1.0, [event, good]])
    publisher._inlet.send_multipart([b"send", batch])
    tenant.await_longest(list(range(16)), 16)
    # A replica applies the rows of a batch one by one: its blocks, then what is known of it.
    tenant.until(lambda: tenant.state() == "degraded", "the event")
    assert tenant.metric("reprise_bridge_dropped_total", reason=reason) == 1.0
    assert tenant.services()[0]["DegradedSince"] == 1
    publisher.publish([AllBlocksCleared()])
    tenant.until(lambda: tenant.state() == "exact", "the clear")


def stored_as(
    *more: object, name: int = 50, parent: int | None = None, tokens: int = 16, size: int = 16
) -> list[object]:
    return ["BlockStored", [name], parent, [9] * tokens, size, None, "GPU", *more]


CANNOT_BE_USED: dict[str, list[object]] = {
    "block_size": stored_as(tokens=32, size=32),
    "token_count": stored_as(tokens=15),
    "unknown_parent": stored_as(parent=4040),
    "extra_keys": stored_as(None, [["a"], ["b"]]),
    "hash_conflict": stored_as(name=1),
    "unknown_field": stored_as(*[None] * 5, "pepper"),
    "bad_block_size": stored_as(size=-1),
}
"""By the reason."""


@pytest.mark.parametrize("reason", CANNOT_BE_USED)
def test_what_is_announced_and_cannot_be_used_is_told_until_it_is_gone(
    tenant: Tenant, publisher: Publisher, reason: str
) -> None:
    """It was `exact`, and the commonest mistake of all, a wrong block size, was not seen."""
    event = CANNOT_BE_USED[reason]
    tenant.connect(publisher)
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    tenant.until(lambda: tenant.state() == "exact", "exact answers")
    publisher._inlet.send_multipart([b"send", msgpack.packb([1.0, [event]])])
    tenant.until(lambda: tenant.state() == "degraded", "the event")
    (service,) = tenant.services()
    assert (service["Reason"], service["DegradedSince"]) == (reason, None)
    (told,) = service["LeftOut"].items()
    assert (told[0].partition(":")[0], told[1]) == (reason, 1)
    assert tenant.longest(TOKENS) == 64
    # Of two blocks of one name it is not known which was removed first.
    for name in (1 if reason == "hash_conflict" else 50, 1):
        publisher.publish([BlockRemoved(block_hashes=[name])])
    tenant.until(lambda: tenant.state() == "exact", "the removal")
    assert tenant.services()[0]["LeftOut"] == {}


@pytest.mark.both_forms
def test_of_a_hybrid_model_counts_what_it_can_use_and_the_group_that_ended_it_is_named(
    tenant: Tenant, publisher: Publisher
) -> None:
    """As in vllm#45238: it has all blocks of attention, and the state of one place alone."""
    tenant.connect(publisher, kv_offloading="none")
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    state = msgspec.structs.replace(chain(1, TOKENS), block_hashes=[3], group_idx=1)
    publisher.publish([msgspec.structs.replace(state, kv_cache_spec_kind="mamba")])
    tenant.await_longest(TOKENS, 48)
    tenant.until(lambda: tenant.state() == "exact", "an exact answer")
    asked = {"model": "m", "block_size": 16, "tenant_id": tenant.tenant_id, "token_ids": TOKENS}
    found = tenant.api.post("/query?detail=1", asked)[1][tenant.tenant_id]["a"]
    assert (found["longest_matched"], found["ended_by_group"]) == (48, 1)
    asked["token_ids"] = TOKENS[:48]
    found = tenant.api.post("/query?detail=1", asked)[1][tenant.tenant_id]["a"]
    assert (found["longest_matched"], found["ended_by_group"]) == (48, None)
    publisher.publish([BlockRemoved(block_hashes=[3], group_idx=1)])
    tenant.await_longest(TOKENS, 0)
    tenant.until(lambda: tenant.state() == "exact", "an exact answer")
    assert tenant.services()[0]["LeftOut"] == {}


@pytest.mark.parametrize("kind", ["chunked_local_attention", "sliding_window"])
def test_what_a_hybrid_model_can_reuse_is_said_to_be_of_its_attention_only(
    tenant: Tenant, publisher: Publisher, kind: str
) -> None:
    """Of chunks no event says how long they are, and of this window neither."""
    tenant.connect(publisher)
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    tenant.until(lambda: tenant.state() == "exact", "exact answers")
    state = msgspec.structs.replace(chain(1, TOKENS), block_hashes=[3], group_idx=1)
    publisher.publish([msgspec.structs.replace(state, kv_cache_spec_kind=kind)])
    tenant.until(lambda: tenant.state() == "unconfirmed", "the state")
    publisher.publish([BlockRemoved(block_hashes=[3], group_idx=1)])
    asked = {"model": "m", "block_size": 16, "tenant_id": tenant.tenant_id, "token_ids": TOKENS}
    found = tenant.api.post("/query?detail=1", asked)[1][tenant.tenant_id]["a"]
    told = (found["longest_matched"], found["state"], found["reason"])
    assert told == (64, "unconfirmed", "attention_only")
    assert tenant.services()[0]["LeftOut"] == {"attention_only": 1}
    noted = tenant.await_finding("attention_only", kind="notes")
    assert noted["got"] == "1 of other groups"
    assert tenant.findings() == {}
    publisher.publish([AllBlocksCleared()])
    tenant.await_longest(TOKENS, 0)
    assert tenant.services()[0]["Reason"] == "attention_only"


@pytest.mark.parametrize(
    "event",
    [
        ["BlockRemoved", [1, 2, 3, 4], "GPU", None, "new"],
        {"type": "BlockRemoved", "block_hashes": [1, 2, 3, 4], "reason": "x", "new": {"a": 1}},
        ["AllBlocksCleared", None, None],
        {"type": "TierBlocksCleared", "medium": "GPU"},
    ],
)
def test_a_removal_of_tomorrow_leaves_no_ghosts(
    tenant: Tenant, publisher: Publisher, event: object
) -> None:
    tenant.connect(publisher)
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    publisher._inlet.send_multipart([b"send", msgpack.packb([1.0, [event]])])
    tenant.await_longest(TOKENS, 0)
    tenant.until(lambda: tenant.state() == "exact", "an exact answer")


def test_a_clear_of_tomorrow_may_have_meant_less_and_says_so_until_a_plain_one(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher, kv_offloading="none")
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    event = ["AllBlocksCleared", None, "new"]
    publisher._inlet.send_multipart([b"send", msgpack.packb([1.0, [event]])])
    tenant.await_longest(TOKENS, 0)
    tenant.until(lambda: tenant.state() == "degraded", "a degraded answer")
    publisher.publish([AllBlocksCleared()])
    tenant.until(lambda: tenant.state() == "exact", "an exact answer")


@pytest.mark.both_forms
def test_an_engine_that_is_not_up_yet_is_followed_when_it_comes(tenant: Tenant) -> None:
    """Until then it is said within seconds that nobody listens there, and why that may be."""
    early = Publisher(PublisherOptions())
    early.close()
    assert tenant.register(early)[0] == 200

    def said() -> str:
        return tenant.deployment.conditions().get("engines", "")

    tenant.until(lambda: early.endpoint in said(), "what is wrong with its address")
    assert "binds only wildcard and ipc endpoints" in said()
    late = Publisher(PublisherOptions(endpoint=early.endpoint))
    tenant.await_links(late)
    late.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    tenant.until(lambda: early.endpoint not in said(), "that it is there")
    late.close()


# Registrations


def test_a_registration_is_shown_and_the_same_one_again_changes_nothing(
    tenant: Tenant, publisher: Publisher
) -> None:
    assert tenant.services() == []
    for _ in range(2):
        assert tenant.register(publisher) == (
            200,
            {"status": "registered successfully", "instance_id": "a"},
        )
    (service,) = tenant.services()
    shown = ("Endpoint", "Type", "ModelName", "InstanceID", "BlockSize", "DPRank")
    assert [service[name] for name in shown] == [publisher.endpoint, "vLLM", "m", "a", 16, 0]
    status, answer = tenant.register(publisher, instance_id="b")
    assert (status, answer["error"].partition(". GET /services")[0]) == (
        400,
        f"conflicting active registration for endpoint: {publisher.endpoint}",
    )
    status, answer = tenant.register(publisher, block_size=0)
    assert (status, answer["field"]) == (400, "block_size")
    # What its link does is no part of a registration: it comes up while this test reads.
    of_the_link = {"Connected", "State", "Reason", "Since", "Activity", "ActivitySince"}
    (unchanged,) = tenant.services()
    registered = service.keys() - of_the_link
    assert {name: unchanged[name] for name in registered} == {
        name: service[name] for name in registered
    }


@pytest.mark.both_forms
def test_a_registration_that_was_wrong_is_replaced_and_one_that_is_refused_changes_nothing(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher)
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    status, answer = tenant.register(publisher, model="other", replace=True, endpoint="tcp://*:1")
    assert status == 400, answer
    tenant.await_longest(TOKENS, 64)
    with closing(Publisher(PublisherOptions())) as moved:
        assert tenant.register(moved)[0] == 400
        status, answer = tenant.register(moved, replace=True)
        assert status == 200, answer
        tenant.await_links(moved)
        tenant.await_longest(TOKENS, 0)
        (service,) = tenant.services()
        assert service["Endpoint"] == moved.endpoint
        moved.publish([chain(9, TOKENS[:16])])
        tenant.await_longest(TOKENS, 16)
        # Of another stream: what it replaces is another publisher's.
        assert tenant.register(moved, replace=True, block_size=32)[0] == 200
        tenant.until(lambda: [one["BlockSize"] for one in tenant.services()] == [32], "one alone")
        tenant.until(lambda: tenant.query(TOKENS) == {}, "no answer of what it replaces")


@pytest.mark.both_forms
def test_an_unregistered_publisher_is_forgotten_with_its_blocks(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher)
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    assert tenant.digests()[("m", "a")][1] == 4
    status, answer = tenant.unregister()
    assert (status, answer["removed_instances"]) == (200, [f"a|{tenant.tenant_id}|0"])
    assert tenant.services() == []
    tenant.until(lambda: tenant.query(TOKENS) == {}, "no answer of it")
    assert not any(entries for _, entries in tenant.digests().values())
    status, answer = tenant.unregister()
    text = f"service not found: a|{tenant.tenant_id}|0. GET /services lists what is registered"
    assert (status, answer["error"]) == (404, text)
    tenant.connect(publisher)
    tenant.await_longest(TOKENS, 0)
    publisher.publish([chain(9, TOKENS[:16])])
    tenant.await_longest(TOKENS, 16)


@pytest.mark.both_forms
def test_publishers_of_conductors_configuration_file_are_followed(
    tenant: Tenant, publisher: Publisher, tmp_path: Path
) -> None:
    config = tmp_path / "conductor_config.json"
    entry = {"type": "vLLM", "modelname": "m", "block_size": 16, "tenant_id": tenant.tenant_id}
    entries = {
        "node1": entry | {"endpoint": publisher.endpoint, "unknown": 1},
        "bad": entry | {"endpoint": "tcp://127.0.0.1:1", "block_size": 0},
    }
    config.write_text(json.dumps({"http_server_port": 1, "kvevent_instance": entries}))
    configured = tenant.deployment.configured(config, tmp_path)
    try:
        with tenant_of(configured, tenant.tenant_id) as here:
            here.await_links(publisher)
            publisher.publish([chain(1, TOKENS)])
            here.await_longest(TOKENS, 64, instance_id="node1")
            assert [one["InstanceID"] for one in here.services()] == ["node1"]
            assert "Cannot register `bad`" in configured.log()
    finally:
        configured.close()


# The interface


def test_a_conductor_client_that_speaks_msgpack_works_unchanged(
    tenant: Tenant, publisher: Publisher
) -> None:
    registration = {
        "endpoint": publisher.endpoint,
        "type": "vLLM",
        "modelname": "m",
        "instance_id": "a",
        "block_size": 16,
        "dp_rank": 0,
        "tenant_id": tenant.tenant_id,
        "hash_profile": {
            "strategy": "vllm_v1",
            "algorithm": "sha256_cbor",
            "python_hash_seed": "0",
            "index_projection": "low64_be",
        },
    }
    for _ in range(2):
        status, body, _headers = tenant.api.request(
            "POST", "/register", msgpack.packb(registration), MSGPACK
        )
        assert (status, msgpack.unpackb(body)) == (
            200,
            {"status": "registered successfully", "instance_id": "a"},
        )
    tenant.await_links(publisher)
    publisher.publish([chain(1, TOKENS)])
    query = msgpack.packb(
        {
            "model": "m",
            "block_size": 16,
            "tenant_id": tenant.tenant_id,
            "token_ids": b"".join(token.to_bytes(4, "little") for token in TOKENS),
        }
    )

    def instances() -> dict[str, dict[str, object]]:
        status, body, _ = tenant.api.request("POST", "/query", query, MSGPACK)
        assert status == 200
        found: dict[str, dict[str, object]] = msgpack.unpackb(body)["instances"]
        return found

    tenant.until(lambda: instances().get("a", {}).get("longest_matched") == 64, "the stored blocks")
    assert instances()["a"] == {
        "longest_matched": 64,
        "dp": {"0": 64},
        "rank_matches": {"0": {"gpu": 64, "cpu": 64, "disk": 64}},
        "gpu": 64,
        "cpu": 64,
        "disk": 64,
    }


def test_a_bad_query_is_refused_in_conductors_envelope(tenant: Tenant) -> None:
    query = {"model": "m", "block_size": 16, "token_ids": [1, 2.5]}
    envelope = {"reason": "invalid_type", "field": "token_ids", "index": 1}
    text = "token_ids element must be a JSON integer, got 2.5 at index 1"
    assert tenant.api.post("/query", query) == (400, {"error": text, **envelope})
    status, body, _ = tenant.api.request("POST", "/query", msgpack.packb(query), MSGPACK)
    text = "token_ids element must be an integer"
    assert (status, msgpack.unpackb(body)) == (400, {"error": text, **envelope})


@pytest.mark.both_forms
def test_health_readiness_and_answers_say_how_much_of_the_log_they_know(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher)
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    tenant.until(lambda: tenant.state() == "exact", "exact answers")

    def positions() -> list[str]:
        health, ready = (tenant.api.get(path) for path in ("/health", "/ready"))
        assert (health[0], health[1]["ready"]) == (200, True)
        assert tenant.tenant_id not in health[1]["problem"], "another test's may be named there"
        assert (ready[0], ready[1]["ready"]) == (200, True)
        digest = tenant.api.digest()["position"]
        return [health[1]["position"], ready[1]["position"], digest, tenant.position()]

    tenant.until(lambda: len(set(positions())) == 1, "one position, at rest")
    contexts = tenant.api.get("/global_view")[1]["contexts"]
    (context,) = [one for one in contexts if one["tenant_id"] == tenant.tenant_id]
    assert (context["model_name"], context["prefix_count"]) == ("m", 4)
    assert context["instances"] == {"a": [0]}


# Restarts of the service


@pytest.mark.both_forms
def test_a_restarted_service_answers_as_before_and_goes_on_by_itself(
    tenant: Tenant, publisher: Publisher
) -> None:
    tenant.connect(publisher)
    publisher.publish([chain(1, TOKENS)])
    tenant.await_longest(TOKENS, 64)
    before = tenant.digests()
    tenant.deployment.restart()
    assert tenant.longest(TOKENS) == 64
    assert tenant.digests() == before
    tenant.await_links(publisher)
    more = list(range(16))
    publisher.publish([chain(5, more, parent=4)])
    tenant.await_longest([*TOKENS, *more], 80)
    assert tenant.metric("reprise_bridge_gaps_total") == 0.0
    time.sleep(HEARTBEAT_S)
    assert tenant.state() == "unconfirmed", "without a replay socket it may be another life"
    assert tenant.services()[0]["Reason"] == "no_replay"
    publisher.publish([AllBlocksCleared()])
    tenant.until(lambda: tenant.state() == "exact", "exact answers, of an empty cache")
