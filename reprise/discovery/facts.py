"""What an engine is asked where its pod's annotations do not say it: model and block size."""

import json
from typing import Any, Final, NamedTuple

from bridge.engine_http.client import NoAnswerError, ask
from bridge.engine_http.facts import sglang_facts, vllm_facts
from reprise.discovery.engines import Engine, UnusableError
from schemas.errors import EndpointError
from schemas.limits import MIB

ENGINE_ANSWER_BYTES_MAX: Final = 4 * MIB  # of an engine that is asked for its model or block size
ENGINE_ASK_S: Final = 5.0  # and how long it may take


class PodFacts(NamedTuple):
    """Its first model's name, and the tokens of a block."""

    model: str
    block_size: int


async def ask_facts(engine: Engine) -> PodFacts:
    """What is missing; "" and 0 for what the annotations say. At most three requests, each of
    ENGINE_ASK_S.

    Raises:
        UnusableError: it does not say it; the text names the annotation that would.
    """
    url, facts = engine.http_url, engine.facts
    model, block_size = facts.get("model", ""), 0
    if not model:
        model = _model(await _get(url, "/v1/models"))
        if not model:
            raise UnusableError(_missing("model", url, "/v1/models"))
    if "block-size" not in facts:
        block_size = vllm_facts({"/metrics": await _get(url, "/metrics")}, 0).block_size
        if not block_size:
            path = "/server_info"
            block_size = sglang_facts({path: await _get(url, path)}, 0).block_size
        if not block_size:
            raise UnusableError(_missing("block-size", url, "/metrics or /server_info"))
    return PodFacts("" if "model" in facts else model, block_size)


async def _get(url: str, path: str) -> bytes:
    """The body; empty where there is none that can be used."""
    if not url:
        return b""
    try:
        reply = await ask(
            *(url, path), headers={}, wait_s=ENGINE_ASK_S, bytes_max=ENGINE_ANSWER_BYTES_MAX
        )
    except (NoAnswerError, EndpointError):
        return b""
    return reply.body if reply.status == 200 else b""


def _document(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _model(body: bytes) -> str:
    """Source: OpenAI's API, List models; vLLM and SGLang name the model that they serve first."""
    document = _document(body)
    listed = document.get("data") if isinstance(document, dict) else None
    first = listed[0] if isinstance(listed, list) and listed else None
    name = first.get("id") if isinstance(first, dict) else None
    return name if isinstance(name, str) else ""


def _missing(name: str, url: str, path: str) -> str:
    asked = f"{url}{path} does not say it" if url else "it has no HTTP server to ask"
    return f"expected an annotation reprise.dev/{name}: {asked}"
