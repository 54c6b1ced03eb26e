"""Bodies with text are answered as those with its token ids; the text is made tokens of once."""

from array import array
from typing import Any

import pytest

from query_api.http.app import create_app
from query_api.http.text_bodies import TEXT_BODY_BYTES_MAX
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from routing.decisions.router_settings import RouterSettings
from routing.feature import routing_feature
from schemas.media import MediaItem
from tests.fakes import AsgiClient, FakeTable, Reply, registration
from tokens.interface import NoTokens, NoTokensError, Tokens, TokenSource
from tokens.prompt import ChatPrompt, Prompt, TokenPrompt

TOKENS = list(range(10, 22))
MESSAGES = [{"role": "user", "content": "SECRET question"}]
SCOPE = {"model": "m", "block_size": 4}


class FakeTokenizer:
    """Has the same tokens for each prompt, or none."""

    def __init__(self) -> None:
        self.prompts: list[tuple[Prompt, str]] = []
        self.missing: NoTokens | None = None
        self.media: list[MediaItem] = []
        self.is_proven = True

    async def tokens(self, prompt: Prompt, tenant_id: str = "") -> Tokens:
        """See `PromptTokenizer`."""
        self.prompts.append((prompt, tenant_id))
        if self.missing is not None:
            raise NoTokensError(self.missing, "there are none")
        if isinstance(prompt, TokenPrompt):
            return Tokens(prompt.content, TokenSource.GIVEN)
        content = array("I", TOKENS).tobytes()
        return Tokens(content, TokenSource.LOCAL, 8, self.media, self.is_proven)

    def counted(self, prompt: Prompt, tokens: Tokens, prompt_tokens: int) -> None:
        """See `PromptTokenizer`."""
        raise AssertionError("nobody has counted")


@pytest.fixture
def tokenizer() -> FakeTokenizer:
    return FakeTokenizer()


@pytest.fixture
def client(table: FakeTable, tokenizer: FakeTokenizer) -> AsgiClient:
    table.store(table.add(registration("a")), TOKENS[:8], hashes=[1, 2])
    router = Router(table, RoutingQueue(), LiveLoad(), RouterSettings())
    return AsgiClient(create_app(table, table, [routing_feature(router)], tokenizer=tokenizer))


def post(client: AsgiClient, path: str, **fields: Any) -> Reply:
    return client.post_json(path, SCOPE | fields)


@pytest.mark.parametrize("fields", [{"messages": MESSAGES}, {"prompt": "SECRET"}])
@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_text_is_answered_as_its_tokens_are(
    client: AsgiClient, fields: dict[str, Any], wire: str
) -> None:
    send = client.post_json if wire == "json" else client.post_msgpack
    by_tokens = send("/query", SCOPE | {"token_ids": TOKENS})
    by_text = send("/query", SCOPE | fields)
    assert (by_text.status, by_text.body) == (200, by_tokens.body)
    assert by_text.headers["reprise-tokens"] == "local; count=12; reused=8"
    assert "reprise-tokens" not in by_tokens.headers


@pytest.mark.parametrize("wire", ["json", "msgpack"])
@pytest.mark.parametrize("path", ["/query", "/route"])
def test_images_that_an_engine_names_are_asked_for_with_its_tokens(
    client: AsgiClient, tokenizer: FakeTokenizer, wire: str, path: str
) -> None:
    send = client.post_json if wire == "json" else client.post_msgpack
    media = [{"hash": "a3f1", "offset": 1, "length": 5}]
    tokenizer.media = [MediaItem("a3f1", 1, 5, "image")]
    no_body = {"reserve": False} if path == "/route" else {}
    plain = send(path, SCOPE | no_body | {"token_ids": TOKENS})
    by_media = send(path, SCOPE | no_body | {"token_ids": TOKENS, "media": media})
    by_text = send(path, SCOPE | no_body | {"messages": MESSAGES})
    of_client = send(path, SCOPE | no_body | {"messages": MESSAGES, "extra_keys": [None] * 3})
    found = [cached(answer.document()) for answer in (plain, by_media, by_text, of_client)]
    assert found == [8, 0, 0, 8]


def cached(document: Any) -> int:
    """What instance `a` has of the prompt, by the answer of either path in either form."""
    if "prefill" in document:
        return int(document["prefill"]["cached_tokens"])
    found = document.get("instances") or document["default"]
    return int(found["a"]["longest_matched"])


@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_tokens_that_are_not_proven_make_no_answer_exact(
    client: AsgiClient, tokenizer: FakeTokenizer, wire: str
) -> None:
    send = client.post_json if wire == "json" else client.post_msgpack
    found = []
    for tokenizer.is_proven in (True, False):
        plain = send("/query", SCOPE | {"messages": MESSAGES})
        assert ("unproven" in plain.headers["reprise-tokens"]) is not tokenizer.is_proven
        assert cached(plain.document()) == 8
        detail = of_a(send("/query?detail=1", SCOPE | {"messages": MESSAGES}).document())
        trusted = of_a(send("/query?only=exact", SCOPE | {"messages": MESSAGES}).document())
        state = plain.headers["reprise-state"]
        found.append((state, detail["state"], detail["reason"], bool(trusted)))
    assert found == [
        ("exact", "exact", "", True),
        ("unconfirmed", "unconfirmed", "tokens_unproven", False),
    ]


