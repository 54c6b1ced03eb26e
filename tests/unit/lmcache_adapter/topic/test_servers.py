"""Servers that write LMCache's topic: whose batch counts, what is missing, and what is written."""

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest

from lmcache_adapter.topic.batches import Batch, BatchHead, ChunkEntry, ChunkKey, UnreadableBatch
from lmcache_adapter.topic.servers import LMCACHE_SERVER_SILENT_S, ModelOf, Servers
from schemas.answer_states import Doubt
from schemas.identities import PublisherKey, StreamKey
from schemas.registration import Registration
from tests.unit.lmcache_adapter.scene import Index

A = PublisherKey(StreamKey("t", "m", 16, "", "a"), 0)
B = PublisherKey(StreamKey("t", "m", 16, "", "b"), 0)


class Topic:
    """What is written to the topic, and what becomes of it."""

    def __init__(
        self,
        known: Iterable[Registration] = (),
        *,
        begun: bool = True,
        first: int = 1,
        says_all: bool = False,
    ) -> None:
        self.index = Index()
        self.dropped: Counter[str] = Counter()
        self.doubts: dict[PublisherKey, Doubt | None] = {}
        self.numbers: Counter[tuple[str, int]] = Counter()
        self.now = 0.0
        self.servers = Servers(
            "topic",
            model_of=lambda name: ModelOf("t", 16, says_all),
            next_incarnation=lambda publisher: first,
            clock=lambda: 1_795_000_000.0,
            dropped=self._drop,
            known=known,
        )
        self.servers.is_current = True
        if begun:
            self.servers.begin()

    def _drop(self, reason: str, count: int = 1, /) -> None:
        self.dropped[reason] += count

    def write(
        self,
        kind: str,
        *chunks: int,
        at: str = "a",
        incarnation: int = 1,
        seq: int | None = None,
        tier: str = "l1",
        backend: str = "x",
        shared: bool = False,
        model: str = "m",
        rank: int = 0,
        group: int = 0,
        salt: str = "",
    ) -> None:
        number = self.numbers[at, incarnation] + 1 if seq is None else seq
        self.numbers[at, incarnation] = number
        entries = [
            ChunkEntry(
                key=ChunkKey(
                    chunk_hash_hex=f"{chunk:016x}",
                    model_name=model,
                    kv_rank=rank << 16,
                    object_group_id=group,
                    cache_salt=salt,
                )
            )
            for chunk in chunks
        ]
        batch = Batch(
            instance_id=at,
            incarnation=incarnation,
            seq=number,
            event_type=kind,  # type: ignore[arg-type]
            tier=tier,  # type: ignore[arg-type]
            backend=backend,
            shared=shared,
            entries=entries,
        )
        self.servers.take(batch, self.now)
        self.settle()

    def settle(self) -> None:
        for told in self.servers.tell(self.now):
            for record in told.records:
                self.index.apply(record)
            self.doubts[told.publisher] = told.doubt

    def keys(self, publisher: PublisherKey = A) -> set[tuple[str, int]]:
        return self.index.keys(publisher)


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.mark.parametrize("says_all", [False, True])
def test_a_server_that_may_drop_events_unseen_is_doubted(says_all: bool) -> None:
    topic = Topic(says_all=says_all)
    topic.write("store", 1)
    (registration,) = topic.servers.known()
    assert registration.doubt == (None if says_all else Doubt.DROPS_UNSAID)


def test_what_is_stored_and_deleted_is_written(topic: Topic) -> None:
    topic.write("store", 1, 2)
    topic.write("delete", 1)
    topic.write("store", 3, tier="l2")
    assert topic.keys() == {("CPU", 2), ("DISK", 3)}
    assert topic.index.registered.keys() == {A}
    assert topic.doubts[A] is None


def test_what_says_nothing_of_blocks_counts_as_a_batch(topic: Topic) -> None:
    topic.write("store", 1)
    topic.write("access", 1)
    topic.write("config")
    topic.write("store", 2)
    assert topic.keys() == {("CPU", 1), ("CPU", 2)}
    assert topic.index.degraded[A] is None
    assert topic.servers.batches == 4


def test_a_chunk_is_held_while_any_backend_or_group_has_it(topic: Topic) -> None:
    topic.write("store", 1, backend="x")
    topic.write("store", 1, backend="y")
    topic.write("store", 1, backend="y", group=1)
    topic.write("store", 1, backend="y", group=1)
    topic.write("delete", 1, backend="x")
    topic.write("delete", 1, backend="y")
    assert topic.keys() == {("CPU", 1)}
    topic.write("delete", 1, backend="y", group=1)
    assert topic.keys() == set()


