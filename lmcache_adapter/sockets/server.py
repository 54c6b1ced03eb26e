"""The thread that serves LMCache's workers: three bound sockets, and nothing that waits.

    8300  PULL    what workers push: operations, full syncs
    8400  ROUTER  requests: registrations, full syncs, look-ups
    8401  ROUTER  heartbeats, the same way; workers are told its address as they register

A turn; the order is the guarantee:

    Step 1. requests are answered, from memory.
    Step 2. links that have ended are noted.
    Step 3. what was pushed is taken, for LMCACHE_TURN_S at most.
    Step 4. what is new of workers is handed over to the log's loop.

So a request waits for one turn at most, however much is pushed and whatever the log does.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import zmq

from bridge.sockets.memory_growth import MemoryGrowth
from lmcache_adapter.bounds import LMCACHE_HANDSHAKE_MS
from lmcache_adapter.controller.controller import Controller
from lmcache_adapter.journal import WorkerReport
from lmcache_adapter.settings import WILDCARDS, Address
from lmcache_adapter.sockets.links import WorkerLinks, local_host
from lmcache_adapter.wire.messages import Error, MessageError, Reply, Request, decode, encode
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import ConfigurationError
from schemas.limits import (
    LINK_GROWTH_BYTES,
    LINK_GROWTH_LOOK_S,
    LINK_HEARTBEAT_MS,
    LINK_HEARTBEAT_WAIT_MS,
    MIB,
)

LMCACHE_MESSAGE_BYTES_MAX: Final = 16 * MIB  # of one frame; libzmq drops the link of a larger one
LMCACHE_PARTS_MAX: Final = 1024  # of a PUSH message; a worker sends 50: reason="too_many_parts"
LMCACHE_QUEUE_MESSAGES: Final = 64  # of a link in libzmq; beyond, its worker keeps them
LMCACHE_TURN_MESSAGES: Final = 256  # pushed, before requests are looked at again
LMCACHE_TURN_S: Final = 0.005  # the same in time: what an answer may wait
LMCACHE_TURN_REQUESTS: Final = 256  # answered before what was pushed is looked at
LMCACHE_LOOK_S: Final = 0.1  # between two looks at links, silences and time-outs

_logger = logging.getLogger(__name__)

FRAME_COUNT: Final = "frame_count"
TOO_MANY_PARTS: Final = "too_many_parts"
UNKNOWN_LINK: Final = "unknown_link"
_WAKING: Final = b"\0"


class ControllerSockets:
    """See the module. Made and closed by its owner; `run` is for one thread.

    Args:
        controller: answers; used by `run` alone.
        hand_over: takes what is new of workers; never waits.

    Attributes:
        faults: unexpected errors.
        looked_at: everything that had arrived by then was handed over; monotonic seconds.
        bad_messages: parts that are no messages.

    Raises:
        ConfigurationError: an address cannot be bound.
    """

    def __init__(
        self,
        address: Address,
        controller: Controller,
        hand_over: Callable[[Sequence[WorkerReport]], None],
        *,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._clock = clock
        self.faults = 0
        self.looked_at = clock.monotonic()
        self._address = address
        self._controller = controller
        self._hand_over = hand_over
        self._commands: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._links: dict[zmq.Socket[bytes], WorkerLinks] = {}
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._waking, False)
        os.set_blocking(self._woken, False)
        try:
            self._pull, self.pull_port = self._bind(zmq.PULL, address.pull_port)
            self._reply, self.reply_port = self._bind(zmq.ROUTER, address.reply_port)
            self._beat, self.heartbeat_port = self._bind(zmq.ROUTER, address.heartbeat_port)
        except BaseException:
            self.close()
            raise

    def _bind(self, kind: int, port: int) -> "tuple[zmq.Socket[bytes], int]":
        bound = self._context.socket(kind)
        self._sockets.append(bound)
        bound.linger = 0
        bound.setsockopt(zmq.MAXMSGSIZE, LMCACHE_MESSAGE_BYTES_MAX)
        bound.setsockopt(zmq.HEARTBEAT_IVL, LINK_HEARTBEAT_MS)
        bound.setsockopt(zmq.HEARTBEAT_TIMEOUT, LINK_HEARTBEAT_WAIT_MS)
        bound.setsockopt(zmq.HANDSHAKE_IVL, LMCACHE_HANDSHAKE_MS)
        bound.setsockopt(zmq.RCVHWM, LMCACHE_QUEUE_MESSAGES)
        self._links[bound] = WorkerLinks(self._context, bound)
        host = "*" if self._address.host in WILDCARDS else self._address.host
        if ":" in host or self._address.host in ("::", "[::]"):
            bound.setsockopt(zmq.IPV6, 1)
        try:
            bound.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            raise ConfigurationError(
                f"Cannot listen on {self._address.host}:{port}: {error.strerror}. Stop what"
                " listens there, or choose other ports with --lmcache HOST:PULL,REPLY,HEARTBEAT"
            ) from error
        endpoint = bound.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes), "libzmq tells it as bytes"
        return bound, int(endpoint.rstrip(b"\0").rpartition(b":")[2])

    # Called by other threads

    def order(self, command: Callable[[], None]) -> None:
        """Has the thread call this between two turns."""
        self._commands.append(command)
        self._wake()

    def stop(self) -> None:
        """Has `run` return."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._waking, _WAKING)
        except (BlockingIOError, OSError):  # it is awake, or closed
            return

    def close(self) -> None:
        """Closes the sockets; `run` has returned."""
        for links in self._links.values():
            links.close()
        for bound in self._sockets:
            bound.close()
        self._context.term()
        for descriptor in (self._woken, self._waking):
            os.close(descriptor)

    # The thread

    def run(self) -> None:
        """Serves until `stop`; no error ends it."""
        poller = zmq.Poller()
        for bound in (self._pull, self._reply, self._beat):
            poller.register(bound, zmq.POLLIN)
            poller.register(self._links[bound].monitor, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        look_at = 0.0
        is_more = False
        growth = MemoryGrowth()
        while not self._stopping:
            try:
                poller.poll(0 if is_more else round(1000 * LINK_GROWTH_LOOK_S))
                is_more = self._turn()
                if growth.take() > LINK_GROWTH_BYTES:
                    self._look_at_links()
                if self._clock.monotonic() >= look_at:
                    look_at = self._clock.monotonic() + LMCACHE_LOOK_S
                    self._look()
            except Exception:  # noqa: BLE001 -- counted and logged
                self._note_fault()
        growth.close()

    def _note_fault(self) -> None:
        """Counts an unexpected error, and logs the 1st, 10th, 100th, ...: a peer may cause many."""
        self.faults += 1
        if str(self.faults).strip("0") == "1":
            text = "Unexpected error with a message of LMCache; going on (%d so far)"
            _logger.exception(text, self.faults)

    def _turn(self) -> bool:
        """See the module; False where nothing more has arrived."""
        began = self._clock.monotonic()
        self._drain_wakes()
        is_more = self._answer_all(self._reply)  # Step 1.
        is_more = self._answer_all(self._beat) or is_more
        for bound in self._links:  # Step 2.
            self._read_links(bound)
        is_more = self._take_pushed(began + LMCACHE_TURN_S) or is_more  # Step 3.
        while self._commands:
            self._commands.popleft()()
        told = self._controller.tell(self._clock.monotonic())  # Step 4.
        if told:
            self._hand_over(told)
        if not is_more:
            self.looked_at = began
        return is_more

    def _read_links(self, bound: "zmq.Socket[bytes]") -> WorkerLinks:
        links = self._links[bound]
        for ended in links.read_events():
            self._controller.link_down(ended, self._clock.monotonic(), pushes=bound is self._pull)
        return links

    def _drain_wakes(self) -> None:
        try:
            while len(os.read(self._woken, 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def _look_at_links(self) -> None:
        for links in self._links.values():
            links.look()

    def _look(self) -> None:
        self._look_at_links()
        counters = self._controller.counters
        counters.dropped["too_many_links"] = sum(one.refused for one in self._links.values())
        counters.dropped["endless_message"] = sum(one.broken for one in self._links.values())
        self._controller.look(self._clock.monotonic())

    # Requests

    def _answer_all(self, router: "zmq.Socket[bytes]") -> bool:
        for _ in range(LMCACHE_TURN_REQUESTS):
            try:
                frames = router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            try:
                self._answer(router, frames)
            except zmq.ZMQError as error:  # who has asked is gone
                _logger.debug("Cannot answer a request of LMCache: %r", error)
            except Exception:  # noqa: BLE001 -- counted; it ends no turn
                self._note_fault()
        return True

    def _answer(self, router: "zmq.Socket[bytes]", frames: "list[zmq.Frame]") -> None:
        descriptor = _descriptor_of(frames[-1])
        links = self._read_links(router)
        counters = self._controller.counters
        if descriptor is None:
            counters.drop(UNKNOWN_LINK)
            return
        link = links.note(descriptor, sum(len(frame.buffer) for frame in frames[1:]))
        if len(frames) < 3 or len(frames[1].buffer):
            counters.drop(FRAME_COUNT)
            return
        reply: Reply
        try:
            request = decode(frames[2].bytes)
        except MessageError as error:
            counters.drop(error.reason)
            reply = Error(error=str(error))
        else:
            if isinstance(request, Request):
                url = self._heartbeat_url(descriptor)
                reply = self._controller.answer(
                    request, link, url, self._clock.monotonic(), self._clock.unix()
                )
            else:
                counters.drop("unexpected_message")
                reply = Error(error=f"Expected a request, got: {type(request).__name__}Msg")
        router.send_multipart([frames[0].bytes, b"", encode(reply)], zmq.NOBLOCK)

    def _heartbeat_url(self, descriptor: int) -> str:
        address = self._address
        host = address.advertised or address.host
        if host in WILDCARDS:
            host = local_host(descriptor) or "127.0.0.1"
        return f"{host}:{self.heartbeat_port}"

    # What is pushed

    def _take_parts(self, parts: "list[zmq.Frame]") -> None:
        counters = self._controller.counters
        descriptor = _descriptor_of(parts[0])
        links = self._read_links(self._pull)
        if descriptor is None:
            counters.drop(UNKNOWN_LINK)
            return
        link = links.note(descriptor, sum(len(part.buffer) for part in parts))
        if len(parts) > LMCACHE_PARTS_MAX:
            counters.drop(TOO_MANY_PARTS, len(parts) - LMCACHE_PARTS_MAX)
        now = self._clock.monotonic()
        for part in parts[:LMCACHE_PARTS_MAX]:
            try:
                self._controller.take(decode(part.bytes), link, now)
            except MessageError as error:
                counters.drop(error.reason)
            except Exception:  # noqa: BLE001 -- counted; it ends no turn
                self._note_fault()

    def _take_pushed(self, until: float) -> bool:
        for _ in range(LMCACHE_TURN_MESSAGES):
            try:
                parts = self._pull.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            self._take_parts(parts)
            if self._clock.monotonic() >= until:
                return True
        return True


def _descriptor_of(frame: "zmq.Frame") -> int | None:
    """By which it came; None where libzmq cannot say: of a peer that speaks ZMTP 1.0, as no LMCache
    does.
    """
    try:
        descriptor: int = frame.get(zmq.SRCFD)
    except zmq.ZMQError:
        return None
    return descriptor
