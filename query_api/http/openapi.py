"""The OpenAPI document: what each route takes and answers, as fragments for FastAPI's generator."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from query_api.gaps import GapsDocument, PublisherFilter
from query_api.http import models
from query_api.http.errors import ErrorEnvelope
from query_api.http.explanation_models import ExplanationDocument
from query_api.http.route_table import Routes
from query_api.http.wire import Wire
from schemas.answer_states import AnswerState
from schemas.command_records import BY_ADVICE
from schemas.limits import COMMANDS_LISTED_MAX, COMMANDS_SHOWN

Fragment = dict[str, Any]
"""A part of an OpenAPI document, which is a tree of plain JSON."""

DOCS_FILES: Final = "/docs/files"
_REFERENCE: Final = "#/components/schemas/{name}"


def reference(model: type[msgspec.Struct]) -> Fragment:
    """The schema of a model, by name."""
    return {"$ref": _REFERENCE.format(name=model.__name__)}


def _map_of(schema: Fragment) -> Fragment:
    return {"type": "object", "additionalProperties": schema}


_PUBLISHED: Final = _map_of(
    _map_of({"anyOf": [reference(models.PublishedMatch), reference(models.DetailedMatch)]})
)
_CONDUCTOR: Final = {
    "anyOf": [reference(models.ConductorMatches), reference(models.DetailedConductorMatches)]
}
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
_EXPLAIN_FIELDS: Final = ("model", "block_size", "instance_id", "token_ids")
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


def _content(schema: Fragment, example: object, *wires: Wire) -> Fragment:
    return {wire.value: {"schema": schema, "example": example} for wire in wires}


def body_of(model: type[msgspec.Struct], example: Fragment) -> Fragment:
    """The `requestBody` of a route that takes both wire forms."""
    return {"required": True, "content": _content(reference(model), example, *Wire)}


def errors(*statuses: int) -> Fragment:
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
    content = _content(reference(ErrorEnvelope), ERROR_EXAMPLE, *Wire)
    return {str(status): {"description": texts[status], "content": content} for status in statuses}


def query_operation(model: type[msgspec.Struct], example: Fragment) -> Fragment:
    """Request and answers of a hot route."""
    content = _content(_PUBLISHED, PUBLISHED_EXAMPLE, Wire.JSON)
    content |= _content(_CONDUCTOR, CONDUCTOR_EXAMPLE, Wire.MSGPACK)
    answer = {
        "description": "What each instance holds. An unknown scope is an empty answer.",
        "headers": _ANSWER_HEADERS,
        "content": content,
    }
    responses = {"200": answer, **errors(400, 413, 500, 503)}
    request = body_of(model, example)
    request["content"][_OCTETS] = {"schema": {"type": "string", "format": "binary"}}
    request["description"] = (
        f"As `{_OCTETS}` the body is nothing but tokens (u32, little-endian) or prefix hashes (u64,"
        " little-endian), and the other fields stand in the URL: `?model=m&block_size=16`."
    )
    return {"parameters": _ANSWER_OPTIONS, "requestBody": request, "responses": responses}


def explain_operation(
    model: type[msgspec.Struct] | None = None, example: Fragment | None = None
) -> Fragment:
    """Request and answer of `/explain`: with a body, or with all of it in the URL."""
    names = [("as_of", False), *((name, True) for name in _EXPLAIN_FIELDS if model is None)]
    parameters: list[Fragment] = [
        {"name": name, "in": "query", "required": required, "schema": {"type": "string"}}
        for name, required in names
    ]
    answer = view_operation(ExplanationDocument, *Wire)["responses"]
    operation: Fragment = {
        "parameters": parameters,
        "responses": answer | errors(400, 413, 500, 503),
    }
    if model is not None:
        operation["requestBody"] = body_of(model, example or {})
    return operation


def command_operation(
    model: type[msgspec.Struct],
    example: Fragment,
    answer_model: type[msgspec.Struct],
    answer_example: Fragment,
    *statuses: int,
) -> Fragment:
    """Request and answers of a route that changes registrations."""
    content = _content(reference(answer_model), answer_example, *Wire)
    answer = {"description": "Done, and durable.", "content": content}
    responses = {"200": answer, **errors(*statuses)}
    return {"requestBody": body_of(model, example), "responses": responses}


def view_operation(model: type[msgspec.Struct], *wires: Wire) -> Fragment:
    """Answers of a route that only reads; Accept chooses among several wire forms."""
    content = {wire.value: {"schema": reference(model)} for wire in wires or (Wire.JSON,)}
    return {"responses": {"200": {"description": model.__doc__ or "", "content": content}}}


def lookup_operation(
    model: type[msgspec.Struct], example: Fragment, answer_model: type[msgspec.Struct]
) -> Fragment:
    """Request and answer of LMCache's `/lookup`."""
    operation = view_operation(answer_model, *Wire)
    operation["requestBody"] = body_of(model, example)
    operation["responses"] |= errors(400, 413, 503)
    return operation


