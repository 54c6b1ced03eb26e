"""The OpenAPI document: what each route takes and answers, as fragments for FastAPI's generator."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from query_api.http import models
from query_api.http.errors import ErrorEnvelope
from query_api.http.route_table import Routes
from query_api.http.wire import Wire
from schemas.answer_states import AnswerState

Model = type[msgspec.Struct]
Fragment = dict[str, Any]
"""A part of an OpenAPI document: a tree of plain JSON, with models where their schemas go."""

DOCS_FILES: Final = "/docs/files"
_REFERENCE: Final = "#/components/schemas/{name}"


def _map_of(schema: Fragment) -> Fragment:
    return {"type": "object", "additionalProperties": schema}


_PUBLISHED: Final = _map_of(_map_of({"anyOf": [models.PublishedMatch, models.DetailedMatch]}))
_CONDUCTOR: Final = {"anyOf": [models.ConductorMatches, models.DetailedConductorMatches]}
_ANSWER_OPTIONS: Final = [
    {
        "name": "detail",
        "in": "query",
        "description": "1: each instance of the scope with its state, the reason and since when,"
        " also those that hold nothing of the prompt.",
        "schema": {"type": "string", "enum": ["1", "true", "0", "false", ""], "default": "0"},
    },
    {
        "name": "only",
        "in": "query",
        "description": "`exact`: instances whose state is another are left out. `all`: none is. The"
        " default is `all`, or `exact` of a service that was started with `http.only_exact`.",
        "schema": {"type": "string", "enum": ["exact", "all"]},
    },
    {
        "name": "hits_only",
        "in": "query",
        "description": "1: instances that hold nothing of the prompt are left out.",
        "schema": {"type": "string", "enum": ["1", "true", "0", "false", ""], "default": "0"},
    },
    {
        "name": "as_of",
        "in": "query",
        "description": "What the table held then: a position as the header `Reprise-Position` has"
        " it, Unix seconds, or a time in ISO 8601. Of a service that keeps a history.",
        "schema": {"type": "string"},
        "example": "0:592",
    },
]
_OCTETS: Final = "application/octet-stream"
_ANSWER_HEADERS: Final = {
    "Reprise-Position": {
        "description": "`partition:offset` of the last record that the answer knows of, of each"
        " partition, with commas between.",
        "schema": {"type": "string"},
    },
    "Reprise-State": {
        "description": "How far the answer can be trusted. `exact`: everything that the publishers"
        " in the scope had published until at most 5 s ago is in it, and that is known."
        " `unconfirmed`: nothing is known to be missing, but it cannot be shown."
        " `degraded`: something is known to be missing: batches of a publisher in the scope,"
        " or events of one, were lost, or blocks that it announces cannot be used. `stale`: the"
        " table is behind its log: by more than 5 s or 100,000 records, or for as long as the log"
        " cannot be reached.",
        "schema": {"type": "string", "enum": [state.value for state in AnswerState]},
    },
    "Reprise-Unknown": {
        "description": "Only where the answer is empty since no engine has what is asked for: the"
        " first of `tenant_id`, `model`, `block_size`, `additional_salt` and `lora_name` that none"
        " has, and what the tenant has in its place. Names are percent-encoded.",
        "schema": {"type": "string"},
        "example": "block_size=16; known=32,64",
    },
    "X-Request-Id": {
        "description": "As the request sent it.",
        "schema": {"type": "string"},
    },
}

QUERY_EXAMPLE: Final = {
    "model": "deepseek",
    "block_size": 4,
    "token_ids": [101, 15, 100, 55, 89, 7, 42, 3, 9],
    "tenant_id": "default",
}
HASH_QUERY_EXAMPLE: Final = {
    "model": "deepseek",
    "block_size": 64,
    "seq_hashes": [1234567890, 9876543210],
    "tenant_id": "default",
}
PUBLISHED_EXAMPLE: Final = {
    "default": {
        "vllm-prefill-node1": {
            "longest_matched": 256,
            "GPU": 128,
            "CPU": 256,
            "DISK": 0,
            "DP": {"0": 128, "1": 256},
        }
    }
}
CONDUCTOR_EXAMPLE: Final = {
    "instances": {
        "a": {
            "longest_matched": 16,
            "dp": {"0": 8},
            "rank_matches": {"0": {"gpu": 8, "cpu": 12, "disk": 16}},
            "gpu": 8,
            "cpu": 12,
            "disk": 16,
        }
    }
}
REGISTER_EXAMPLE: Final = {
    "endpoint": "tcp://10.0.0.7:5557",
    "replay_endpoint": "tcp://10.0.0.7:5558",
    "type": "vLLM",
    "modelname": "deepseek",
    "tenant_id": "default",
    "instance_id": "vllm-prefill-node1",
    "block_size": 64,
    "dp_rank": 0,
}
REGISTERED_EXAMPLE: Final = {
    "status": "registered successfully",
    "instance_id": "vllm-prefill-node1",
}
UNREGISTER_EXAMPLE: Final = {
    "instance_id": "vllm-prefill-node1",
    "tenant_id": "default",
    "dp_rank": 0,
}
UNREGISTERED_EXAMPLE: Final = {
    "status": "unregistered successfully",
    "removed_instances": ["vllm-prefill-node1|default|0"],
}
ERROR_EXAMPLE: Final = {
    "error": "token_ids element is outside the int32 range",
    "reason": "out_of_range",
    "field": "token_ids",
    "index": 3,
}


def _content(schema: Fragment | Model, example: object, *wires: Wire) -> Fragment:
    shown = {} if example is None else {"example": example}
    return {wire.value: {"schema": schema, **shown} for wire in wires}


def operation(
    answers: Model | Mapping[int, Model],
    *wires: Wire,
    body: Model | None = None,
    example: object = None,
    answer_example: object = None,
    refused: Sequence[int] = (),
    parameters: Sequence[Fragment] = (),
) -> Fragment:
    """Request and answers of a route.

    Args:
        answers: the one of status 200, or those of each status.
        wires: forms of the answers, among which Accept chooses; none: JSON alone.
        refused: statuses of error answers.
    """
    if not isinstance(answers, Mapping):
        answers = {200: answers}
    responses = {
        str(status): {
            "description": model.__doc__ or "",
            "content": _content(model, answer_example, *(wires or (Wire.JSON,))),
        }
        for status, model in answers.items()
    }
    found: Fragment = {"responses": responses | _errors(*refused)}
    if parameters:
        found["parameters"] = list(parameters)
    if body is not None:
        found["requestBody"] = {"required": True, "content": _content(body, example, *Wire)}
    return found


def parameter(name: str, schema: Fragment | str = "string", description: str = "") -> Fragment:
    """One of a URL that may be left out; its schema, or the name of its type."""
    found: Fragment = {"name": name, "in": "query"}
    if description:
        found["description"] = description
    return found | {"schema": {"type": schema} if isinstance(schema, str) else schema}


def _errors(*statuses: int) -> Fragment:
    """The error answers of a route."""
    texts = {
        400: "The request is wrong: `reason`, `field` and `index` say where.",
        404: "No such service.",
        409: "Nobody can do it now: `reason` and the text say why.",
        413: "The body or an array in it is too large.",
        500: "The endpoint cannot be connected to, or an unexpected error.",
        503: "Not now: `recovering` or `storage`.",
        504: "Not all have done it in time; whether they will is not known.",
    }
    content = _content(ErrorEnvelope, ERROR_EXAMPLE, *Wire)
    return {str(status): {"description": texts[status], "content": content} for status in statuses}


def query_operation(model: Model, example: Fragment) -> Fragment:
    """Request and answers of a hot route."""
    found = operation({}, body=model, example=example, refused=(400, 413, 500, 503))
    content = _content(_PUBLISHED, PUBLISHED_EXAMPLE, Wire.JSON)
    content |= _content(_CONDUCTOR, CONDUCTOR_EXAMPLE, Wire.MSGPACK)
    found["parameters"] = _ANSWER_OPTIONS
    found["responses"]["200"] = {
        "description": "What each instance holds. An unknown scope is an empty answer.",
        "headers": _ANSWER_HEADERS,
        "content": content,
    }
    request = found["requestBody"]
    request["content"][_OCTETS] = {"schema": {"type": "string", "format": "binary"}}
    request["description"] = (
        f"As `{_OCTETS}` the body is nothing but tokens (u32, little-endian) or prefix hashes (u64,"
        " little-endian), and the other fields stand in the URL: `?model=m&block_size=16`."
    )
    return found


_DOCUMENT: Final = "/openapi.json"


class Documentation:
    """`/docs`, `/openapi.json` and what they need: a FastAPI app that knows the routes, and is made
    when it is first asked. An ASGI application.

    Args:
        handlers: of errors, as an app takes them.
    """

    PATHS: Final = frozenset({"/docs", _DOCUMENT})

    def __init__(
        self,
        routes: Routes,
        version: str,
        handlers: Mapping[Any, Any],
    ) -> None:
        self._routes = routes
        self._version = version
        self._handlers = handlers
        self._app: ASGIApp | None = None
        self._making = asyncio.Lock()

    def paths(self) -> frozenset[str]:
        """What is documented, and where the documents are."""
        return self._routes.paths() | self.PATHS

    def has(self, path: str) -> bool:
        """Whether the path is one of these."""
        return path in self.PATHS or path.startswith("/docs/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the class."""
        async with self._making:  # once, however many ask at once
            if self._app is None:  # some 0.3 s, in which the loop goes on to answer
                self._app = await asyncio.to_thread(self._made)
        await self._app(scope, receive, send)

    def _made(self) -> ASGIApp:
        from fastapi.openapi.utils import get_openapi
        from fastapi_offline import FastAPIOffline

        app = FastAPIOffline(  # what `/docs` needs is served from here, and from nowhere else
            title="Reprise",
            summary="Which engine holds the longest cached prefix of a prompt",
            version=self._version,
            docs_url="/docs",
            redoc_url=None,
            static_url=DOCS_FILES,
            openapi_url=_DOCUMENT,
            redirect_slashes=False,
            exception_handlers=dict(self._handlers),
        )
        named = sorted(set(_models_in(self._routes.fragments())), key=lambda model: model.__name__)
        schemas, components = msgspec.json.schema_components(named, ref_template=_REFERENCE)
        self._routes.document(app, partial(_with_schemas, dict(zip(named, schemas, strict=True))))
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(components)
        encoded = msgspec.json.encode(document)  # some 4 ms of the loop each time otherwise

        async def described(request: Request) -> Response:
            return Response(encoded, media_type="application/json")

        app.router.routes.insert(0, Route(_DOCUMENT, described))
        return app


def _models_in(node: object) -> Iterator[Model]:
    if isinstance(node, type):
        yield node
    elif isinstance(node, dict | list):
        for inner in node.values() if isinstance(node, dict) else node:
            yield from _models_in(inner)


def _with_schemas(schemas: Mapping[Model, Fragment], node: Any) -> Any:
    """The same tree with the schemas of the models in their places."""
    if isinstance(node, type):
        return schemas[node]
    if isinstance(node, dict):
        return {name: _with_schemas(schemas, inner) for name, inner in node.items()}
    return [_with_schemas(schemas, inner) for inner in node] if isinstance(node, list) else node
