"""Questions of the past: a prompt is hashed in the turn of its question, never on the loop."""

import asyncio
import threading
from typing import Any

import pytest

from query_api.past_answers import PastAnswers
from query_api.ports import AsOf, PastQuestion, PastView
from reprise.application import create_app
from schemas.errors import PastError
from schemas.events import extra_key
from streams.history.explain import EndedBy, Explanation, Question
from streams.history.past_tables import PastTables
from streams.kernel.hashing import prefix_hashes
from streams.kernel.reference import ReferenceKernel
from tests.building import u64s
from tests.fakes import SEED, AsgiClient, FakeTable, pack_tokens

TOKENS = list(range(18))
BODY = {"model": "m", "block_size": 4, "token_ids": TOKENS, "instance_id": "a"}


class NotingKernel(ReferenceKernel):
    """Notes in which threads prompts are hashed."""

    def __init__(self) -> None:
        super().__init__(SEED)
        self.threads: list[int] = []

    def hash_blocks(self, *prompt: Any) -> bytes:
        """See `Kernel`."""
        self.threads.append(threading.get_ident())
        return super().hash_blocks(*prompt)


class NoHistory:
    """Keeps what it was asked, and has no answer."""

    def __init__(self) -> None:
        self.asked: list[PastQuestion | Question] = []
        self.most = 2

    async def view_as_of(self, as_of: AsOf, asked: PastQuestion) -> PastView:
        """See `History`."""
        self.asked.append(asked)
        raise PastError("as_of_too_old", "it is")

    async def explain(self, as_of: AsOf, question: Question) -> Explanation:
        """See `History`: nothing is known of the blocks."""
        self.asked.append(question)
        if len(self.asked) == self.most:
            raise PastError("as_of_too_old", "it is")
        return Explanation(0, 0, None, 4, EndedBy(0, 0, [], None))


def hashes(*, key: bytes = b"", pairs: bool = False) -> bytes:
    found = prefix_hashes(pack_tokens(TOKENS), 4, seed=SEED, keys=(key,), pairs=pairs)
    return u64s(list(found))


@pytest.fixture
def kernel() -> NotingKernel:
    return NotingKernel()


@pytest.fixture
def history() -> NoHistory:
    return NoHistory()


@pytest.fixture
def client(kernel: NotingKernel, history: NoHistory) -> AsgiClient:
    table = FakeTable(kernel)
    return AsgiClient(create_app(table, table, history=history))


def test_a_query_is_hashed_once_it_is_its_turn(
    client: AsgiClient, kernel: NotingKernel, history: NoHistory
) -> None:
    reply = client.post_json("/query?as_of=0:0", BODY | {"cache_salt": "s"})
    assert reply.document()["reason"] == "as_of_too_old"
    assert kernel.threads == []
    (asked,) = history.asked
    salt = extra_key(["s"])
    expected = [hashes(key=key, pairs=pairs) for key in (b"", salt) for pairs in (False, True)]
    assert asked.prefixes() == b"".join(expected)


def test_explain_hashes_once_it_is_its_turn(
    client: AsgiClient, kernel: NotingKernel, history: NoHistory
) -> None:
    assert client.post_json("/explain", BODY).document()["reason"] == "as_of_too_old"
    assert kernel.threads == []
    assert [asked.prefixes() for asked in history.asked] == [hashes(), hashes(pairs=True)]


def test_explain_asks_for_each_form_in_which_engines_write_an_image(
    client: AsgiClient, history: NoHistory
) -> None:
    history.most = 5
    client.post_json("/explain", BODY | {"media": [{"hash": "a3f1", "offset": 3, "length": 2}]})
    placed = (extra_key([["a3f1", 3]]), extra_key([["a3f1", -1]]))
    bare = (extra_key(["a3f1"]), extra_key(["a3f1"]))
    expected = [
        u64s(list(prefix_hashes(pack_tokens(TOKENS), 4, seed=SEED, keys=keys, pairs=pairs)))
        for pairs in (False, True)
        for keys in (placed, bare)
    ]
    assert [asked.prefixes() for asked in history.asked] == expected


def test_explain_asks_for_pairs_only_where_there_is_one(
    client: AsgiClient, history: NoHistory
) -> None:
    client.post_json("/explain", BODY | {"token_ids": TOKENS[:4]})
    assert [len(asked.prefixes()) for asked in history.asked] == [8]


@pytest.mark.parametrize("tokens", [[], TOKENS[:3]])
def test_explain_of_no_whole_block_is_refused(
    client: AsgiClient, history: NoHistory, tokens: list[int]
) -> None:
    reply = client.post_json("/explain", BODY | {"token_ids": tokens})
    assert (reply.status, reply.document()["field"]) == (400, "token_ids")
    assert history.asked == []


def test_answers_of_the_past_are_hashed_beside_the_loop(kernel: NotingKernel) -> None:
    class NoTables(PastTables):
        def as_of(self, *args: object, **asked: object) -> Any:
            raise PastError("as_of_too_old", "it is")

    answers = PastAnswers(NoTables([], lambda: kernel), positions_at=lambda seconds: ())
    asked = PastQuestion(
        "t", "m", 4, prefixes=lambda: kernel.hash_blocks(pack_tokens(TOKENS), 4, (), False)
    )
    with pytest.raises(PastError, match="it is"):
        asyncio.run(answers.view_as_of(AsOf(seconds=0.0), asked))
    assert len(kernel.threads) == 1
    assert kernel.threads != [threading.get_ident()]
