"""What routers call the publishers that hold blocks."""

from collections import Counter
from collections.abc import Callable
from time import monotonic

from query_api.ports import View
from schemas.limits import GRPC_URLS_S

Stream = tuple[str, str, int, str, str]
"""A `StreamKey`, or its fields: to make a tuple is a tenth of the cost, and they are equal."""


class Holders:
    """The registrations, as far as answers need them: read again when they are a second old, or a
    publisher is asked for that is not among them.

    Args:
        view: that has them.
        clock: seconds.
    """

    def __init__(self, view: View, *, clock: Callable[[], float] = monotonic) -> None:
        self._view = view
        self._clock = clock
        self._read_at = -GRPC_URLS_S
        self._urls: dict[tuple[Stream, int], str] = {}
        self._known: frozenset[str] = frozenset()
        self._blocks: Counter[Stream] = Counter()

    def url(self, stream: Stream, dp_rank: int) -> str:
        """What routers call the publisher; "" for one that they do not know: one that is not
        registered, or a pool. Cost O(1), once a second O(publishers).
        """
        self._refresh()
        key = (stream, dp_rank)
        url = self._urls.get(key)
        if url is None:
            self._read()
            # Who is still unknown is not looked for again at once.
            url = self._urls.setdefault(key, "")
        return url

    def is_followed(self, url: str) -> bool:
        """Whether routers call a publisher so whose events are followed."""
        self._refresh()
        return url in self._known

    def blocks(self, stream: Stream) -> int:
        """How many blocks an instance holds, each once for each tier and rank."""
        self._refresh()
        return self._blocks[stream]

    def _refresh(self) -> None:
        if self._clock() - self._read_at >= GRPC_URLS_S:
            self._read()

    def _read(self) -> None:
        self._read_at = self._clock()
        followed = [one for one in self._view.registered() if not one.is_pool]
        self._urls = {one.publisher: one.router_url for one in followed}
        self._known = frozenset(self._urls.values())
        self._blocks = Counter()
        for view in self._view.kernel.contexts():
            self._blocks[view.context.stream] += view.entries
