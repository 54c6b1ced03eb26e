"""`POST /query` at its plainest: answered from the bytes of the request, without ASGI.

A request that is nothing but a query (`read_head`), whose JSON body the kernel answers by one call,
costs a server three quarters less this way. The answer is the one that `query_endpoint` gives, byte
for byte; whatever is not plain is left to it, errors included.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Final

from query_api.http.metrics import HttpMetrics, QueryMetrics
from query_api.ports import Positions, View, positions_text
from schemas.answer_states import AnswerState
from schemas.limits import PLAIN_BODIES_BYTES_MAX, PLAIN_BODY_BYTES_MAX
from streams.kernel import read_head

PATH: Final = "/query"
REQUEST_LINE: Final = b"POST /query HTTP/1.1\r\n"
_STATE_LINES: Final = {
    state: b"reprise-state: %b\r\ncontent-length: " % state.value.encode() for state in AnswerState
}


class PlainQueries:
    """Answers plain queries of one app.

    Args:
        view: what is answered from.
        metrics: of the app.
        queries: of its route.

    Attributes:
        held_bytes: of bodies whose end has not come; counted by whoever keeps them.
        answered: requests.
    """

    def __init__(self, view: View, metrics: HttpMetrics, queries: QueryMetrics) -> None:
        self._view = view
        self._count_request = metrics.count_request
        self._count_query = queries.count
        self._shown: tuple[Positions, bytes] = ((), b"")
        self.held_bytes = 0
        self.answered = 0

    @property
    def read_head(self) -> Callable[[bytes], tuple[int, int, bytes | None] | None]:
        """See `streams.kernel.read_head`."""
        assert read_head is not None
        return read_head

    def has_room(self, body_bytes: int) -> bool:
        """Whether a body of that size may wait here for its end."""
        held_bytes = self.held_bytes + body_bytes
        return body_bytes <= PLAIN_BODY_BYTES_MAX and held_bytes <= PLAIN_BODIES_BYTES_MAX

    def answer(self, body: bytes, request_id: bytes | None) -> bytes | None:
        """The answer from its own header lines on; None where `query_endpoint` is to give it."""
        started = perf_counter()
        view = self._view
        if not view.ready:
            return None
        position = self._position_lines(view.positions())  # before it is asked: at least this
        plain = view.kernel.answer(body)
        if plain is None:
            return None
        scope, tokens, hit_tokens, text = plain
        state = _STATE_LINES[view.state(scope)]
        end = b"\r\n\r\n" if request_id is None else b"\r\nx-request-id: %b\r\n\r\n" % request_id
        self.answered += 1
        self._count_query((perf_counter() - started, tokens, hit_tokens))
        self._count_request(PATH, 200)
        return b"%b%b%d%b%b" % (position, state, len(text), end, text)

    def _position_lines(self, positions: Positions) -> bytes:
        shown, lines = self._shown
        if positions != shown or not lines:
            text = positions_text(positions).encode()
            lines = b"content-type: application/json\r\nreprise-position: %b\r\n" % text
            self._shown = (positions, lines)
        return lines


def plain_queries(view: View, metrics: HttpMetrics, *, only_exact: bool) -> PlainQueries | None:
    """None where there can be none: without the Rust kernel, and where answers leave out what is
    not exact.
    """
    if read_head is None or only_exact:
        return None
    return PlainQueries(view, metrics, metrics.queries(PATH))
