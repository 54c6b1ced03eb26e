"""What a service says of its instances, joined from several documents of its API."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

import click
import msgspec

from console.asking import asked
from page.bounds import TOP_PROMISES_S
from page.fleet import FleetDocuments, InstanceRow, instance_rows
from query_api.gaps import GapsDocument
from query_api.http.memory_models import MemorySegment, MemoryView
from query_api.http.models import Alive, Services, TableDigest
from routing.http.documents import RoutingDocument
from routing.http.models import PromisesDocument

TOP_ASK_S: Final = 10.0  # that `reprise top` waits for all documents of a look

_DocumentT = TypeVar("_DocumentT")


class Fleet(msgspec.Struct, kw_only=True):
    """All of them at a moment.

    Attributes:
        url: who was asked.
        at: when, Unix seconds.
        service: what it says of itself.
        instances: by tenant and name.
        segments: of memory, as kvcached says.
        missing: documents that could not be had, and why; what they have is None above.
    """

    url: str
    at: float
    service: Alive
    instances: list[InstanceRow]
    segments: list[MemorySegment]
    missing: dict[str, str]


def ask_fleet(url: str, *, clock: Callable[[], float] = time.time) -> Fleet:
    """Asks a service for all of it: seven requests, within TOP_ASK_S.

    Args:
        url: of any replica.
        clock: Unix seconds.

    Raises:
        click.ClickException: it does not answer, or does not say what is registered.
    """
    now, end_s = clock(), time.monotonic() + TOP_ASK_S
    missing: dict[str, str] = {}

    def have_to(path: str, kind: type[_DocumentT], **parameters: object) -> _DocumentT:
        left_s = max(end_s - time.monotonic(), 0.0)
        return asked(url, path, parameters, kind, wait_s=left_s)

    def have(path: str, kind: type[_DocumentT], **parameters: object) -> _DocumentT | None:
        try:
            return have_to(path, kind, **parameters)
        except click.ClickException as error:
            missing[path] = error.format_message()
            return None

    # Health is told to probes, too, which have no key: what the key is wrong with is asked first.
    services = have_to("/services", Services).services
    service = have_to("/health", Alive)
    table = have("/digest", TableDigest)
    gaps = have("/gaps", GapsDocument)
    routing = have("/routing", RoutingDocument)
    promises = have("/promises", PromisesDocument, by="instance", since=now - TOP_PROMISES_S)
    memory = have("/memory", MemoryView)
    segments = [] if memory is None else memory.segments
    rows = instance_rows(FleetDocuments(services, table, gaps, routing, promises, segments))
    return Fleet(
        url=url, at=now, service=service, instances=rows, segments=segments, missing=missing
    )