def of_a(document: Any) -> Any:
    """What an answer to `/query` says of instance `a`; {} for nothing."""
    return (document.get("instances") or document.get("default") or {}).get("a", {})


def test_token_ids_as_a_prompt_are_given(client: AsgiClient) -> None:
    answer = post(client, "/query", prompt=TOKENS)
    assert answer.headers["reprise-tokens"] == "given; count=12; reused=0"


def test_what_decides_tokens_goes_to_the_tokenizer_and_the_rest_stays(
    client: AsgiClient, tokenizer: FakeTokenizer
) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = client.post_json(
        "/query",
        {
            "modelname": "m",
            "block_size": 4,
            "tenant_id": "t",
            "tools": tools,
            "messages": MESSAGES,
            "chat_template_kwargs": {"x": 1},
            "cache_salt": "s",
        },
    )
    assert answer.status == 200
    ((prompt, tenant_id),) = tokenizer.prompts
    assert (prompt, tenant_id) == (
        ChatPrompt("m", MESSAGES, tools, template_kwargs={"x": 1}, given_kwargs={"x": 1}),
        "t",
    )


def test_a_body_with_token_ids_is_never_looked_at(
    client: AsgiClient, tokenizer: FakeTokenizer
) -> None:
    assert post(client, "/query", token_ids=TOKENS).status == 200
    assert post(client, "/route", token_ids=TOKENS).status == 200
    assert not tokenizer.prompts


@pytest.mark.parametrize(
    ("reason", "status"),
    [(NoTokens.MEDIA, 422), (NoTokens.ENGINE_SILENT, 503), (NoTokens.TOO_LARGE, 413)],
)
def test_a_query_without_tokens_says_why(
    client: AsgiClient, tokenizer: FakeTokenizer, reason: NoTokens, status: int
) -> None:
    tokenizer.missing = reason
    answer = post(client, "/query", messages=MESSAGES)
    assert (answer.status, answer.document()["reason"]) == (status, f"tokens_{reason}")
    assert "no tokens can be made of the text: there are none" in answer.document()["error"]
    explained = post(client, "/explain", messages=MESSAGES, instance_id="a")
    assert (explained.status, explained.document()["reason"]) == (status, f"tokens_{reason}")


def test_a_route_without_tokens_goes_by_load_and_by_about_how_long_it_is(
    client: AsgiClient, tokenizer: FakeTokenizer
) -> None:
    tokenizer.missing = NoTokens.MEDIA
    candidates = [{"instance_id": "a", "dp_rank": 0}]
    parts = [{"type": "text", "text": "x" * 400}, {"type": "image_url"}]
    answer = post(
        client, "/route", messages=[{"role": "user", "content": parts}], candidates=candidates
    )
    assert (answer.status, answer.headers["reprise-tokens"]) == (200, "none; reason=media")
    assert answer.document()["prefill"]["prompt_tokens"] == 100
    kept = client.get(f"/decisions/{answer.document()['decision_id']}").document()
    assert kept["by_load"] == "media"
    known = post(client, "/route", prompt="x", prompt_tokens=7, candidates=candidates)
    assert known.document()["prefill"]["prompt_tokens"] == 7


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": "SECRET"}, "messages"),
        ({"messages": []}, "messages"),
        ({"prompt": {"SECRET": 1}}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "messages"),
        ({"prompt": "a", "token_ids": [1]}, "prompt"),
        ({"messages": MESSAGES, "temperature": 1}, "temperature"),
        ({"messages": MESSAGES, "block_size": 0}, "block_size"),
    ],
)
def test_what_is_wrong_is_told_without_what_it_says(
    client: AsgiClient, fields: dict[str, Any], field: str
) -> None:
    for path in ("/query", "/route"):
        answer = post(client, path, **fields)
        assert (answer.status, answer.document()["field"]) == (400, field)
        assert "SECRET" not in answer.document()["error"]


@pytest.mark.parametrize("body", [b'{"messages": [', b"messages", b'"prompt"', b'{"a": "prompt"}'])
def test_a_body_that_only_mentions_text_is_refused_as_before(
    client: AsgiClient, tokenizer: FakeTokenizer, body: bytes
) -> None:
    assert client.post("/query", body, content_type="application/json").status == 400
    assert not tokenizer.prompts


def test_text_may_have_more_colons_than_a_body_has_fields(client: AsgiClient) -> None:
    assert post(client, "/query", prompt=":" * 100_000).status == 200


def test_text_is_bounded_before_it_is_objects(client: AsgiClient, tokenizer: FakeTokenizer) -> None:
    answer = post(client, "/query", prompt="x" * TEXT_BODY_BYTES_MAX)
    assert (answer.status, answer.document()["reason"]) == (413, "body_too_large")
    assert not tokenizer.prompts


def test_hashes_are_asked_for_without_text(client: AsgiClient, tokenizer: FakeTokenizer) -> None:
    answer = post(client, "/query_by_hash", prompt="x")
    assert (answer.status, answer.document()["field"]) == (400, "prompt")
    assert not tokenizer.prompts
