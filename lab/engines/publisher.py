"""vLLM's ZeroMQ publisher: live batches on a PUB socket, the last N of them again on a ROUTER.

Live messages have three frames: topic, sequence (8 bytes, big-endian, from 0 in each process),
payload. A replay request is `["", first sequence]` from a DEALER; each buffered batch from there on
is answered by one message, and an end marker of sequence 2**64-1 closes it:

    release      batch                           end
    to 0.25      ["", sequence, payload]         ["", ff*8, ""]
    from 0.26    ["", topic, sequence, payload]  ["", "", ff*8, ""]

As in vLLM one thread does both: it gives sequences, sends, and serves replays between two batches,
so a long replay delays live events. Differences: the socket always binds, and the thread sleeps
until there is something to do instead of looking ten times a second.

Source: `ZmqEventPublisher` in `vllm/distributed/kv_events.py`, 0.9.0 to 0.33.0.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import zmq

from lab.engines.wire import NEWEST_WIRE, EngineEvent, EventEncoder

END_SEQUENCE: Final = b"\xff" * 8
BUFFER_BATCHES: Final = 10_000
HIGH_WATER_MARK: Final = 100_000
_SEND: Final = b"send"
_LOSE: Final = b"lose"
_STOP: Final = b"stop"
_LINGER_MS: Final = 200
_REPLAY_BURST_MAX: Final = 64  # requests served before live batches have their turn

_log = logging.getLogger(__name__)


class PublisherOptions(NamedTuple):
    """What vLLM's `--kv-events-config` says.

    Attributes:
        endpoint: where rank 0 publishes; rank N adds N to the port. Port 0: the system chooses.
        replay_endpoint: likewise for replays; "" for none.
        buffer_batches: how many batches can be replayed (`buffer_steps`).
        wire: the vLLM release to speak like.
        any_port_if_taken: let the system choose where the wanted port is in use.
    """

    endpoint: str = "tcp://127.0.0.1:0"
    replay_endpoint: str = "tcp://127.0.0.1:0"
    topic: str = ""
    buffer_batches: int = BUFFER_BATCHES
    high_water_mark: int = HIGH_WATER_MARK
    wire: str = NEWEST_WIRE
    any_port_if_taken: bool = False


def offset_port(endpoint: str, dp_rank: int) -> str:
    """The endpoint of a data-parallel rank: N is added to a TCP port, unless that is 0.

    Raises:
        ValueError: a rank above 0 of an endpoint that is not TCP, as in vLLM.
    """
    if dp_rank == 0:
        return endpoint
    address, colon, port = endpoint.rpartition(":")
    if not (endpoint.startswith("tcp://") and colon and port.isdigit()):
        raise ValueError(f"Expected a TCP endpoint for rank {dp_rank}, got: {endpoint}")
    return endpoint if port == "0" else f"{address}:{int(port) + dp_rank}"


class Publisher:
    """One publisher of one data-parallel rank. Methods may be called from any thread.

    Attributes:
        subscribers: how many subscriptions there are; whoever is counted gets all that is published
            from then on.
    """

    def __init__(self, options: PublisherOptions, *, dp_rank: int = 0) -> None:
        """Bind and start.

        Raises:
            zmq.ZMQError: an address cannot be bound.
        """
        self.dp_rank = dp_rank
        self.subscribers = 0
        self._topic = options.topic.encode()
        self._encoder = EventEncoder(options.wire)
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=options.buffer_batches)
        self._next_sequence = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._bind_all(options)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(
            target=self._publish_until_stopped, name=f"publisher-{dp_rank}", daemon=True
        )
        self._thread.start()

    def publish(self, events: Sequence[EngineEvent], *, lost: bool = False) -> None:
        """Queue one batch. Blocks while the queue is full, as vLLM's does.

        Args:
            events: of one scheduler step, in order.
            lost: give the batch its sequence but do not send it live: what a subscriber sees
                when its queue overflows. It can still be replayed.
        """
        payload = self._encoder.encode(events, timestamp_s=time.time(), dp_rank=self.dp_rank)
        with self._lock:
            if not self._closed:
                self._inlet.send_multipart([_LOSE if lost else _SEND, payload])

    @property
    def published(self) -> int:
        """How many batches have been given a sequence; those that are queued have none yet."""
        return self._next_sequence

    def close(self) -> None:
        """Send what is queued, then stop. Later batches are dropped; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._inlet.send_multipart([_STOP, b""])
        self._thread.join()
        self._inlet.close(linger=0)
        self._context.term()

    def _bind_all(self, options: PublisherOptions) -> None:
        hwm = options.high_water_mark
        # As PUB on the wire; it also says who subscribes.
        self._live = self._context.socket(zmq.XPUB)
        self._live.set(zmq.XPUB_VERBOSER, 1)
        self._live.set_hwm(hwm)
        self.endpoint = self._bind(self._live, options.endpoint, options)
        self._replay: zmq.Socket[bytes] | None = None
        self.replay_endpoint = ""
        if options.replay_endpoint:
            self._replay = self._context.socket(zmq.ROUTER)
            # As from 0.33 on: a whole replay fits, so that none is cut short silently.
            self._replay.set(zmq.SNDHWM, 2 * (options.buffer_batches + 1))
            self.replay_endpoint = self._bind(self._replay, options.replay_endpoint, options)
        self._outlet = self._context.socket(zmq.PAIR)
        self._inlet = self._context.socket(zmq.PAIR)
        for socket in (self._outlet, self._inlet):
            socket.set_hwm(hwm)
        self._outlet.bind("inproc://batches")
        self._inlet.connect("inproc://batches")

    def _bind(self, socket: "zmq.Socket[bytes]", endpoint: str, options: PublisherOptions) -> str:
        wanted = offset_port(endpoint, self.dp_rank)
        try:
            socket.bind(wanted)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or not options.any_port_if_taken:
                raise
            socket.bind(wanted.rpartition(":")[0] + ":0")
        return socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def _publish_until_stopped(self) -> None:
        poller = zmq.Poller()
        poller.register(self._outlet, zmq.POLLIN)
        poller.register(self._live, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                if self._live in ready:
                    self._count_subscriber(self._live.recv())
                if self._replay is not None and self._replay in ready:
                    self._serve_replays(self._replay)
                if self._outlet in ready and not self._publish_next():
                    return
        finally:
            for socket in (self._live, self._replay, self._outlet):
                if socket is not None:
                    socket.close(linger=_LINGER_MS)

    def _publish_next(self) -> bool:
        """False when told to stop."""
        order, payload = self._outlet.recv_multipart()
        if order == _STOP:
            return False
        sequence = self._next_sequence
        self._next_sequence += 1
        if order == _SEND:
            self._send(sequence, payload)
        self._buffer.append((sequence, payload))
        return True

    def _count_subscriber(self, said: bytes) -> None:
        """A subscription begins with 1, the end of one with 0; whoever leaves ends all it had."""
        if said[:1] in (b"\0", b"\1"):
            self.subscribers += 1 if said[:1] == b"\1" else -1

    def _send(self, sequence: int, payload: bytes) -> None:
        self._live.send_multipart([self._topic, sequence.to_bytes(8, "big"), payload])

    def _serve_replays(self, socket: "zmq.Socket[bytes]") -> None:
        for _ in range(_REPLAY_BURST_MAX):
            # Has libzmq count what has left for the client: while it is busy it does so only now
            # and then, takes the queue for full, and drops the end of a replay.
            socket.get(zmq.EVENTS)
            try:
                request = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(request) != 3 or request[1] or len(request[2]) != 8:
                _log.warning("Ignoring a replay request: expected 3 frames, got %d", len(request))
                continue
            self._replay_from(socket, request[0], int.from_bytes(request[2], "big"))

    def _replay_from(self, socket: "zmq.Socket[bytes]", client: bytes, first: int) -> None:
        with_topic = self._encoder.release.replay_has_topic
        topic, no_topic = ([self._topic], [b""]) if with_topic else ([], [])
        for sequence, payload in self._buffer:
            if sequence >= first:
                header = [client, b"", *topic, sequence.to_bytes(8, "big")]
                socket.send_multipart([*header, payload])
        socket.send_multipart([client, b"", *no_topic, END_SEQUENCE, b""])
