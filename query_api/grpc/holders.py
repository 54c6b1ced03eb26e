"""What routers call the publishers that hold blocks."""

from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple

from query_api.grpc.encoding import number_field, text_field
from query_api.ports import View
from schemas.identities import StreamKey
from schemas.limits import GRPC_URLS_S
from schemas.registration import Registration

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
    """

    url: str
    named: bytes
    worker: bytes
    total: bytes


Best = dict[str, tuple[int, Holder]]
"""How many blocks are held behind each URL, and by whom."""


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
        self._found: dict[tuple[StreamKey, int], Holder | None] = {}
        self._urls: frozenset[str] = frozenset()

    def refresh(self) -> None:
        """To be called before each answer. Cost O(1), once a second O(publishers + contexts)."""
        if self._clock() - self._read_at >= GRPC_URLS_S:
            self._read()

    def find(self, publisher: tuple[StreamKey, int]) -> Holder | None:
        """The publisher, or None for one that routers do not know: one that is not registered, or
        a pool.
        """
        try:
            return self._found[publisher]
        except KeyError:
            self._read()
            # Who is still unknown is not looked for again at once.
            return self._found.setdefault(publisher, None)

    def is_followed(self, url: str) -> bool:
        """Whether routers call a publisher so whose events are followed."""
        return url in self._urls

    def _read(self) -> None:
        self._read_at = self._clock()
        blocks: Counter[StreamKey] = Counter()
        for view in self._view.kernel.contexts():
            blocks[view.context.stream] += view.entries
        followed = [one for one in self._view.registered() if not one.is_pool]
        self._found = {one.publisher: _holder(one, blocks[one.stream]) for one in followed}
        self._urls = frozenset(one.router_url for one in followed)


def _holder(registration: Registration, blocks: int) -> Holder:
    url = registration.router_url
    worker = text_field(_WORKER_ID, registration.service_key)
    total = number_field(_TOTAL_BLOCKS, blocks) + number_field(_EVENT_FED, 1)
    return Holder(url, text_field(_URL, url), worker, total)
