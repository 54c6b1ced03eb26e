"""One publisher's stream, kept for as long as it is followed, on a thread of its own.

A stream is one link: it ends with its server's process, and its messages come in order. The next
one asks for what comes from the last batch on that came: where that comes first, and is the same,
nothing is missing (`BatchStream.resume`). Where the server has it no more, or says that its engine
has begun again, all that there is is asked for. What then begins with batch 0, or with a part of a
snapshot, is marked (`bridge.wire.stream_marks`): whatever was known before is replaced by it. What
begins otherwise is what is published from now on, and nothing tells what was before.

Nothing says where what was sent before ends, and what is published now begins. So a stream has
caught up once a batch is no older than STREAM_LATE_S, or none has come for STREAM_CAUGHT_UP_S;
before, what it has brought is not known to be all.

A server whose engine is quiet sends nothing. So it is asked over the same connection whether it is
there (`grpc.health.v1`): whatever it answers, it has sent nothing else before that has not come.
"""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple, Protocol

import grpc

from bridge.bounds import LINK_SILENT_S, LINK_UNHEARD_S
from bridge.grpc.bounds import (
    STREAM_ASK_S,
    STREAM_BYTES_MAX,
    STREAM_CAUGHT_UP_S,
    STREAM_CONNECT_MS,
    STREAM_DEAD_S,
    STREAM_LATE_S,
    STREAM_PING_S,
    STREAM_PLACE_S,
    STREAM_REFUSED_S,
    STREAM_RETRY_MAX_S,
    STREAM_RETRY_S,
    WHOLE_AGAIN_S,
)
from bridge.grpc.methods import METHODS, SOURCES_PATHS
from bridge.grpc.openengine import zmq_sources
from bridge.grpc.streamed import StreamedMessage, StreamEnd, StreamPing
from bridge.link_numbers import NO_LINK, next_of
from bridge.sockets.endpoints import check_publisher_endpoint, names_host
from bridge.sockets.lookup import LOOKUPS
from bridge.sockets.raw_message import RawMessage
from bridge.wire.stream_marks import WholeMark, topic_of
from schemas.clock import Clock
from schemas.errors import EndpointError
from schemas.registration import GRPC_SCHEME, Registration
from schemas.routing_records import LoadSample, LoadSource, Target
from schemas.troubles import shortened

_HEALTH: Final = "/grpc.health.v1.Health/Check"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", STREAM_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: its end is the process's
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_retries", 0),
    ("grpc.min_reconnect_backoff_ms", STREAM_CONNECT_MS),
)

_TOO_LARGE: Final = "larger than max"
"""What gRPC says of a message above a bound, and no server that has no room for a stream."""

_NO_ANSWER: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)

_logger = logging.getLogger(__name__)


class Stream(Protocol):
    """One call, whose messages come one after the other; gRPC's own."""

    def __iter__(self) -> Iterator[bytes]:
        """Raises RpcError where it ends by an error."""
        ...

    def cancel(self) -> bool:
        """Ends it."""
        ...

    def is_active(self) -> bool:
        """Whether it has not ended."""
        ...

    def initial_metadata(self) -> object:
        """Returns once the server has taken it, or it has ended."""
        ...

    def code(self) -> grpc.StatusCode:
        """How it has ended."""
        ...

    def details(self) -> str:
        """What its server says of that."""
        ...


class Asked(NamedTuple):
    """A call that is under way.

    Attributes:
        messages: what it brings, to its end.
        ping: see `StreamCall`.
    """

    call: Stream
    messages: Iterator[StreamedMessage]
    ping: StreamPing | None


class StreamOwner(Protocol):
    """Whom a stream hands on what has come; any of its methods is called on any thread."""

    def take(self, message: RawMessage) -> None:
        """A message of a publisher."""
        ...

    def take_load(self, sample: LoadSample) -> None:
        """What an engine carries."""
        ...

    def note_changed(self, connection: "StreamConnection") -> None:
        """Its link has gone up or down, or is or was silent."""
        ...

    def count_fault(self) -> None:
        """An unexpected error of ours."""
        ...


