"""What SMG's gateway is answered, in the messages that it has itself."""

from typing import Any

import grpc
import pytest

from query_api.grpc.bounds import GRPC_HASHES_MAX
from query_api.grpc.refusals import GrpcRefusal
from schemas.answer_states import AnswerState, Standing
from streams.kernel.reference import ReferenceKernel
from tests.fakes import FakeTable
from tests.router_protos import RADIX
from tests.unit.query_api.grpc.conftest import BLOCK_SIZE, Index, content_hashes

TOKENS, BYTES = 1, 2


def query(hashes: list[int], *, query_id: int = 7, **keyspace: Any) -> bytes:
    fields = {"model": "m", "symbol_kind": TOKENS, "block_size": BLOCK_SIZE, "hash_scheme": 1}
    message = RADIX.Query(
        query_id=query_id,
        keyspace=RADIX.Keyspace(**fields | keyspace),
        content_hashes=hashes,
    )
    encoded: bytes = message.SerializeToString()
    return encoded


def ask(index: Index, message: bytes, **options: Any) -> Any:
    return RADIX.Match.FromString(index.radix_index(**options).match(message))


def scores(answer: Any) -> list[tuple[str, int]]:
    return [(score.holder, score.matched_blocks) for score in answer.scores]


def test_holders_are_those_of_the_table_by_hashes_of_tokens(index: Index) -> None:
    index.add("a", 3, url="http://a")
    index.add("b", 8, url="grpc://b")
    index.add("c", 0)
    answer = ask(index, query(content_hashes()))
    assert answer.query_id == 7
    assert scores(answer) == [("grpc://b", 8), ("http://a", 3)]
    assert [(score.total_blocks, score.event_fed) for score in answer.scores] == [
        (8, True),
        (3, True),
    ]
    runs = [[(run.start, run.end) for run in score.intervals] for score in answer.scores]
    assert runs == [[(0, 8)], [(0, 3)]]


def test_of_ranks_behind_one_url_the_best_counts(index: Index) -> None:
    index.add("a", 2, url="u", rank=0)
    index.add("a", 5, url="u", rank=1)
    index.add("a", 1, url="v", rank=2)
    assert scores(ask(index, query(content_hashes()))) == [("u", 5), ("v", 1)]


def test_only_the_keyspace_is_asked(index: Index) -> None:
    index.add("a", 2, model_name="m")
    index.add("b", 3, model_name="n")
    index.add("c", 4, tenant_id="t")
    hashes = content_hashes()
    assert scores(ask(index, query(hashes))) == [("a", 2)]
    assert scores(ask(index, query(hashes, model="n"))) == [("b", 3)]
    assert scores(ask(index, query(hashes), tenant_id="t")) == [("c", 4)]
    assert scores(ask(index, query(hashes, block_size=8))) == []
    assert scores(ask(index, query(hashes, model=""))) == []


def test_what_names_no_kind_and_no_scheme_is_ours(index: Index) -> None:
    index.add("a", 2)
    message = query(content_hashes(), symbol_kind=0, hash_scheme=0)
    assert scores(ask(index, message)) == [("a", 2)]
    assert not index.counts.refused


@pytest.mark.parametrize(
    ("keyspace", "reason"),
    [
        ({"symbol_kind": BYTES}, "not_of_tokens"),
        ({"hash_scheme": 2}, "other_hash_scheme"),
        ({"block_size": 0}, "bad_block_size"),
        ({"block_size": 2**32 - 1}, "bad_block_size"),
    ],
)
def test_hashes_of_another_kind_name_nobody_and_are_counted(
    index: Index, keyspace: dict[str, int], reason: str
) -> None:
    index.add("a", 2)
    answer = ask(index, query(content_hashes(), query_id=9, **keyspace))
    assert (answer.query_id, scores(answer)) == (9, [])
    assert index.counts.refused == {reason: 1}


def test_with_another_seed_nobody_is_named(index: Index) -> None:
    index.table = FakeTable(ReferenceKernel(4))
    assert scores(ask(index, query(content_hashes()))) == []
    assert index.counts.refused == {"other_seed": 1}


def test_with_only_exact_others_are_left_out(index: Index) -> None:
    index.add("a", 2)
    index.add("b", 3)
    index.table.standings["b"] = Standing(AnswerState.DEGRADED, "", 0.0)
    assert scores(ask(index, query(content_hashes()), only_exact=True)) == [("a", 2)]


def test_of_a_long_prompt_the_first_hashes_count(index: Index) -> None:
    index.add("a", 8)
    answer = ask(index, query(content_hashes() + [1] * GRPC_HASHES_MAX))
    assert scores(answer) == [("a", 8)]
    assert index.counts.hashes_ignored == 8


def test_an_update_is_acknowledged_and_counted_by_whether_its_holder_is_followed(
    index: Index,
) -> None:
    index.add("a", 2, url="http://a")
    stored = RADIX.Stored(blocks=[RADIX.Block(seq_hash=1, content_hash=2)])
    for holder, seq in (("http://a", 3), ("http://other", 0)):
        update = RADIX.Update(
            keyspace=RADIX.Keyspace(model="m", block_size=BLOCK_SIZE),
            holder=holder,
            epoch=5,
            seq=seq,
            events=[RADIX.Event(stored=stored)],
            added=RADIX.Added(event_fed=True),
        )
        ack = RADIX.PublishAck.FromString(
            index.radix_index().acknowledge(update.SerializeToString())
        )
        assert (ack.holder, ack.epoch, ack.applied_seq) == (holder, 5, seq)
        assert not ack.digest_miss_tip
    assert index.counts.updates == {"followed": 1, "not_followed": 1}
    assert scores(ask(index, query([2]))) == []


@pytest.mark.parametrize("method", ["match", "acknowledge"])
def test_what_is_no_message_is_refused(index: Index, method: str) -> None:
    with pytest.raises(GrpcRefusal) as caught:
        getattr(index.radix_index(), method)(b"\xff")
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.reason == "malformed"


def test_a_holder_of_endless_name_is_refused(index: Index) -> None:
    update = RADIX.Update(holder="x" * 5000).SerializeToString()
    with pytest.raises(GrpcRefusal, match="malformed"):
        index.radix_index().acknowledge(update)
