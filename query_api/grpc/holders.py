"""What routers call the publishers that hold blocks."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from query_api.grpc.counts import GrpcCounts
from query_api.grpc.encoding import number_field, text_field
from query_api.grpc.grpc_settings import GrpcSettings
from query_api.ports import View
from schemas.clock import REAL_CLOCK
from schemas.identities import PrefixScope, PublisherKey, StreamKey
from schemas.registration import Registration
from streams.kernel.interface import PublisherId, ReadOnlyKernel

GRPC_URLS_S: Final = 1.0  # how old the routers' names of engines may be

_URL: Final = 1
"""The field of both services' answers: `worker_address`, and `holder`."""
_WORKER_ID: Final = 3
_TOTAL_BLOCKS, _EVENT_FED = 3, 4


class Holder(NamedTuple):
    """One publisher as routers know it.

    Attributes:
        url: what they call it.
        named: the same as the first field of its part of an answer.
        worker: its name for their logs, as a field of SGLang's.
        total: how many blocks its instance holds, each once for each tier and rank, and that this
            is known by events: as fields of SMG's.
        publisher: who it is.
    """

    url: str
    named: bytes
    worker: bytes
    total: bytes
    publisher: PublisherKey


BestHolders = dict[str, tuple[int, Holder]]
"""How many blocks are held behind each URL, and by whom."""

Ranks = Mapping[int, Holder]
"""Of one instance, those that are registered."""

KeyT = TypeVar("KeyT", PublisherKey, StreamKey)


class Holders:
    """The registrations, as far as answers need them: read again when they are a second old, or
    when somebody is asked for who is not among them. Those who are none of them then are no more
    looked for until the next time.

    Args:
        clock: seconds.
    """

    def __init__(self, view: View, *, clock: Callable[[], float] = REAL_CLOCK.monotonic) -> None:
        self._view = view
        self._clock = clock
        self._kernel: ReadOnlyKernel | None = None
        self._read_at = -GRPC_URLS_S
        self._known: dict[PublisherKey, Holder] = {}
        self._by_handle: dict[PublisherId, Holder | None] = {}
        self._by_stream: dict[StreamKey, dict[int, Holder]] = {}
        self._scopes: dict[PrefixScope, dict[str, Ranks]] = {}
        self._urls: frozenset[str] = frozenset()
        self._missing: set[PublisherKey | StreamKey] = set()

    def refresh(self) -> ReadOnlyKernel:
        """To be called before each answer; returns the kernel to ask. Cost O(1), once a second
        O(publishers + contexts).
        """
        kernel = self._view.kernel
        if kernel is not self._kernel or self._clock() - self._read_at >= GRPC_URLS_S:
            self._missing = set()
            self._read(kernel)
        return kernel

    def find(self, handle: PublisherId) -> Holder | None:
        """Who has this handle of the kernel; None for one that routers do not know: one that is not
        registered, or a pool.
        """
        try:
            return self._by_handle[handle]
        except KeyError:
            publisher = None if self._kernel is None else self._kernel.publisher(handle)
            found = None
            if publisher is not None:
                self._look_for(publisher, self._known)
                found = self._known.get(publisher)
            self._by_handle[handle] = found
            return found

    def instances(self, scope: PrefixScope) -> Mapping[str, Ranks]:
        """Those of a scope that were asked for since registrations were read."""
        return self._scopes.get(scope, {})

    def ranks(self, scope: PrefixScope, instance_id: str) -> Ranks:
        """Those of an instance that routers know, which are among its `instances` from now on."""
        stream = StreamKey(
            scope.tenant_id, scope.model_name, scope.block_size, scope.additional_salt, instance_id
        )
        self._look_for(stream, self._by_stream)
        found = self._by_stream.get(stream, {})
        self._scopes.setdefault(scope, {})[instance_id] = found
        return found

    def is_followed(self, url: str) -> bool:
        """Whether routers call a publisher so whose events are followed."""
        return url in self._urls

    def _look_for(self, key: KeyT, known: Mapping[KeyT, object]) -> None:
        """Reads again where the key is unknown, once."""
        if key in known or key in self._missing or self._kernel is None:
            return
        self._missing.add(key)
        self._read(self._kernel)

    def _read(self, kernel: ReadOnlyKernel) -> None:
        self._read_at = self._clock()
        self._kernel = kernel
        blocks: Counter[StreamKey] = Counter()
        for view in kernel.contexts():
            blocks[view.context.stream] += view.entries
        registered = self._view.registered()
        followed = [one for one in registered if one.has_events and not one.is_pool]
        self._known = {one.publisher: _holder(one, blocks[one.stream]) for one in followed}
        self._by_handle = {}
        self._by_stream = {}
        for publisher, holder in self._known.items():
            self._by_stream.setdefault(publisher.stream, {})[publisher.dp_rank] = holder
        self._scopes = {}
        self._urls = frozenset(holder.url for holder in self._known.values())


class HolderIndex:
    """One table as a router sees it that asks by gRPC.

    Args:
        holders: what the router calls the publishers.
        counts: what was left out.
        settings: the tenant, and the model.
        only_exact: whether publishers are left out that are not `exact`.
    """

    def __init__(
        self,
        view: View,
        holders: Holders,
        counts: GrpcCounts,
        settings: GrpcSettings,
        *,
        only_exact: bool,
    ) -> None:
        self._view = view
        self._holders = holders
        self._counts = counts
        self._tenant_id = settings.tenant_id
        self._model_name = settings.model_name or None
        self._only_exact = only_exact


def _holder(registration: Registration, blocks: int) -> Holder:
    url = registration.router_url
    worker = text_field(_WORKER_ID, registration.service_key)
    total = number_field(_TOTAL_BLOCKS, blocks) + number_field(_EVENT_FED, 1)
    return Holder(url, text_field(_URL, url), worker, total, registration.publisher)
