"""The stream of a server of LMCache's multi-process mode: `SubscribeKvEvents`, of the chunks of one
model in its memory.

Source: `lmcache` 0.5.7rc2, in `lmcache/v1/multiprocess/` `modules/kv_events.py`, and
`transport/grpc_impl/protos/kv_event_service.proto`. What it does:

    a record       of one change, numbered from 1 in each process, over all models: a chunk that is
                   stored, with its tokens, or chunks that are gone
    cursor         of the last record that is known: what follows comes, of one model alone
    next_cursor    up to which its log was looked through for a message
    lost           behind the cursor something is missing: its bus has dropped events, or its log
                   has them no more, or it is another process's. What comes is behind all of that
    incarnation    of its process
    instance_id    whose call it is: another call of the same ends it. So each of ours has a new
                   one, below 0, which no worker has. One that is not pinged is ended after a while,
                   by default two minutes

Each record is a batch here, whose number is the record's less 1; those of other models are skipped.
Its time is the incarnation, which no clock is: it tells another process, and nothing else.
"""

import uuid
from collections.abc import Iterator, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from bridge.grpc.messages import lmcache_events_pb2 as pb
from bridge.grpc.shapes import Shape, check_shape
from bridge.grpc.streamed import (
    UNREADABLE,
    StreamedMessage,
    StreamEnd,
    StreamPing,
    WireMap,
    encode_batch,
    without_nothing,
)
from bridge.wire.lmcache import CLEARED, LOST
from bridge.wire.stream_marks import WholeMark
from schemas.errors import BatchError
from schemas.limits import SEQUENCE_MAX
from schemas.registration import Registration

LMCACHE_PAGE: Final = 256  # records of a message: of chunks of 16,384 tokens it has 12 MB

_SHAPE: Final[Shape] = {5: {5: {}}}
"""Records; their hashes."""

_PING: Final = "/lmcache.mp.ManagementService/Ping"
_LATER_BYTES: Final = bytes(range(128, 256))
"""Of a varint all but its last byte."""

_DISABLED: Final = (
    "its server records no KV-cache events (enabled: false): start it without"
    " --disable-observability, and with --kv-event-log-size above 0"
)


class LmcacheCalls:
    """See `StreamCalls`.

    Attributes:
        incarnation: of the process of which records came last; None before the first.
    """

    def __init__(self, registration: Registration) -> None:
        self.incarnation: int | None = None
        self._registration = registration

    def begin(self, first: int | None, *, only_whole: bool = False) -> "_LmcacheCall":
        """See `StreamCalls`."""
        return _LmcacheCall(self, self._registration, first, only_whole=only_whole)


class _LmcacheCall:
    """See `StreamCall`; one owner."""

    def __init__(
        self,
        calls: LmcacheCalls,
        registration: Registration,
        first: int | None,
        *,
        only_whole: bool,
    ) -> None:
        instance_id = -1 - (uuid.uuid4().int >> 65)
        self.request = pb.SubscribeKvEventsRequest(
            instance_id=instance_id,
            model_name=registration.model_name,
            cursor=first or 0,
            max_events=LMCACHE_PAGE,
        ).SerializeToString()
        self.ping = StreamPing(_PING, pb.PingRequest(instance_id=instance_id).SerializeToString())
        self._calls = calls
        self._rank = registration.dp_rank
        self._first, self._only_whole = first, only_whole
        self._next = first or 0  # the number that is to come
        self._is_begun = False
        self._is_torn = False  # a message could not be read: what it had is missing

    def read(self, message: bytes) -> Sequence[StreamedMessage]:
        """See `StreamCall`."""
        page = _page_of(message)
        if page is not None and not page.enabled:
            return [StreamedMessage(error=_DISABLED, end=StreamEnd.REFUSED)]
        if page is None or not self._is_plausible(page):
            self._is_torn = True
            return [UNREADABLE]
        if (end := self._end_of(page)) is not None:
            return [StreamedMessage(end=end)]
        found = list(self._batches(page))
        self._calls.incarnation = page.incarnation
        self._is_begun, self._is_torn = True, False
        if len(page.events) < LMCACHE_PAGE:  # its log has no more
            last = found.pop() if found else StreamedMessage()
            found.append(last._replace(is_latest=True))
        return found

    def _is_plausible(self, page: pb.KVEventBatch) -> bool:
        """Whether its records are where they can be."""
        at = self._next
        for event in page.events:
            if event.seq <= at:
                return False
            at = event.seq
        is_short = not (self._is_begun or page.events)  # it has less than is asked for
        return page.incarnation >= 0 and (0 if is_short else at) <= page.next_cursor <= SEQUENCE_MAX

    def _end_of(self, page: pb.KVEventBatch) -> StreamEnd | None:
        """How the call ends with this message; None where it goes on. The batch that it is asked to
        begin with is known to be there.
        """
        known = self._calls.incarnation
        if self._is_begun:
            return None if known == page.incarnation else StreamEnd.WHOLE
        if self._first is None:
            return StreamEnd.AGAIN if self._only_whole and page.lost else None
        is_same = known == page.incarnation or (known is None and not page.lost)
        return None if is_same and page.next_cursor > self._first else StreamEnd.WHOLE

    def _batches(self, page: pb.KVEventBatch) -> Iterator[StreamedMessage]:
        behind = page.events[0].seq - 1 if page.events else page.next_cursor
        if (page.lost or self._is_torn) and behind > self._next:
            yield self._missing(page, behind - 1)
        for event in page.events:
            number = event.seq - 1
            skipped = number - self._next
            yield self._batch(page, number, _wire_map(event))._replace(skipped=skipped)

    def _missing(self, page: pb.KVEventBatch, number: int) -> StreamedMessage:
        """Stands for what is missing up to this number. Where all that there is was asked for, what
        comes behind it is all that is known.
        """
        if self._is_begun or self._first is not None:
            return self._batch(page, number, {"kind": LOST})
        mark = WholeMark(unknown_before=number + 1)
        return self._batch(page, number, {"kind": CLEARED})._replace(mark=mark)

    def _batch(self, page: pb.KVEventBatch, number: int, event: WireMap) -> StreamedMessage:
        self._next = number + 1
        payload = encode_batch(float(page.incarnation), [event], self._rank)
        return StreamedMessage(number=number, payload=payload)


def _page_of(message: bytes) -> pb.KVEventBatch | None:
    """None where it cannot be read."""
    try:
        check_shape(message, _SHAPE)
        return pb.KVEventBatch.FromString(message)
    except (BatchError, DecodeError):
        return None


def _wire_map(event: pb.KVEventRecord) -> WireMap:
    return without_nothing(
        {
            "kind": event.kind,
            "medium": event.medium,
            "block_hashes": list(event.block_hashes),
            "block_size": len(event.token_ids.translate(None, _LATER_BYTES)) or None,
        }
    )