class StreamPauses:
    """How long is waited from one stream to the next. Pure.

    All that there is may be much, and is written into the log each time. So a server that ends each
    stream behind it is asked for it less and less often.
    """

    def __init__(self) -> None:
        self._next_s = self._whole_s = STREAM_RETRY_S

    def after(self, lasted_s: float, *, has_brought: bool, asks_whole: bool) -> float:
        """Seconds, after a stream that lasted so long.

        Args:
            has_brought: whether anything came.
            asks_whole: whether the next one asks for all that there is.
        """
        self._next_s = STREAM_RETRY_S if has_brought else 2 * self._next_s
        self._next_s = min(self._next_s, STREAM_RETRY_MAX_S)
        if lasted_s >= WHOLE_AGAIN_S:
            self._whole_s = STREAM_RETRY_S
        if not (has_brought and asks_whole):
            return self._next_s
        self._whole_s = min(2 * self._whole_s, WHOLE_AGAIN_S)
        return self._whole_s


class StreamConnection:
    """See the module.

    Attributes:
        connected: whether its stream is up.
        links: the last one that has come up.
        is_silent: whether it is up, and its server does not answer.
        trouble: why none comes up, in the words of its server or the system; "" for nothing.
        other_ranks: batches that came of ranks that have publishers of their own, or should.

    Raises:
        EndpointError: the endpoint can never be connected to, or its kind has no such stream.
    """

    def __init__(self, registration: Registration, owner: StreamOwner, clock: Clock) -> None:
        check_publisher_endpoint(registration.endpoint)
        if registration.kind not in METHODS:
            raise EndpointError(f"Expected a publisher that streams, got: {registration.kind}")
        self.registration = registration
        self.publisher = registration.publisher
        self.connected = self.is_silent = False
        self.links = NO_LINK
        self.trouble = ""
        self.other_ranks = 0
        self._owner, self._clock = owner, clock
        methods = METHODS[registration.kind]
        self._methods = [(one.path, one.follow(registration)) for one in methods]
        self._is_known = False  # which of the methods the server has
        one = registration
        self._target = Target(one.tenant_id, one.instance_id, one.dp_rank)
        self._name = f"{one.service_key} ({one.model_name})"
        self._first: int | None = None  # the batch to begin with; None: all that there is
        self._placed, self._stopping = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._calls: set[Stream] = set()
        self._channel: grpc.Channel | None = None
        self._call: Stream | None = None  # whose messages are taken
        self._ping: StreamPing | None = None  # and what its server wants to be asked
        self._pings_at = 0.0
        self._pinged: object = None  # the last such question
        self._whole: Asked | None = None  # to be taken in its place
        self._is_begun = True  # whether the link has brought a batch
        self._whole_at = 0.0  # not before, all is asked for again
        self._asks_whole = False
        self._asked_at: float | None = None  # when the question under way was put
        self._asks_at = 0.0
        self._heard_at = 0.0  # when a question was put that was answered
        self._is_behind = True  # what was sent before the stream began may be on its way
        self._came_at = 0.0  # when the last batch came, or the stream began
        self._messages = self._lookups = self._refusals = 0
        self._refusal = ""  # of the call that is tried first
        self._told = ""  # the trouble that was logged, and no batch has come since
        self._thread = threading.Thread(target=self._run, name="reprise-stream", daemon=True)

    def start(self) -> None:
        """Begins; once."""
        self._thread.start()

    def place(self, sequence: int) -> None:
        """The log has all up to this batch; -1 for nothing. Before the first stream begins, else
        nothing changes.
        """
        if not self._placed.is_set():
            self._first = sequence if sequence >= 0 else None
            self._placed.set()

    def stop(self) -> None:
        """Ends what is under way; nothing more is handed on once `join` has returned."""
        self._stopping.set()
        self._placed.set()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def join(self, wait_s: float) -> bool:
        """Whether its thread has ended within this time."""
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    @property
    def known_until(self) -> float:
        """All that its server had sent by then is in the inbox, as far as that can be known before
        a dead one would be found silent; monotonic seconds.
        """
        return 0.0 if self._is_behind else self._heard_at + LINK_UNHEARD_S

    # The thread

    def _run(self) -> None:
        self._placed.wait(STREAM_PLACE_S)
        self._placed.set()
        pauses = StreamPauses()
        while not self._stopping.is_set():
            before, began_at = self._messages, self._clock.monotonic()
            try:
                end = self._follow_once()
            except Exception:
                self._owner.count_fault()
                _logger.exception(
                    "Unexpected error in the stream of %s; asking for it again", self._name
                )
                end = StreamEnd.AGAIN
            self._set_connected(False)
            if end is StreamEnd.WHOLE:
                self._first = None
            elif end is StreamEnd.BEYOND and self._first is not None:
                self._first += 2
            elif end is StreamEnd.REFUSED:
                self._stopping.wait(STREAM_REFUSED_S)
                continue
            elif end is StreamEnd.OTHER:
                continue
            pause_s = pauses.after(
                self._clock.monotonic() - began_at,
                has_brought=self._messages > before,
                asks_whole=self._first is None,
            )
            self._stopping.wait(pause_s)

    def _follow_once(self) -> StreamEnd:
        """Takes one stream from its beginning to its end."""
        try:
            address = self._address()
        except OSError as error:
            self._tell(str(error))
            return StreamEnd.AGAIN
        channel = grpc.insecure_channel(address, options=_OPTIONS)
        try:
            asked = self._open(channel, self._first)
            with self._lock:
                self._channel, self._asked_at, self._whole = channel, None, None
                self._call, self._asks_at = asked.call, self._clock.monotonic() + STREAM_ASK_S
                self._ping, self._pings_at = asked.ping, self._clock.monotonic() + STREAM_PING_S
            asked.call.initial_metadata()  # waits until the server has it, or not
            if asked.call.is_active():
                self._set_connected(True)
            return self._take_all(asked)
        finally:
            with self._lock:
                self._channel = None
                for one in self._calls:
                    one.cancel()
                self._calls.clear()
            channel.close()

    def _open(self, channel: grpc.Channel, first: int | None, *, only_whole: bool = False) -> Asked:
        path, calls = self._methods[0]
        asking = calls.begin(first, only_whole=only_whole)
        ask: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)
        call: Stream = ask(asking.request)
        with self._lock:
            self._calls.add(call)
        if self._stopping.is_set():
            call.cancel()
        return Asked(call, chain.from_iterable(map(asking.read, call)), asking.ping)

    def _take_all(self, asked: Asked) -> StreamEnd:
        while True:
            try:
                for message in asked.messages:
                    if not self.connected:
                        self._set_connected(True)
                    if end := self._take(message):
                        return end
                end = StreamEnd.AGAIN  # a server that ends
            except (grpc.RpcError, CancelledError):
                end = self._end_of(asked.call)
            whole, self._whole = self._whole, None
            if whole is None or self._stopping.is_set():
                return StreamEnd.STOPPED if self._stopping.is_set() else end
            # All that there is comes by another call, which takes the place of this one.
            asked, self._first = whole, None
            self._call, self._ping = whole.call, whole.ping
            self._set_connected(False)
            self._set_connected(True)

    def _take(self, message: StreamedMessage) -> StreamEnd | None:
        """Hands a message on; what is to be done where the stream has ended with it."""
        self._is_known = True
        if message.end is not None:
            if message.error:
                self._tell(message.error)
            return message.end
        self._messages += 1
        rank = message.rank
        is_own = rank is None or rank == self.registration.dp_rank
        if message.load is not None and is_own:
            now = self._clock.unix()
            sample = LoadSample(self._target, now, LoadSource.SCRAPED, *message.load)
            self._owner.take_load(sample)
        if not is_own:
            self._note_other(rank)
            return None
        if message.number is None:
            if message.is_latest:
                self._is_behind = False
            elif message.load is None:  # it cannot be read, and may have been a batch
                self._hand_on([b"", b"", b""], None)
            return None
        mark = message.mark
        if mark is None and not self._is_begun and self._first is None and message.is_first:
            mark = WholeMark()
        self._is_begun, self.trouble, self._told = True, "", ""
        self._note_came(message)
        number = message.number.to_bytes(8, "big")
        topic = topic_of(mark, message.skipped)
        self._hand_on([topic, number, message.payload], message.unusable)
        # A part of a snapshot is no batch of its number: that cannot be asked for again.
        self._first = message.number if message.mark is None else None
        return None

    def _note_came(self, message: StreamedMessage) -> None:
        now = self._clock.monotonic()
        is_new = abs(self._clock.unix() - message.engine_time) < STREAM_LATE_S
        is_new = message.is_latest or (is_new and message.mark is None)
        if is_new or now - self._came_at >= STREAM_CAUGHT_UP_S:
            self._is_behind = False
        self._came_at = now

    def _hand_on(self, frames: list[bytes], batch: object) -> None:
        now = self._clock.monotonic()
        self._owner.take(RawMessage(self.publisher, frames, now, self.links, batch))

    def _note_other(self, rank: int | None) -> None:
        if not self.other_ranks:
            _logger.info(
                "The stream of %s has batches of rank %s, too: register each rank with the same"
                " endpoint and its `dp_rank`",
                *(self._name, rank),
            )
        self.other_ranks += 1
        if not self._is_begun:
            self.trouble = (
                f"its stream has batches of rank {rank}, and none of rank"
                f" {self.registration.dp_rank} so far: is that its `dp_rank`?"
            )

    # How a stream ends

    def _end_of(self, call: Stream) -> StreamEnd:
        code, details = call.code(), shortened(str(call.details() or ""))
        if self._whole is not None:
            return StreamEnd.AGAIN  # it was ended for another one
        match code:
            case grpc.StatusCode.UNIMPLEMENTED:
                return self._try_other(details)
            case grpc.StatusCode.OUT_OF_RANGE | grpc.StatusCode.DATA_LOSS:
                return StreamEnd.WHOLE
            case grpc.StatusCode.RESOURCE_EXHAUSTED if _TOO_LARGE in details:
                self._tell(f"a message of more than {STREAM_BYTES_MAX} bytes ({details})")
                return StreamEnd.BEYOND
            case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
                self._tell(f"{code.name}: {details}")
                return StreamEnd.REFUSED
            case grpc.StatusCode.CANCELLED if self._stopping.is_set():
                return StreamEnd.STOPPED
        self._tell(f"{code.name}: {details}")
        return StreamEnd.AGAIN

    def _try_other(self, details: str) -> StreamEnd:
        """The server has no such call, or its engine publishes nothing."""
        if self._is_known:
            self._tell(f"its server streams no events any more: {details}")
            return StreamEnd.REFUSED
        self._methods.append(self._methods.pop(0))
        self._refusals += 1
        self._refusal = self._refusal or details
        if self._refusals % len(self._methods):
            return StreamEnd.OTHER
        said, self._refusal = self._refusal, ""
        found = self._zmq_sources()
        if found:
            said = f"its engine publishes at {' and replays at '.join(found)}: register that"
        self._tell(f"its server streams no KV-cache events: {said}")
        return StreamEnd.REFUSED

    def _zmq_sources(self) -> list[str]:
        """Where its engine publishes, as a server says that streams nothing; see `zmq_sources`."""
        channel = self._channel
        if channel is None:
            return []
        for path in SOURCES_PATHS:
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
            with suppress(grpc.RpcError):
                answer = ask(b"", timeout=STREAM_CONNECT_MS / 1000)
                if found := zmq_sources(answer, self.registration.dp_rank):
                    return found
        return []

    def _tell(self, trouble: str) -> None:
        """Notes why there is no stream; logs it once."""
        if self._stopping.is_set():
            return
        self.trouble = shortened(trouble)
        if self.trouble != self._told:
            self._told = self.trouble
            _logger.warning(
                "No stream of %s at %s: %s; still trying",
                *(self._name, self.registration.endpoint, trouble),
            )

    def _set_connected(self, connected: bool) -> None:
        if connected == self.connected:
            return
        now = self._clock.monotonic()
        self._heard_at, self._asks_at = now, now + STREAM_ASK_S
        self._is_behind, self._came_at = True, now
        self._is_begun = not connected
        self.is_silent = False
        if connected:
            self.links = next_of(self.links)
            self.trouble = self._refusal = ""
        self.connected = connected
        if connected:
            _logger.info("Streaming from %s of %s", self.registration.endpoint, self._name)
        else:
            _logger.info(
                "No longer streaming from %s of %s", self.registration.endpoint, self._name
            )
        self._owner.note_changed(self)

    def _address(self) -> str:
        """The server's, as gRPC names it; the next one with each call where a name has several.

        Raises:
            OSError: its name cannot be looked up now.
        """
        endpoint = "tcp://" + self.registration.endpoint.removeprefix(GRPC_SCHEME)
        if names_host(endpoint):
            addresses = LOOKUPS.look_up(endpoint).result()
            self._lookups += 1
            endpoint = addresses[self._lookups % len(addresses)]
        place = endpoint.removeprefix("tcp://")
        return f"ipv6:{place}" if place.startswith("[") else f"ipv4:{place}"

    # Asked by the owner's thread

    def look(self, now: float) -> None:
        """Asks the server whether it is there, where that is due; takes it for gone where it has
        not answered for long. One that has not taken the stream yet may be gone as well: a server
        without a message to send need not say that it has taken it.
        """
        with self._lock:
            channel, asked_at = self._channel, self._asked_at
            if channel is None:
                return
            if self.connected and now - self._came_at >= STREAM_CAUGHT_UP_S:
                self._is_behind = False
            if self._ping is not None and now >= self._pings_at:
                self._pings_at = now + STREAM_PING_S
                pings: grpc.UnaryUnaryMultiCallable[bytes, bytes]
                pings = channel.unary_unary(self._ping.path)
                # Held: a call that nothing refers to is cancelled, perhaps before it is sent.
                self._pinged = pings.future(self._ping.request, timeout=STREAM_PING_S)
            if asked_at is None and now >= self._asks_at:
                self._asked_at = now
                ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_HEALTH)
                question = ask.future(b"", timeout=2 * STREAM_DEAD_S)
                question.add_done_callback(lambda answer: self._note_answer(channel, now, answer))
                return
        is_late = asked_at is not None and now - asked_at >= LINK_SILENT_S
        is_silent = is_late and self.connected
        if is_silent != self.is_silent:
            self.is_silent = is_silent
            self._owner.note_changed(self)
        if asked_at is not None and now - asked_at >= STREAM_DEAD_S and self._call is not None:
            self._call.cancel()

    def _note_answer(
        self, channel: grpc.Channel, asked_at: float, answer: "grpc.Future[bytes]"
    ) -> None:
        error = None if answer.cancelled() else answer.exception()
        code = getattr(error, "code", lambda: None)()
        is_there = not answer.cancelled() and code not in _NO_ANSWER
        with self._lock:
            if self._channel is channel and is_there:
                self._asked_at, self._heard_at = None, asked_at
                self._asks_at = asked_at + STREAM_ASK_S

    def ask_whole(self, now: float) -> None:
        """Something of it is missing: asks for all that there is, by a call beside the one under
        way, which goes on; one at a time, for a quiet engine may send nothing for hours. Where what
        comes begins with batch 0 or a snapshot, it takes its place; else the server has kept
        nothing, and nothing is lost by having asked.
        """
        with self._lock:
            channel = self._channel
            is_due = self.connected and not self._asks_whole and now >= self._whole_at
            if channel is None or not is_due:
                return
            self._whole_at, self._asks_whole = now + WHOLE_AGAIN_S, True
        threading.Thread(
            target=self._ask_whole, args=(channel,), name="reprise-stream-whole", daemon=True
        ).start()

    def _ask_whole(self, channel: grpc.Channel) -> None:
        try:
            call, messages, ping = self._open(channel, None, only_whole=True)
            for found in messages:
                if found.end is None and not found.is_of(self.registration.dp_rank):
                    continue
                is_whole = found.is_first or (found.mark is not None and found.mark.begins)
                under_way = self._call
                if is_whole and under_way is not None:
                    self._whole = Asked(call, chain((found,), messages), ping)
                    under_way.cancel()
                else:
                    call.cancel()
                return
        except (grpc.RpcError, CancelledError, ValueError) as error:  # the last: it is closed
            _logger.debug("No whole stream of %s: %s", self._name, error)
        finally:
            self._asks_whole = False
