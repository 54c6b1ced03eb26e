"""`POST /query` and `/query_by_hash` at their plainest: answered from the bytes of the request,
without ASGI.

A request that is nothing but a query (`read_head`), whose body the kernel answers by one call,
costs a server half to a quarter this way. The answer is the one that `query_endpoint` gives, byte
for byte; whatever is not plain is left to it, errors included.
"""

from time import perf_counter
from typing import Final, NamedTuple

from query_api.http.metrics import HttpMetrics, QueryMetrics
from query_api.http.wire import Wire, content_type_of
from query_api.ports import Positions, View, positions_text
from schemas.answer_states import AnswerState
from schemas.limits import PLAIN_BODIES_BYTES_MAX, PLAIN_BODY_BYTES_MAX
from streams.kernel import read_head

_PATHS: Final = ("/query", "/query_by_hash")
_TYPE_LINES: Final = [
    b"content-type: %b\r\nreprise-position: " % content_type_of(wire)
    for wire in (Wire.JSON, Wire.MSGPACK, Wire.JSON)  # by `BodyForm`
]
_STATE_LINES: Final = {
    state: b"\r\nreprise-state: %b\r\ncontent-length: " % state.value.encode()
    for state in AnswerState
}


class PlainHead(NamedTuple):
    """The head of a plain request.

    Attributes:
        body_at: where the body begins.
        body_bytes: its length.
        form: what it is, a `BodyForm`.
        by_hash: whether it has hashes; else it has tokens.
        request_id: to be sent back; None for none.
        url_query: what stands behind the `?` of the URL; None for nothing.
    """

    body_at: int
    body_bytes: int
    form: int
    by_hash: bool
    request_id: bytes | None
    url_query: bytes | None


class PlainQueries:
    """Answers plain queries of one app.

    Args:
        view: what is answered from.
        metrics: of the app.
        queries: of its two routes.

    Attributes:
        held_bytes: of bodies whose end has not come; counted by whoever keeps them.
        answered: requests.
    """

    def __init__(self, view: View, metrics: HttpMetrics, queries: list[QueryMetrics]) -> None:
        self._view = view
        self._count_request = metrics.count_request
        self._count_query = [of_route.count for of_route in queries]
        self._shown: tuple[Positions, bytes] = ((), b"")
        self.held_bytes = 0
        self.answered = 0

    def read_head(self, received: bytes) -> PlainHead | None:
        """The head at the start of the bytes; None where the request is not plain, or its head is
        not whole.
        """
        assert read_head is not None
        head = read_head(received)
        return None if head is None else PlainHead(*head)

    def has_room(self, body_bytes: int) -> bool:
        """Whether a body of that size may wait here for its end."""
        held_bytes = self.held_bytes + body_bytes
        return body_bytes <= PLAIN_BODY_BYTES_MAX and held_bytes <= PLAIN_BODIES_BYTES_MAX

    def answer(self, head: PlainHead, received: bytes) -> bytes | None:
        """The answer from its own header lines on; None where `query_endpoint` is to give it.

        Args:
            head: of the request.
            received: all of the request, its head included.
        """
        started = perf_counter()
        view = self._view
        if not view.ready:
            return None
        position = self._position(view.positions())  # before it is asked: at least this
        body_at, _, form, by_hash, request_id, url_query = head
        plain = view.kernel.answer(received, form, by_hash, body_at, url_query)
        if plain is None:
            return None
        scope, tokens, hit_tokens, text = plain
        state = _STATE_LINES[view.state(scope)]
        end = b"\r\n\r\n" if request_id is None else b"\r\nx-request-id: %b\r\n\r\n" % request_id
        self.answered += 1
        self._count_query[by_hash]((perf_counter() - started, tokens, hit_tokens))
        self._count_request(_PATHS[by_hash], 200)
        return b"%b%b%b%d%b%b" % (_TYPE_LINES[form], position, state, len(text), end, text)

    def _position(self, positions: Positions) -> bytes:
        shown, text = self._shown
        if positions != shown:
            text = positions_text(positions).encode()
            self._shown = (positions, text)
        return text


def plain_queries(view: View, metrics: HttpMetrics, *, only_exact: bool) -> PlainQueries | None:
    """None where there can be none: without the Rust kernel, and where answers leave out what is
    not exact.
    """
    if read_head is None or only_exact:
        return None
    return PlainQueries(view, metrics, [metrics.queries(path) for path in _PATHS])
