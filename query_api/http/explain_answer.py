"""`/explain`: what an instance held of a prompt at a past moment, and what ended the prefix."""

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from query_api.access.rights import Access
from query_api.http import models, openapi
from query_api.http.answers import explanation_document
from query_api.http.caller import access_of
from query_api.http.errors import RequestError, no_history, recovering
from query_api.http.explanation_models import ExplanationDocument
from query_api.http.requests.bodies import Bodies
from query_api.http.requests.options import read_as_of, read_parameters
from query_api.http.requests.queries import Query, block_keys, missing, read_prompt, url_query
from query_api.http.route_table import Routes
from query_api.http.routes import read_request, respond
from query_api.http.text_bodies import TextBodies
from query_api.http.wire import Wire, reply_wire
from query_api.ports import AsOf, History, View
from streams.history.explain import Explanation, Question
from streams.kernel.interface import ReadOnlyKernel

_AS_OF: Final = openapi.parameter("as_of")
_PROMPT: Final = [
    openapi.parameter(name) | {"required": True}
    for name in ("model", "block_size", "instance_id", "token_ids")
]


def past_routes(
    view: View,
    history: History | None,
    bodies: Bodies,
    default_wire: Wire,
    text: TextBodies | None = None,
) -> Routes:
    """The routes that only ask of the past; `history` is None where none is kept, `text` where
    none is taken.
    """
    router = Routes(tags=["past"])

    async def explained(query: Query, as_of: str, wire: Wire) -> Response:
        if history is None:
            raise no_history()
        if not view.ready:
            raise recovering(view.health().problem)
        asked = _questions(query, view)
        moment = read_as_of(as_of) if as_of else AsOf(positions=view.positions())
        told = [(await history.explain(moment, question), question) for question in asked]
        if not any(explanation.is_known for explanation, _ in told):
            # As plain blocks; of an engine with EAGLE they are others.
            asked = _questions(query, view, pairs=True)
            told += [(await history.explain(moment, question), question) for question in asked]
        explanation, question = max(told, key=lambda one: _reach(one[0]))
        return respond(explanation_document(explanation, question), wire)

    @router.get(
        "/explain",
        summary="What an instance held of a prompt then, and what ended it",
        openapi_extra=openapi.operation(
            ExplanationDocument,
            *Wire,
            refused=(400, 413, 500, 503),
            parameters=[_AS_OF, *_PROMPT],
        ),
    )
    async def explain_from_url(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        texts = dict(read_parameters(request.scope["query_string"], errors="strict"))
        as_of = texts.pop("as_of", "")
        return await explained(url_query(texts, access_of(request)), as_of, wire)

    @router.post(
        "/explain",
        summary="The same of a longer prompt: the body is that of /query, with its instance_id",
        openapi_extra=openapi.operation(
            ExplanationDocument,
            *Wire,
            body=models.QueryRequest,
            example=openapi.QUERY_EXAMPLE,
            refused=(400, 413, 500, 503),
            parameters=[_AS_OF],
        ),
    )
    async def explain_from_body(request: Request) -> Response:
        body, wire = await read_request(request, bodies, default_wire)
        texts = dict(read_parameters(request.scope["query_string"]))
        access = access_of(request)
        query, made = await _read(view.kernel, body, wire, access, text)
        answer = await explained(query, texts.get("as_of", ""), wire)
        if made is not None:
            answer.raw_headers.append(made)
        return answer

    return router


async def _read(
    kernel: ReadOnlyKernel, body: bytes, wire: Wire, access: Access, text: TextBodies | None
) -> tuple[Query, tuple[bytes, bytes] | None]:
    """The query, and what the answer says of tokens that were made of its text."""
    try:
        return read_prompt(kernel, body, wire, access), None
    except RequestError:
        found = None
        if text is not None:
            found = await text.translated(body, wire, access, by_load=False)
        if found is None:
            raise
    return read_prompt(kernel, found.body, wire, access), found.header


def _questions(query: Query, view: View, *, pairs: bool = False) -> list[Question]:
    """One for each form in which engines may have its keys."""
    if not query.instance_id:
        raise missing("instance_id")
    if not _blocks(query):
        count = len(query.content) // 4
        text = f"Expected at least one whole block of `{query.block_size}` tokens, got {count}"
        raise RequestError("invalid_value", text, field="token_ids")
    if not _blocks(query, pairs=pairs):
        return []
    scope, forms = block_keys(view.kernel, query)
    prompt, is_cut = (query.content, query.block_size), _blocks(query, pairs=pairs) < _blocks(query)
    hashed = [partial(view.kernel.hash_blocks, *prompt, keys, pairs) for keys in forms]
    return [Question(scope, hashes, query.instance_id, is_cut) for hashes in hashed]


def _reach(explanation: Explanation) -> tuple[int, bool]:
    """How much it says: blocks that were held, and whether it knows of the next one."""
    ended = explanation.ended_by
    if ended is None:
        return explanation.blocks, True
    return ended.block, bool(ended.changes or ended.later)


def _blocks(query: Query, *, pairs: bool = False) -> int:
    """Whole ones of the prompt; one of pairs needs the token behind it."""
    return (len(query.content) // 4 - pairs) // query.block_size