def workers_operation(model: type[msgspec.Struct]) -> Fragment:
    """Answers of LMCache's `/controller/workers`: of all, or of those that are named."""
    operation = view_operation(model)
    operation["responses"] |= errors(400, 404)
    operation["parameters"] = [
        {"name": name, "in": "query", "required": False, "schema": {"type": kind}}
        for name, kind in (("instance_id", "string"), ("worker_id", "integer"))
    ]
    return operation


def worker_command_operation(
    model: type[msgspec.Struct],
    example: Fragment,
    answer_model: type[msgspec.Struct],
    *statuses: int,
    status: str = "200",
) -> Fragment:
    """Request and answers of a command to LMCache's workers."""
    content = {wire.value: {"schema": reference(answer_model)} for wire in Wire}
    answer = {"description": answer_model.__doc__ or "", "content": content}
    responses = {status: answer, **errors(*statuses)}
    return {"requestBody": body_of(model, example), "responses": responses}


def found_command_operation(model: type[msgspec.Struct]) -> Fragment:
    """Answers of `/commands/{command_id}`."""
    operation = view_operation(model, *Wire)
    operation["responses"] |= errors(404, 409, 503)
    return operation


def latest_commands_operation(model: type[msgspec.Struct]) -> Fragment:
    """What `GET /commands` takes, and its answers."""
    operation = view_operation(model, *Wire)
    operation["responses"] |= errors(400, 409, 503)
    operation["parameters"] = [
        {
            "name": "limit",
            "in": "query",
            "schema": {
                "type": "integer",
                "default": COMMANDS_SHOWN,
                "maximum": COMMANDS_LISTED_MAX,
            },
        },
        {
            "name": "origin",
            "in": "query",
            "description": "Only those of this origin: what services did by their own advice.",
            "schema": {"type": "string", "enum": [BY_ADVICE]},
        },
    ]
    return operation


def gaps_operation() -> Fragment:
    """What `GET /gaps` takes, and its answers."""
    parameters: list[Fragment] = [
        {
            "name": name,
            "in": "query",
            "description": f"Only publishers of this {name.removesuffix('_id')}.",
            "schema": {"type": "string"},
        }
        for name in PublisherFilter._fields
    ]
    operation = view_operation(GapsDocument, *Wire)
    return operation | {"parameters": parameters}


def ready_operation() -> Fragment:
    """Answers of `GET /ready`: one document with two statuses."""
    operation = view_operation(models.Ready)
    answer = operation["responses"]["200"]
    operation["responses"]["503"] = answer | {"description": "Not yet; `error` says why."}
    return operation


class Documentation:
    """`/docs`, `/openapi.json` and what they need: a FastAPI app that knows the routes, and is made
    when it is first asked. An ASGI application.

    Args:
        routes: what is documented.
        version: of the package.
        models: whose schemas routes name, beside `models.MODELS` and LMCache's.
        handlers: of errors, as an app takes them.
    """

    PATHS: Final = frozenset({"/docs", "/openapi.json"})

    def __init__(
        self,
        routes: Routes,
        version: str,
        models: Sequence[type[msgspec.Struct]],
        handlers: Mapping[Any, Any],
    ) -> None:
        self._routes = routes
        self._version = version
        self._models = models
        self._handlers = handlers
        self._app: ASGIApp | None = None

    def paths(self) -> frozenset[str]:
        """What is documented, and where the documents are."""
        return self._routes.paths() | self.PATHS

    def has(self, path: str) -> bool:
        """Whether the path is one of these."""
        return path in self.PATHS or path.startswith("/docs/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the class."""
        if self._app is None:
            self._app = self._made()
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
            openapi_url="/openapi.json",
            redirect_slashes=False,
            exception_handlers=dict(self._handlers),
        )
        self._routes.document(app)
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        every = (
            *models.MODELS,
            ExplanationDocument,
            *self._models,
        )
        _, components = msgspec.json.schema_components(every, ref_template=_REFERENCE)
        document.setdefault("components", {}).setdefault("schemas", {}).update(components)
        app.openapi = lambda: document  # type: ignore[method-assign]
        return app