def test_models_salts_and_ranks_are_publishers_of_their_own(topic: Topic) -> None:
    topic.write("store", 1)
    topic.write("store", 1, model="n")
    topic.write("store", 1, salt="s")
    topic.write("store", 1, rank=3)
    assert {
        (one.stream.model_name, one.stream.additional_salt, one.dp_rank)
        for one in topic.index.registered
    } == {
        ("m", "", 0),
        ("n", "", 0),
        ("m", "s", 0),
        ("m", "", 3),
    }


# The gate


def test_a_publisher_that_is_not_noted_is_news(topic: Topic) -> None:
    told = []
    for salt in ("", "", "s"):
        topic.servers.has_news = False
        topic.write("store", 1, salt=salt)
        told.append(topic.servers.has_news)
    assert told == [True, False, True]


def test_a_batch_that_comes_twice_counts_once(topic: Topic) -> None:
    topic.write("store", 1, seq=1)
    topic.write("delete", 1, seq=2)
    topic.write("store", 1, seq=1)
    assert topic.keys() == set()
    assert topic.dropped == {"duplicate_batch": 1}


def test_a_jump_is_a_gap_and_the_batch_is_applied(topic: Topic) -> None:
    topic.write("store", 1)
    topic.write("store", 2, seq=5)
    topic.write("store", 3)
    assert topic.keys() == {("CPU", 1), ("CPU", 2), ("CPU", 3)}
    assert topic.index.degraded[A] == "batches_missed"
    assert topic.servers.gaps == 1
    topic.write("store", 1, model="n")
    assert set(topic.index.degraded.values()) == {"batches_missed"}, "it may be of any model"


def test_a_first_batch_that_is_not_the_first_is_a_gap(topic: Topic) -> None:
    topic.write("store", 1, seq=7)
    assert topic.index.degraded[A] == "beginning_missed"


def test_a_new_process_has_an_empty_memory_and_its_storage(topic: Topic) -> None:
    topic.write("store", 1)
    topic.write("store", 2, tier="l2")
    topic.write("store", 3, incarnation=2)
    assert topic.keys() == {("CPU", 3), ("DISK", 2)}
    assert topic.index.degraded[A] is None
    topic.write("store", 9, incarnation=1)
    assert topic.keys() == {("CPU", 3), ("DISK", 2)}
    assert topic.dropped == {"stale_incarnation": 1}


def test_a_new_process_mends_what_was_missed_of_memory_alone(topic: Topic) -> None:
    topic.write("store", 1)
    topic.write("store", 2, seq=9)
    topic.write("store", 3, incarnation=2)
    assert topic.index.degraded[A] is None
    topic.write("store", 4, tier="l2", incarnation=2)
    topic.write("store", 5, seq=90, incarnation=2)
    topic.write("store", 6, incarnation=3)
    assert topic.index.degraded[A] == "batches_missed"


def test_a_bad_batch_is_a_gap_of_its_server(topic: Topic) -> None:
    topic.write("store", 1)
    topic.servers.take(UnreadableBatch(BatchHead(instance_id="a", incarnation=1, seq=2), "x"), 0.0)
    topic.servers.take(UnreadableBatch(None, "x"), 0.0)
    topic.settle()
    assert topic.index.degraded[A] == "undecodable"
    topic.write("store", 2, seq=3)
    assert topic.keys() == {("CPU", 1), ("CPU", 2)}
    assert topic.dropped == {"malformed_batch": 2}
    assert topic.servers.gaps == 1


# Storage that instances share


def test_what_one_stored_in_shared_storage_another_may_delete(topic: Topic) -> None:
    topic.write("store", 1, tier="l2", shared=True)
    topic.write("store", 2, at="b")
    topic.write("store", 1, at="b", tier="l2", shared=True)
    assert (topic.keys(A), topic.keys(B)) == ({("DISK", 1)}, {("CPU", 2)})
    topic.write("delete", 1, at="b", tier="l2", shared=True)
    assert topic.keys(A) == set()
    topic.write("store", 1, at="b", tier="l2", shared=True)
    assert topic.keys(B) == {("CPU", 2), ("DISK", 1)}


# Our own runs


def test_nothing_is_written_before_the_end_of_the_topic_was_reached() -> None:
    topic = Topic(begun=False, first=7)
    topic.servers.is_current = False
    topic.write("store", 1, 2)
    topic.write("delete", 2)
    assert topic.index.cursors == {}
    topic.servers.begin()
    topic.servers.is_current = True
    topic.settle()
    assert topic.keys() == {("CPU", 1)}
    assert topic.index.cursors[A] == (7, 0)
    assert topic.doubts[A] is None


