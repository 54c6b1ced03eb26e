"""A Kafka batch of records that takes the context of its span along."""

from brokers.client_types import Batch
from schemas.topics import TRACEPARENT_HEADER
from schemas.tracing import NO_SPAN, SpanName, Tracer, split_context


class TracedBatch:
    """A `Batch` whose first message names its span, for whoever folds it; older ones pass headers
    over.

    The first one alone: a batch is folded together, or nearly so, and may have thousands.

    Attributes:
        span: of the write; it begins with the first message. Unrecorded where there is none.
    """

    def __init__(self, batch: Batch, tracer: Tracer) -> None:
        """Args:
        batch: that is filled; empty.
        """
        self.span = NO_SPAN
        self._batch = batch
        self._tracer = tracer
        self._is_empty = True

    def append(
        self,
        *,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> object | None:
        """See `Batch`."""
        if self._is_empty:
            self._is_empty = False
            self.span = self._tracer.begin_alone(SpanName.APPEND)
            traceparent = split_context(self.span.context)[0]
            if traceparent:
                own = (TRACEPARENT_HEADER, traceparent.encode())
                headers = [*(headers or ()), own]
        return self._batch.append(key=key, value=value, timestamp=timestamp, headers=headers)
