"""`/health`, `/ready` and `/digest`: is it alive, may it be asked, what exactly does it hold."""

import hashlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import msgspec

from query_api.http.answers import Document
from query_api.ports import Lag, View, positions_text
from schemas import conditions
from schemas.identities import ModelContext
from streams.kernel.interface import ContextView, ReadOnlyKernel

_encode_context = msgspec.msgpack.Encoder().encode


def package_version() -> str:
    """The installed version of Reprise, for people."""
    try:
        return version("reprise")
    except PackageNotFoundError:
        return "unknown"


def health_document(view: View, release: str) -> Document:
    """The answer of `GET /health`: that of every role, and what the table is."""
    health = view.health()
    document = conditions.health_document(health.role, health.conditions, release)
    document |= {
        "kernel": health.kernel,
        "seed": view.kernel.seed,
        "position": positions_text(health.positions),
    }
    return document if health.lag is None else document | {"lag": _lag(health.lag)}


def _lag(lag: Lag) -> Document:
    return lag._asdict() | {"seconds": round(lag.seconds, 3)}


def ready_document(view: View) -> tuple[int, Document]:
    """Status and answer of `GET /ready`."""
    health = view.health()
    status, document = conditions.ready_document(health.conditions)
    return status, document | {"position": positions_text(health.positions)}


def digest_document(
    kernel: ReadOnlyKernel, position: str, admits: Callable[[str], bool] = lambda tenant_id: True
) -> Document:
    """The answer of `GET /digest`; tables that folded the same records have the same `digest`.

    Args:
        admits: whether contexts of a tenant are shown, and part of the digest.
    """
    contexts = sorted(
        context
        for context in kernel.contexts()
        if context.entries and admits(ModelContext(*context.context).tenant_id)
    )
    return {
        "position": position,
        "kernel": kernel.name,
        "seed": kernel.seed,
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