def test_who_was_there_before_and_is_not_in_the_topic_is_ended() -> None:
    before = Topic()
    before.write("store", 1)
    before.write("store", 1, at="b")
    topic = Topic(before.servers.known(), begun=False, first=2)
    topic.index = before.index
    topic.write("store", 5, at="b")
    topic.servers.begin()
    topic.settle()
    assert topic.index.registered.keys() == {B}
    assert (topic.keys(A), topic.keys(B)) == (set(), {("CPU", 5)})


def test_a_publisher_that_a_client_has_unregistered_comes_back_with_all_that_it_holds(
    topic: Topic,
) -> None:
    topic.write("store", 1)
    topic.servers.forget(A)
    topic.index = Index()
    topic.write("access", 1)
    assert topic.keys() == set()
    topic.write("store", 2)
    assert topic.keys() == {("CPU", 1), ("CPU", 2)}


def test_nothing_is_told_of_a_publisher_that_a_client_has_unregistered(topic: Topic) -> None:
    topic.write("store", 1)
    topic.servers.forget(A)
    topic.doubts.clear()
    topic.now = LMCACHE_SERVER_SILENT_S + 1
    topic.servers.look()
    topic.settle()
    assert topic.doubts == {}, "a heartbeat would name it"


def test_what_the_log_has_lost_is_written_anew(topic: Topic) -> None:
    topic.write("store", 1)
    topic.write("store", 2, seq=9)
    topic.index.held[A].clear()
    topic.servers.rewrite([A, B])
    topic.settle()
    assert topic.keys() == {("CPU", 1), ("CPU", 2)}
    assert topic.index.degraded[A] == "batches_missed"


def test_a_server_that_is_silent_for_long_is_not_confirmed(topic: Topic) -> None:
    topic.write("store", 1)
    topic.now = LMCACHE_SERVER_SILENT_S + 1
    topic.servers.look()
    topic.settle()
    assert topic.doubts[A] is Doubt.WORKER_SILENT
    topic.write("access", 1)
    assert topic.doubts[A] is None


# Bounds


def test_chunks_beyond_the_bound_are_dropped_and_counted(topic: Topic) -> None:
    topic.servers._budget._most = 2
    topic.write("store", 1, 2, 3)
    assert topic.keys() == {("CPU", 1), ("CPU", 2)}
    assert topic.index.degraded[A] == "too_many_keys"
    assert topic.dropped == {"too_many_keys": 1}
    topic.write("delete", 1)
    topic.write("store", 4)
    assert topic.keys() == {("CPU", 2), ("CPU", 4)}


def test_publishers_and_servers_beyond_the_bound_are_dropped_and_counted(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_adapter.topic.servers.LMCACHE_WORKERS_MAX", 2)
    for number in range(3):
        topic.write("store", 1, model=f"m{number}")
    topic.write("store", 1, at="b", model="m0")
    topic.write("store", 1, at="c")
    assert len(topic.index.registered) == 2
    assert topic.dropped == {"too_many_publishers": 3}


@pytest.mark.parametrize("seed", range(100))
def test_what_is_written_equals_what_the_servers_hold(seed: int) -> None:
    random = Random(seed)
    topic = Topic(begun=False)
    held: dict[str, set[tuple[str, str, int]]] = {"a": set(), "b": set()}
    lives = Counter({"a": 1, "b": 1})
    begin_at = random.randrange(100)
    for step in range(150):
        if step == begin_at:
            topic.servers.begin()
        at = random.choice("ab")
        if random.random() < 0.03:
            lives[at] += 1
            held[at] = {one for one in held[at] if one[0] == "l2"}
            topic.write("access", at=at, incarnation=lives[at])
            continue
        tier, backend = random.choice([("l1", "x"), ("l1", "y"), ("l2", "z")])
        chunks = [random.randrange(8) for _ in range(3)]
        named = {(tier, backend, chunk) for chunk in chunks}
        kind = random.choice(["store", "delete"])
        held[at] = held[at] | named if kind == "store" else held[at] - named
        topic.write(kind, *chunks, at=at, incarnation=lives[at], tier=tier, backend=backend)
    for at, publisher in (("a", A), ("b", B)):
        media = {"l1": "CPU", "l2": "DISK"}
        assert topic.keys(publisher) == {(media[tier], chunk) for tier, _, chunk in held[at]}
