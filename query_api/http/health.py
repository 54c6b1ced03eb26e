"""`/health`, `/ready` and `/digest`: is it alive, may it be asked, what exactly does it hold."""

import hashlib

import msgspec

from query_api.http.answers import Document
from query_api.http.errors import RequestError, recovering
from query_api.ports import Lag, View, positions_text
from streams.kernel.interface import ContextView

_encode_context = msgspec.msgpack.Encoder().encode


def check_ready(view: View) -> None:
    """Passes where queries may be answered.

    Raises:
        RequestError: 503 `recovering`.
    """
    health = view.health()
    if not health.ready:
        raise recovering(health.problem)


def health_document(view: View, version: str) -> Document:
    """The answer of `GET /health`: 200 as long as the process can say it."""
    health = view.health()
    document: Document = {
        "status": "alive",
        "ready": health.ready,
        "problem": health.problem,
        "kernel": health.kernel,
        "seed": view.kernel.seed,
        "version": version,
        "position": positions_text(health.positions),
    }
    return document if health.lag is None else document | {"lag": _lag(health.lag)}


def _lag(lag: Lag) -> Document:
    return lag._asdict() | {"seconds": round(lag.seconds, 3)}


def ready_document(view: View) -> tuple[int, Document]:
    """Status and answer of `GET /ready`."""
    health = view.health()
    try:
        check_ready(view)
    except RequestError as error:
        document: Document = {"ready": False, "error": error.message, "reason": error.reason}
        return error.status, document | {"position": positions_text(health.positions)}
    return 200, {"ready": True, "position": positions_text(health.positions)}


def digest_document(view: View) -> Document:
    """The answer of `GET /digest`; tables that folded the same records have the same `digest`."""
    contexts = sorted(context for context in view.kernel.contexts() if context.entries)
    return {
        "position": positions_text(view.positions()),
        "kernel": view.kernel.name,
        "seed": view.kernel.seed,
        "digest": total_digest(contexts),
        "contexts": [_context(context) for context in contexts],
    }


def total_digest(contexts: list[ContextView]) -> str:
    """SHA-256 in hex over all contexts, sorted.

    Each contributes the msgpack array of its six names, in the order of `ModelContext`, and its
    digest.
    """
    hasher = hashlib.sha256()
    for context in sorted(contexts):
        hasher.update(_encode_context([*context.context, context.digest]))
    return hasher.hexdigest()


def _context(view: ContextView) -> Document:
    names = ("tenant_id", "model_name", "lora_name", "block_size", "additional_salt", "instance_id")
    named: Document = dict(zip(names, view.context, strict=True))
    return named | {"digest": f"{view.digest:016x}", "entries": view.entries}
