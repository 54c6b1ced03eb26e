"""`/explain` of an engine with blocks of pairs, each of which needs the token behind it."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from logs.embedded import EmbeddedLog
from query_api.http.explanation_models import ExplanationDocument
from query_api.ports import AsOf, PastQuestion, PastView
from reprise.application import create_app
from schemas.events import paired_key
from schemas.identities import Offset
from streams.history.explain import Explanation, Question, explain
from streams.history.past_fold import Past
from streams.history.store import HistoryStore
from streams.kernel import open_kernel
from tests.building import events_record, registered_record, registration, stored, u32s
from tests.fakes import AsgiClient, FakeTable

TOKENS = list(range(20))
PAIRED = msgspec.structs.replace(
    stored(0, [1, 2, 3], TOKENS[:12]),
    extra_keys=tuple(paired_key(b"", u32s([TOKENS[behind]])) for behind in (4, 8, 12)),
)


class Remembered:
    """The `History` of a log of two records."""

    def __init__(self, past: Past) -> None:
        self._past = past

    async def view_as_of(self, as_of: AsOf, asked: PastQuestion) -> PastView:
        raise NotImplementedError

    async def explain(self, as_of: AsOf, question: Question) -> Explanation:
        return explain(self._past, question, Offset(1))


@pytest.fixture
def client(tmp_path: Path, log: EmbeddedLog, table: FakeTable) -> Iterator[AsgiClient]:
    log.append([registered_record(registration("a")), events_record(0, 0, [PAIRED])])
    history = HistoryStore(tmp_path / "history")
    past = Past(history, lambda: log, lambda: open_kernel(1337))
    yield AsgiClient(create_app(table, table, history=Remembered(past)))
    history.close()


def explained(client: AsgiClient, tokens: list[int]) -> ExplanationDocument:
    body = {"model": "m", "block_size": 4, "token_ids": tokens, "instance_id": "a"}
    reply = client.post_json("/explain", body)
    assert reply.status == 200, reply.body
    return msgspec.json.decode(reply.body, type=ExplanationDocument)


@pytest.mark.parametrize(
    ("length", "prompt", "held"), [(8, 8, 4), (12, 12, 8), (16, 16, 12), (20, 20, 12)]
)
def test_a_prompt_that_ends_with_a_block_is_told_of_it(
    client: AsgiClient, length: int, prompt: int, held: int
) -> None:
    found = explained(client, TOKENS[:length])
    assert (found.prompt_tokens, found.longest_matched) == (prompt, held)
    ended = found.ended_by
    assert ended is not None
    assert (ended.block, ended.tokens) == (held // 4, [held, held + 4])
    is_cut = prompt == held + 4
    assert ended.reason == ("no_next_token" if is_cut else "not_stored")
    assert (ended.prefix_hash == "") is is_cut


def test_one_that_goes_on_is_held_whole(client: AsgiClient) -> None:
    found = explained(client, TOKENS[:13])
    assert (found.prompt_tokens, found.longest_matched, found.ended_by) == (12, 12, None)
